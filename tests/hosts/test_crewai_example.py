"""The example of CrewAI as its user runs it."""

from __future__ import annotations

from pathlib import Path

from redis_state import Settings
from tests.hosts import real
from tests.support.demos import end, start

real.load("crewai")


async def test_another_process_goes_on(tmp_path: Path) -> None:
    ran = await end(await start(tmp_path, "examples.crewai"))
    assert ran.status == 0, ran.err
    assert "was killed" in ran.out
    assert ran.out.splitlines()[-1] == "order 7: 20 euros: yes, looked up 1 time(s)"


async def test_the_lines_of_its_page_run(settings: Settings) -> None:
    names = await real.run_block("crewai", settings.url.get_secret_value())
    assert names["flow"].persistence is names["persistence"]
    names["persistence"].close()
