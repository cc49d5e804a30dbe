"""Cursors when the server's history goes back: nothing is missed and nothing repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import CursorGap, RedisStateStore
from redis_state.models import SteeringEventType
from redis_state.primitives.lease import HeldLease
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.recorded.replay import Replay
from tests.support.samples import steering, update
from tests.support.scripts.replies import HOUR, ask
from tests.support.servers.changes.rollback import Rollback, rolling_back
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.servers.sets.nodes import subscribers

READ = 10
# How many of ten rows the server loses, and how many new ones follow.
HISTORIES = [
    pytest.param(lost, new, id=f"{lost} lost, {new} new")
    for lost in (1, 4, 9, 10)
    for new in sorted({0, 1, lost - 1, lost, lost + 3})
]


@pytest.fixture
async def server() -> AsyncIterator[Rollback]:
    async with rolling_back() as started:
        yield started


@pytest.fixture
async def store(server: Rollback) -> AsyncIterator[RedisStateStore]:
    async with RedisStateStore.from_url(server.url) as opened:
        yield opened


def reason_of(lost: int, new: int) -> str:
    if not new:
        return "ahead"
    return "rewound" if lost < READ else "foreign"


async def save(store: RedisStateStore, *names: str) -> None:
    for name in names:
        await store.save_update(update(name, name, task_id=f"task {len(name) % 2}"))


def old(first: int, end: int = READ) -> list[str]:
    return [f"old {n}" for n in range(first, end)]


async def names_after(store: RedisStateStore, cursor: str) -> list[str]:
    page = await store.read_updates("session", after=cursor)
    assert page.at_end
    return [update.update_id for update in page.values]


@pytest.mark.parametrize(("lost", "new"), HISTORIES)
async def test_a_reader_goes_on_with_what_is_new_since_and_nothing_else(
    server: Rollback, store: RedisStateStore, lost: int, new: int
) -> None:
    await save(store, *old(0, READ - lost))
    await server.mark()
    await save(store, *old(READ - lost))
    page = await store.read_updates("session")
    assert len(page.entries) == READ
    await server.go_back()
    since = [f"new {n}" for n in range(new)]
    await save(store, *since)
    for place, entry in enumerate(page.entries):
        if place < READ - lost:
            # Its row is there: it stays good.
            assert await names_after(store, entry.cursor) == [*old(place + 1, READ - lost), *since]
            continue
        for task_id in (None, "task 1"):
            with pytest.raises(CursorGap) as caught:
                await store.read_updates("session", after=entry.cursor, task_id=task_id)
            gap = caught.value
            assert (gap.reason, gap.missed) == (reason_of(lost, new), None)
            assert f"{gap.reason}: " in str(gap)
            assert str(gap).endswith(f"; read on after {gap.resume_after!r}")
            assert await names_after(store, gap.resume_after) == since


@pytest.mark.parametrize(("lost", "new"), [(1, 0), (4, 1), (4, 4), (4, 9), (10, 2)])
async def test_a_watcher_that_lives_through_it_is_told_and_goes_on(
    server: Rollback, store: RedisStateStore, lost: int, new: int
) -> None:
    watched: list[str] = []
    gaps: list[CursorGap] = []

    async def watch() -> None:
        after: str | None = None
        while True:
            try:
                async with aclosing(store.watch_updates("session", after=after)) as entries:
                    async for entry in entries:
                        watched.append(entry.value.update_id)  # noqa: PERF401 - each as it comes
            except CursorGap as gap:
                gaps.append(gap)
                after = gap.resume_after

    watching = asyncio.create_task(watch())
    await save(store, *old(0, READ - lost))
    await server.mark()
    await save(store, *old(READ - lost))
    await eventually(lambda: watched == old(0), "the watcher has read all")
    await server.go_back()
    async with RedisStateStore.from_url(server.url) as other:
        await save(other, *(f"new {n}" for n in range(new)))
    await eventually(lambda: gaps, "the watcher is told")
    await save(store, "last")
    await eventually(lambda: watched[-1] == "last", "the watcher goes on")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert watched == [*old(0), *(f"new {n}" for n in range(new)), "last"]
    assert len(gaps) == 1


async def test_of_rows_of_one_millisecond_none_is_repeated_and_none_is_skipped(
    server: Rollback, store: RedisStateStore
) -> None:
    log = Log(store.base.scripts, store.base.keys.updates("s"), Bounds(0, HOUR))

    async def append(name: str, count: int) -> None:
        await log.append([(f"{name} {n}".encode(), b"") for n in range(count)])

    await append("kept", 4)
    await server.mark()
    await append("lost", 6)
    seen = (await log.read()).rows
    assert len({row.ms for row in seen}) == 2
    await server.go_back()
    await append("new", 6)
    for row in seen[4:]:
        with pytest.raises(CursorGap) as caught:
            await log.read(after=row.cursor)
        assert (caught.value.reason, caught.value.resume_after) == ("rewound", seen[3].cursor)
    assert len((await log.read(after=seen[3].cursor)).rows) == 6


async def test_what_is_read_as_a_whole_is_of_one_history(
    server: Rollback, store: RedisStateStore
) -> None:
    log = Log(store.base.scripts, store.base.keys.updates("s"), Bounds(0, HOUR))

    async def append(name: str, count: int) -> None:
        await log.append([(f"{name} {n}".encode(), b"") for n in range(count)])

    await append("kept", 400)
    await server.mark()
    await append("lost", 300)

    losing: list[asyncio.Task[None]] = []

    async def lose() -> None:
        await server.go_back()
        await append("new", 200)

    async def lost() -> None:
        if not losing:
            losing.append(asyncio.create_task(lose()))
        await asyncio.shield(losing[0])

    async with (
        CommandProxy(server.url) as proxy,
        RedisStateStore.from_url(proxy.url, call_timeout_s=30) as reader,
    ):
        # Before the second page, also when that is asked for again: the first has rows of both.
        with proxy.meanwhile("XRANGE", lost, times=None):
            read = await Log(reader.base.scripts, log.keys, Bounds(0, HOUR)).read_all()
    rows = [row.id.decode() for row in read]
    assert rows == [f"kept {n}" for n in range(400)] + [f"new {n}" for n in range(200)]


async def test_a_cursor_of_another_log_stays_foreign(
    server: Rollback, store: RedisStateStore
) -> None:
    async def each(name: str) -> None:
        for session_id in ("session", "other"):
            await store.save_update(update(name, session_id=session_id))
        await store.save_steering(steering(name))

    kept = ["1", "2", "3"]
    for name in kept:
        await each(name)
    await server.mark()
    for name in ("lost 1", "lost 2"):
        await each(name)
    others = [entry.cursor for entry in (await store.read_updates("other")).entries]
    others += [entry.cursor for entry in (await store.read_steering("session")).entries]
    await server.go_back()
    for name in ("new 1", "new 2"):
        await each(name)
    for cursor in others:
        with pytest.raises(CursorGap) as caught:
            await store.read_updates("session", after=cursor)
        assert caught.value.reason == "foreign"
        rest = await names_after(store, caught.value.resume_after)
        assert rest == [*kept, "new 1", "new 2"]


async def test_a_cursor_that_names_no_log_is_one_of_its_own(
    server: Rollback, store: RedisStateStore
) -> None:
    await save(store, "a", "b")
    await server.mark()
    await save(store, "lost")
    cursors = [entry.cursor for entry in (await store.read_updates("session")).entries]
    without = [cursor.rpartition("-")[0] for cursor in cursors]
    assert await names_after(store, without[0]) == ["b", "lost"]
    await server.go_back()
    await save(store, "new")
    with pytest.raises(CursorGap) as caught:
        await store.read_updates("session", after=without[2])
    assert (caught.value.reason, caught.value.resume_after) == ("rewound", cursors[1])


class Unrecorded(Inbox):
    """What is received, without a run in whose journal it would be recorded."""

    async def _record(self, entry: str, value: bytes, lane: Lane | None) -> None:
        pass


class Handled:
    """What the handler of a run has taken out of its inbox."""

    def __init__(self, store: RedisStateStore, *, after: str | None = None) -> None:
        self.taken: list[Any] = []
        replay = Replay(HeldLease("lease", "owner", 1))
        self._inbox = Unrecorded(
            *(store, "session", "task"),
            after=after,
            replay=replay,
            on_hard_cancel=_no,
            on_priority=_no,
        )

    async def run(self) -> None:
        await self._inbox.catch_up()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._inbox.follower.follow())
            while True:
                self.taken += [event.payload["pay"] for event in await self._inbox.wait()]


def _no(*_: object) -> None:
    raise AssertionError


async def pay(store: RedisStateStore, *amounts: int) -> None:
    for amount in amounts:
        kind = SteeringEventType.INJECT_CONTEXT
        event = steering(f"pay-{amount}", {"pay": amount}, task_id="task", event_type=kind)
        await store.save_steering(event)


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("again", [0, 1, 2])
async def test_a_run_takes_no_steering_twice(
    server: Rollback, store: RedisStateStore, kept: int, again: int
) -> None:
    handled = Handled(store)
    running = asyncio.create_task(handled.run())
    amounts = [10, 20, 25]
    await pay(store, *amounts[:kept])
    await server.mark()
    await pay(store, *amounts[kept:])
    await eventually(lambda: handled.taken == amounts, "the run has taken what there is")
    await server.go_back()
    # Senders who learn of the loss send again, under the same ids.
    async with RedisStateStore.from_url(server.url) as other:
        await pay(other, *amounts[kept : kept + again], 30)
    await eventually(lambda: handled.taken[-1] == 30, "the run takes what is new")
    await pay(store, 40)
    await eventually(lambda: handled.taken[-1] == 40, "the run goes on")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert handled.taken == [*amounts, 30, 40]


async def set_clock_ahead(store: RedisStateStore) -> None:
    """Let the next rows be of the next minute, as if the clock were set back after them."""
    ids = store.base.keys.steering("session").ids
    head: bytes = await ask(store.base.scripts, "HGET", ids, "")
    place, *rest = head.decode().split()
    later = int(place.partition("-")[2]) + 60_000
    await ask(store.base.scripts, "HSET", ids, "", " ".join([f"1-{later}", *rest]))


@pytest.mark.parametrize("new", [1, 2, 3])
async def test_a_run_misses_no_steering_when_the_clock_was_set_back_too(
    server: Rollback, store: RedisStateStore, new: int
) -> None:
    handled = Handled(store)
    running = asyncio.create_task(handled.run())
    await pay(store, 1)
    await server.mark()
    await set_clock_ahead(store)
    await pay(store, 10, 20)
    await eventually(lambda: handled.taken == [1, 10, 20], "the run has taken what there is")
    await server.go_back()
    amounts = [30, 40, 50][:new]
    async with RedisStateStore.from_url(server.url) as other:
        await pay(other, *amounts)
    await eventually(lambda: handled.taken == [1, 10, 20, *amounts], "the run takes all once")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_run_whose_beginning_the_server_lost_takes_what_is_new(
    server: Rollback, store: RedisStateStore
) -> None:
    await pay(store, 1)
    await server.mark()
    await pay(store, 2)
    handled = Handled(store, after=await store.steering.cursor("session", "pay-2"))
    await server.go_back()
    await pay(store, 3)
    running = asyncio.create_task(handled.run())
    await eventually(lambda: handled.taken == [3], "the run takes what is new")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_row_of_a_lost_history_that_comes_late_is_not_taken_for_the_next(
    scripts: Scripts, keys: Keys
) -> None:
    log = Log(scripts, keys.updates("s"), Bounds(0, HOUR), announce=True)
    await log.append([(b"a", b"")])
    async with aclosing(log.follow()) as rows:
        first = await anext(rows)
        message = f"2-{first.ms - 5} 4 0 lost"
        coming = asyncio.ensure_future(anext(rows))

        async def listens() -> bool:
            return await subscribers(scripts.transport, log.keys.channel) == [1]

        await eventually(listens, "the watcher listens")
        await ask(scripts, "SPUBLISH", log.keys.channel, message)
        await log.append([(b"b", b"")])
        assert (await coming).id == b"b"
