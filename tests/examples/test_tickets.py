"""The examples with tickets, of each framework for agents, as their users run them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.demos import end, start
from tests.support.processes import children
from tests.support.servers.faults import importing

for _needed in ("arq", "typer", "rich"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

EXAMPLES = [
    pytest.param("pydantic_ai", "pydantic_ai", marks=pytest.mark.slow),
    pytest.param("openai_agents", "agents", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("example", "package"), EXAMPLES)
async def test_a_ticket_outlives_its_worker_and_each_refund_has_one_winner(
    tmp_path: Path, example: str, package: str
) -> None:
    pytest.importorskip(package, reason=f"needs the extra for {example}")
    ran = await end(await start(tmp_path, f"examples.{example}", "--json", "--tickets", "2"))
    assert ran.status == 0, ran.err
    assert ran.outcome["problems"] == []
    assert (ran.outcome["ok"], ran.outcome["refused"]) == (True, 4)
    assert ran.outcome["killed"] in ran.outcome["ran_in"]["ticket-1"]


@pytest.mark.full
@pytest.mark.parametrize(("example", "package"), EXAMPLES)
def test_without_the_framework_it_says_what_to_install(
    tmp_path: Path, example: str, package: str
) -> None:
    without = (
        f"import sys; sys.modules[{package!r}] = None; import runpy; "
        f"runpy.run_module('examples.{example}', run_name='__main__', alter_sys=True)"
    )
    fresh = children.run(
        [sys.executable, "-c", without],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=importing(COLUMNS="80"),
    )
    assert (fresh.returncode, "pip install" in fresh.stderr) == (2, True)
