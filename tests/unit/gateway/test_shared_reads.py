"""What many tabs show is read once: while it is fresh, and while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.console import shared
from redis_state.gateway.console.shared import SharedReads


class Slow:
    """Reads that end when they are let, and are counted."""

    def __init__(self) -> None:
        self.begun = 0
        self.error: Exception | None = None
        self.let = asyncio.Event()

    async def read(self) -> int:
        """Return which read it was."""
        self.begun += 1
        mine = self.begun
        await self.let.wait()
        if self.error is not None:
            raise self.error
        return mine


def _ask(many: Callable[[], Awaitable[int]], count: int) -> list[asyncio.Task[int]]:
    return [asyncio.ensure_future(many()) for _ in range(count)]


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_that_ask_at_once_share_one_read() -> None:
    slow, reads = Slow(), SharedReads()
    asking = _ask(lambda: reads.get("all", slow.read), 40)
    await _turns()
    other = asyncio.ensure_future(reads.get("some", slow.read))
    await _turns()
    assert slow.begun == 2
    slow.let.set()
    assert await asyncio.gather(*asking) == [1] * 40
    assert await other == 2
    assert await reads.get("all", slow.read) == 1


async def test_who_wants_what_is_now_waits_for_a_read_that_begins_then() -> None:
    slow, reads = Slow(), SharedReads()
    first = asyncio.ensure_future(reads.get("all", slow.read))
    await _turns()
    renewing = _ask(lambda: reads.renew("all", slow.read), 40)
    await _turns()
    slow.let.set()
    assert await first == 1
    # All of them had asked before the second read began.
    assert await asyncio.gather(*renewing) == [2] * 40
    assert await reads.renew("all", slow.read) == 3


async def test_a_read_that_fails_fails_for_all_that_wait_and_is_tried_again_then() -> None:
    slow, reads = Slow(), SharedReads()
    slow.error = RuntimeError("away")
    asking = _ask(lambda: reads.get("all", slow.read), 40)
    await _turns()
    slow.let.set()
    failed = await asyncio.gather(*asking, return_exceptions=True)
    assert failed == [slow.error] * 40
    assert slow.begun == 1
    slow.error = None
    assert await reads.get("all", slow.read) == 2


async def test_if_who_reads_leaves_the_next_one_reads() -> None:
    slow, reads = Slow(), SharedReads()
    asking = _ask(lambda: reads.get("all", slow.read), 3)
    await _turns()
    asking[0].cancel()
    await _turns()
    assert slow.begun == 2
    slow.let.set()
    assert await asyncio.gather(*asking[1:]) == [2, 2]


async def test_what_was_read_first_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST", 2)
    slow, reads = Slow(), SharedReads()
    slow.let.set()
    for who in ("a", "b", "c"):
        await reads.get(who, slow.read)
    assert [await reads.get(who, slow.read) for who in ("b", "c", "a")] == [2, 3, 4]
