"""The example of Google's ADK as its user runs it."""

from __future__ import annotations

from pathlib import Path

from redis_state import Settings
from tests.hosts import real
from tests.support.demos import end, start

real.load("google.adk")


async def test_no_change_of_a_state_is_lost(tmp_path: Path) -> None:
    ran = await end(await start(tmp_path, "examples.google_adk"))
    assert ran.status == 0, ran.err
    assert "5 things sold to ann; 13 events this morning" in ran.out


async def test_the_lines_of_its_page_run(settings: Settings) -> None:
    names = await real.run_block("google_adk", settings.url.get_secret_value())
    assert names["runner"].session_service is not None
