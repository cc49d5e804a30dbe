"""The LangGraph example as its user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langgraph")

from tests.support.demos import end, start


async def test_the_refund_is_made_once(tmp_path: Path) -> None:
    ran = await end(await start(tmp_path, "examples.langgraph"))
    assert ran.status == 0, ran.err
    assert "1 answer accepted, 7 refused; refunds: ['A-17 20 " in ran.out
