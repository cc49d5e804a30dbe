"""The health check of a worker, where the worker lives and takes no tasks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

for _needed in ("arq", "typer"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

from typer.testing import CliRunner  # noqa: E402

from redis_state.cli.commands import app  # noqa: E402
from redis_state.cli.tasks import reading  # noqa: E402


@pytest.mark.parametrize(("stalled", "status"), [(True, 1), (False, 0)])
def test_a_stalled_worker_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, *, stalled: bool, status: int
) -> None:
    def listed(work: Coroutine[Any, Any, Any]) -> list[dict[str, Any]]:
        work.close()
        return [{"name": "one", "stalled": stalled}]

    monkeypatch.setattr(reading, "run", listed)
    assert CliRunner().invoke(app, ["workers", "--json"]).exit_code == 0
    assert CliRunner().invoke(app, ["workers", "--here", "--json"]).exit_code == status
