"""What many callers of a slow archive get, without a clock: work ends when the test says so."""

from __future__ import annotations

import asyncio
import threading

import pytest

from redis_state.archive.parquet.files.ahead import ahead
from redis_state.archive.protocol import AT_ONCE, CallTurns, has_answered
from redis_state.archive.reading.breaker import CallBreaker
from redis_state.errors import ArchiveUnavailable


class Slow:
    """An archive each call of which ends when the test lets it."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        held = asyncio.get_running_loop().create_future()
        self.waiting.append(held)
        await held
        return self.calls


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_callers_that_queue_for_an_archive_that_answers_are_all_answered() -> None:
    breaker, slow = CallBreaker(), Slow()
    callers = [asyncio.ensure_future(breaker.call(slow)) for _ in range(40)]
    await turns()
    # The patience of the others has not begun.
    assert slow.calls == AT_ONCE
    while slow.waiting:
        slow.waiting.pop().set_result(None)
        await turns()
    assert len(await asyncio.gather(*callers)) == slow.calls == 40


async def test_callers_that_queue_for_an_archive_that_fails_do_not_try_it() -> None:
    breaker, slow = CallBreaker(), Slow()
    callers = [asyncio.ensure_future(breaker.call(slow)) for _ in range(40)]
    await turns()
    while slow.waiting:
        slow.waiting.pop(0).set_exception(ArchiveUnavailable("read", "is away"))
        await turns()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(each, ArchiveUnavailable) for each in found)
    # Those that were under way, and those that came before the second failure.
    assert slow.calls <= 2 * AT_ONCE + 1


async def test_a_caller_without_a_turn_does_not_close_the_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_state.archive.reading.breaker._TURN_S", 0.0)
    breaker, slow = CallBreaker(), Slow()
    callers = [asyncio.ensure_future(breaker.call(slow)) for _ in range(AT_ONCE)]
    await turns()
    for _ in range(3):
        with pytest.raises(ArchiveUnavailable, match="other calls"):
            await breaker.call(slow)
    for held in slow.waiting:
        held.set_result(None)
    await asyncio.gather(*callers)
    assert slow.calls == AT_ONCE


async def test_a_long_call_of_an_archive_that_answers_does_not_close_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_state.archive.reading.breaker._PATIENCE_S", 0.001)
    breaker, slow, answers = CallBreaker(), Slow(), [False, True, False, False]

    async def of_two_parts() -> int:
        if answers.pop(0):
            has_answered()
        return await slow()

    for _ in range(4):
        with pytest.raises(ArchiveUnavailable, match="no answer in"):
            await breaker.call(of_two_parts)
    with pytest.raises(ArchiveUnavailable, match="some seconds ago"):
        await breaker.call(of_two_parts)
    assert slow.calls == 4


async def test_who_waits_for_all_turns_gets_them_beside_another_who_does() -> None:
    at_once, did = CallTurns(), list[int]()

    async def alone(n: int) -> None:
        async with at_once.all():
            did.append(n)
            await asyncio.sleep(0)
            did.append(n)

    async with at_once:
        waiting = [asyncio.ensure_future(alone(n)) for n in range(3)]
        await turns()
        assert not did
    await asyncio.gather(*waiting)
    assert did == [0, 0, 1, 1, 2, 2]


def test_things_are_read_ahead_and_come_in_their_order() -> None:
    reading, go_on = threading.Semaphore(0), threading.Event()

    def read(n: int) -> int:
        if n >= 20:
            # All eight are here before one goes on.
            reading.release()
            assert go_on.wait(60)
        return n * n

    found: list[tuple[int, int]] = []
    for each in ahead(read, range(28)):
        found.append(each)
        if len(found) == 20:
            for _ in range(8):
                assert reading.acquire(timeout=60)
            go_on.set()
    assert found == [(n, n * n) for n in range(28)]


def test_a_failure_comes_at_its_place() -> None:
    def read(n: int) -> int:
        if n == 5:
            raise KeyError(n)
        return n

    found: list[int] = []
    with pytest.raises(KeyError):
        found.extend(n for n, _ in ahead(read, range(9)))
    assert list(ahead(read, range(5))) == [(n, n) for n in range(5)]
    assert list(ahead(read, ())) == []
