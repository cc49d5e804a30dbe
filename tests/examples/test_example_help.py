"""An example that takes no options says what it does, instead of doing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.demos import end, start


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("langgraph", "langgraph"),
        ("mcp", "mcp.client.client"),
        ("crewai", None),
        ("agent_framework", None),
        ("llama_index", None),
        ("google_adk", "google.adk"),
    ],
)
async def test_help_runs_nothing(tmp_path: Path, name: str, needs: str | None) -> None:
    if needs is not None:
        pytest.importorskip(needs)
    module = f"examples.{name}"
    ran = await end(await start(tmp_path, module, "--help"))
    assert ran.status == 0, ran.err
    usage, blank, about = ran.out.splitlines()[:3]
    assert usage.startswith(f"usage: python -m {module}")
    assert (blank, about[:1].isupper()) == ("", True)
    wrong = await end(await start(tmp_path, module, "--nothing"))
    assert (wrong.status, wrong.out) == (2, "")
