"""The example of the OpenAI Agents SDK as its user runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.demos import end, start
from tests.support.processes import children
from tests.support.servers.faults import importing

for _needed in ("arq", "typer", "rich"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

WITHOUT = (
    "import sys; sys.modules['agents'] = None; import runpy; "
    "runpy.run_module('examples.openai_agents', run_name='__main__', alter_sys=True)"
)


@pytest.mark.full
async def test_a_ticket_outlives_its_worker_and_each_refund_has_one_winner(tmp_path: Path) -> None:
    pytest.importorskip("agents", reason="needs the openai-agents extra")
    ran = await end(await start(tmp_path, "examples.openai_agents", "--json", "--tickets", "2"))
    assert ran.status == 0, ran.err
    assert ran.outcome["problems"] == []
    assert (ran.outcome["ok"], ran.outcome["refused"]) == (True, 4)
    assert ran.outcome["killed"] in ran.outcome["ran_in"]["ticket-1"]


@pytest.mark.full
def test_without_openai_agents_it_says_what_to_install(tmp_path: Path) -> None:
    fresh = children.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=importing(COLUMNS="80"),
    )
    assert (fresh.returncode, "pip install" in fresh.stderr) == (2, True)
