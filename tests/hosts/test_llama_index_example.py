"""The example of LlamaIndex as its user runs it."""

from __future__ import annotations

from pathlib import Path

from redis_state import Settings
from tests.hosts import real
from tests.support.demos import end, start

real.load("llama_agents.server")


async def test_another_process_goes_on(tmp_path: Path) -> None:
    ran = await end(await start(tmp_path, "examples.llama_index"))
    assert ran.status == 0, ran.err
    assert "was killed" in ran.out
    assert ran.out.splitlines()[-1] == "20 euros: yes"


async def test_the_lines_of_its_page_run(settings: Settings) -> None:
    names = await real.run_block("llama_index", settings.url.get_secret_value())
    assert names["server"] is not None
