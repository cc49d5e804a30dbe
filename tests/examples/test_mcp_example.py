"""The MCP example as its user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

from tests.support.demos import end, start

pytestmark = pytest.mark.worker


async def test_the_trip_is_booked_once(tmp_path: Path) -> None:
    ran = await end(await start(tmp_path, "examples.mcp"))
    assert ran.status == 0, ran.err
    assert "the server and the worker were killed" in ran.out
    assert "Oslo: booked for 360; done: {'reserve': 1, 'pay': 1}" in ran.out
