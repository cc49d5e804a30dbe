"""Tasks are found as their records stand, whatever was lost on the way to the index."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.stores.task_index import TaskIndex, indexed_move
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.views.summary import TaskSummary
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    found_are,
    open_token,
    pool,
)
from tests.support.scripts.replies import HOUR
from tests.support.servers.sets.nodes import sent_so_far
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import make_due, send, started, submitted, sweeper_of
from tests.support.tasks.index.indexed import fill

ODD = ["", "s", "a\x00b", "a\x01", "{x}:*", "\ud800", "é" * 80]


async def listed(client: TaskClient, **filters: Any) -> list[TaskSummary]:
    """Read all pages."""
    found: list[TaskSummary] = []
    cursor = None
    while True:
        page = await client.find(after=cursor, **filters)
        found += page.tasks
        cursor = page.cursor
        if cursor is None:
            return found


def ids(tasks: Iterable[TaskSummary]) -> list[str]:
    return [task.task_id for task in tasks]


async def drop_index(store: RedisStateStore) -> None:
    """Lose the index, as a server that evicts may."""
    for shard in range(WATCH_SHARDS):
        keys = store.base.keys.task_index(shard)
        for key in (keys.index, keys.about, keys.expiry):
            await send(store, "DEL", key)


async def swept(store: RedisStateStore, task: str, *, times: int = 3) -> None:
    sweeper = sweeper_of(store)
    for _ in range(times):
        await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_skips_nothing_of_a_shard_that_has_many_of_its_tasks(
    store: RedisStateStore, *, newest_first: bool
) -> None:
    """A shard's part of a page is read in rounds: others must not get ahead of its next round."""
    index = TaskIndex(store.base.scripts, store.base.keys)

    def is_crowded(name: str) -> bool:
        return index.keys(watch_entry(SESSION, name)) == store.base.keys.task_index(0)

    names = (f"t{number}" for number in itertools.count())
    crowded = list(itertools.islice(filter(is_crowded, names), 24))
    others = list(itertools.islice(itertools.filterfalse(is_crowded, names), 16))
    # The crowd lies together, with others on both sides.
    made = [*others[:8], *crowded, *others[8:]]
    async with client_of(store) as client:
        for name in made:
            await client.submit("h", session_id=SESSION, task_id=name)
        wanted = made[::-1] if newest_first else made
        for limit in (5, 10, 20, 30):
            assert ids(await listed(client, newest_first=newest_first, limit=limit)) == wanted


async def test_every_filter_finds_what_the_records_say(store: RedisStateStore) -> None:
    made: list[dict[str, Any]] = []
    async with pool(store, {"h": _work, "\x00g": _work}, max_tasks=20) as client:
        for number in range(60):
            attributes: dict[str, Any] = {"tenant": ODD[number % 3], "n": number % 4}
            attributes |= {"yes": number % 2 == 0} if number % 5 else {}
            handler, session = ["h", "\x00g"][number % 2], ODD[number % len(ODD)]
            task_id = await client.submit(
                handler, number, session_id=session, attributes=attributes
            )
            status = "FAILED" if number % 3 == 0 else "COMPLETE" if number % 5 else "PAUSED"
            made.append(attributes | {"id": task_id, "h": handler, "s": session, "st": status})
        for each in made:
            await eventually(
                partial(_is, client, each["s"], each["id"], each["st"]), "it is where it shall be"
            )

        def expected(*, newest_first: bool = True, **wanted: Any) -> list[str]:
            rows = made[::-1] if newest_first else made
            return [
                row["id"]
                for row in rows
                if all(name in row and row[name] == value for name, value in wanted.items())
            ]

        for status in ("FAILED", "COMPLETE", "PAUSED"):
            await found_are(client, TaskStatus(status), len(expected(st=status)))
        for limit in (1, 7, 100):
            assert ids(await listed(client, limit=limit)) == expected()
        assert ids(await listed(client, newest_first=False)) == expected(newest_first=False)
        for status in ("FAILED", "COMPLETE", "PAUSED"):
            found = await listed(client, status=status, limit=9)
            assert ids(found) == expected(st=status)
            assert {task.status.value for task in found} == {status}
        for session in ODD:
            assert ids(await listed(client, session_id=session)) == expected(s=session)
        for handler in ("h", "\x00g"):
            assert ids(await listed(client, handler=handler, limit=4)) == expected(h=handler)
        assert ids(await listed(client, attributes={"n": 3})) == expected(n=3)
        assert await listed(client, attributes={"n": True}) == []
        assert ids(await listed(client, attributes={"yes": False})) == expected(yes=False)
        both: dict[str, Any] = {"n": 1, "tenant": ODD[1]}
        narrow = await listed(client, attributes=both, handler="\x00g", status="COMPLETE", limit=2)
        assert ids(narrow) == expected(n=1, tenant=ODD[1], h="\x00g", st="COMPLETE")
        await _check_sessions(client, expected)


async def _check_sessions(client: TaskClient, expected: Callable[..., list[str]]) -> None:
    sessions = (await client.sessions()).sessions
    assert {each.session_id for each in sessions} == set(ODD)
    for each in sessions:
        assert each.counts[TaskStatus.FAILED] == len(expected(s=each.session_id, st="FAILED"))
    assert (await client.count(handler="h"))[TaskStatus.PAUSED] == len(expected(h="h", st="PAUSED"))
    paged: list[str] = []
    cursor = None
    while True:
        page = await client.sessions(limit=2, after=cursor)
        paged += [each.session_id for each in page.sessions]
        if (cursor := page.cursor) is None:
            break
    assert paged == [each.session_id for each in sessions]


async def _work(ctx: TaskContext) -> int:
    if ctx.input % 3 == 0:
        raise ValueError("no")
    if ctx.input % 5 == 0:
        await ctx.pause()
    return 1


async def _is(client: TaskClient, session: str, task: str, status: str) -> bool:
    state = await client.get(session, task)
    return state is not None and state.status.value == status


async def test_tasks_are_found_by_the_time_of_their_creation(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        times: list[datetime] = []
        tasks: list[str] = []
        for _ in range(5):
            tasks.append(await client.submit("h", session_id=SESSION))
            state = await client.get(SESSION, tasks[-1])
            assert state is not None
            times.append(state.created_at)
        assert ids(await listed(client, created_after=times[1], created_before=times[3])) == [
            tasks[2],
            tasks[1],
        ]
        naive = times[3].replace(tzinfo=None)
        assert ids(await listed(client, created_after=naive)) == [tasks[4], tasks[3]]
        old = datetime(1900, 1, 1, tzinfo=UTC)
        assert ids(await listed(client, created_after=old, newest_first=False)) == tasks
        assert await listed(client, created_before=old) == []
        far = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
        assert len(await listed(client, created_before=far)) == 5


@pytest.mark.parametrize(
    ("field", "filters"),
    [
        ("status", {"status": "DONE"}),
        ("status", {"status": [7]}),
        ("handler", {"handler": 7}),
        ("session_id", {"session_id": b"s"}),
        ("attributes", {"attributes": ["a"]}),
        ("attributes", {"attributes": {"a b": 1}}),
        ("attributes['a']", {"attributes": {"a": 1.5}}),
        ("attributes['a']", {"attributes": {"a": "x" * 257}}),
        ("attributes['a']", {"attributes": {"a": 2**63}}),
        ("attributes", {"attributes": {f"a{number}": 1 for number in range(17)}}),
        ("created_after", {"created_after": "today"}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 1001}),
        ("after", {"after": ""}),
        ("after", {"after": "é"}),
        ("after", {"after": "AAAA"}),
        ("after", {"after": "not a cursor"}),
        ("after", {"after": 7}),
    ],
)
async def test_bad_input_is_refused_by_its_field(
    store: RedisStateStore, field: str, filters: dict[str, Any]
) -> None:
    async with client_of(store) as client:
        with pytest.raises(InvalidField) as refused:
            await client.find(**filters)
        assert refused.value.field == field
        if "attributes" in filters:
            with pytest.raises(InvalidField) as refused:
                await client.submit("h", session_id=SESSION, attributes=filters["attributes"])
            assert refused.value.field == field


async def test_a_cursor_belongs_to_its_filters(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        for _ in range(3):
            await client.submit("h", session_id=SESSION)
        cursor = (await client.find(limit=1, handler="h")).cursor
        assert cursor is not None
        assert len((await client.find(limit=5, handler="h", after=cursor)).tasks) == 2
        others: list[dict[str, Any]] = [{}, {"handler": "g"}]
        others.append({"handler": "h", "newest_first": False})
        for filters in others:
            with pytest.raises(InvalidField, match="after"):
                await client.find(after=cursor, **filters)
        for wrong in (cursor, cursor[:-2], "x"):
            with pytest.raises(InvalidField, match="after"):
                await client.sessions(after=wrong)
        with pytest.raises(InvalidField, match="one filter"):
            await client.count(handler="h", session_id=SESSION)


async def test_what_does_not_change_is_neither_skipped_nor_repeated(
    store: RedisStateStore,
) -> None:
    async with client_of(store) as client:
        stays = [
            await client.submit("h", session_id=SESSION, attributes={"keep": True})
            for _ in range(30)
        ]
        moving = [await client.submit("h", session_id="other") for _ in range(30)]
        found: list[str] = []
        cursor = None
        while True:
            page = await client.find(status="PENDING", limit=4, after=cursor)
            found += ids(page.tasks)
            cursor = page.cursor
            if cursor is None:
                break
            await client.cancel("other", moving.pop())
            await client.submit("h", session_id="new")
        assert [task for task in found if task in set(stays)] == stays[::-1]


async def test_a_rare_combination_gives_short_pages_and_ends(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        rare = await client.submit("rare", session_id=SESSION, attributes={"a": 1})
        for number in range(400):
            handler = "rare" if number % 2 else "h"
            attributes = {} if number % 2 else {"a": 1}
            await client.submit(handler, session_id=SESSION, attributes=attributes)
        cursor, pages, found = None, 0, list[str]()
        while True:
            page = await client.find(handler="rare", attributes={"a": 1}, limit=1, after=cursor)
            pages, found = pages + 1, found + ids(page.tasks)
            if (cursor := page.cursor) is None:
                break
        assert found == [rare]
        assert pages <= 3


# What was lost on the way to the index


@pytest.mark.parametrize("lost", ["whole index", "this task", "moves"])
async def test_a_sweeper_makes_the_index_exact(
    store: RedisStateStore, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lost == "moves":
        monkeypatch.setattr(TaskIndex, "moved", _lost)
    async with client_of(store) as client:
        task = await submitted(store)
        run = await started(store, task)
        if lost != "moves":
            await (drop_index(store) if lost == "whole index" else _forget(store, task))
            assert await listed(client) == []
        await swept(store, task)
        assert ids(await listed(client, status="RUNNING")) == [task]
        await TaskTransitions(store).finish_run(run, TaskStatus.FAILED, error="no")
        if lost != "moves":
            await drop_index(store)
        await swept(store, task, times=4)
        assert ids(await listed(client, status="FAILED")) == [task]
        assert await client.count() == dict.fromkeys(TaskStatus, 0) | {TaskStatus.FAILED: 1}
        for shard in range(WATCH_SHARDS):
            assert await send(store, "ZCARD", store.base.keys.watch(shard)) == 0


def _lost(*_: Any, **__: Any) -> None:
    """Stand in for a call of a process that died before it was sent."""


async def _forget(store: RedisStateStore, task: str) -> None:
    entry = watch_entry(SESSION, task)
    index = TaskIndex(store.base.scripts, store.base.keys)
    keys = index.keys(entry)
    (stamp,) = [
        reply.facts[3].decode()
        for reply in [
            await store.base.scripts.find_tasks(
                keys,
                kind="*",
                value=b"",
                statuses="r",
                newest=True,
                low=b"[",
                high=b"(\xff",
                size=9,
                most=9,
                wanted=[],
            )
        ]
    ]
    await index.remove(entry, stamp=stamp)


async def test_a_reader_returns_what_the_record_says_and_corrects_the_index(
    store: RedisStateStore,
) -> None:
    index = TaskIndex(store.base.scripts, store.base.keys)
    async with client_of(store) as client:
        task = await submitted(store)
        entry = watch_entry(SESSION, task)
        # A write of a history that the record has lost.
        index.moved(indexed_move(entry, TaskStatus.FAILED, version=9, write="lost", ttl_ms=HOUR))
        assert (await client.count())[TaskStatus.FAILED] == 1
        assert await listed(client, status="FAILED") == []
        assert (await client.count())[TaskStatus.PENDING] == 1
        assert ids(await listed(client, status="PENDING")) == [task]


async def test_tasks_of_a_cleared_session_are_not_found(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await client.submit("h", session_id=SESSION)
        await store.clear_session(SESSION)
        assert await listed(client) == []
        await swept(store, task, times=2)
        assert sum((await client.count()).values()) == 0
        # Also of one that no sweeper watches any more.
        task = await client.submit("h", session_id=SESSION)
        await client.cancel(SESSION, task)
        await swept(store, task)
        assert sum((await client.count()).values()) == 1
        await store.clear_session(SESSION)
        await swept(store, task, times=2)
        assert sum((await client.count()).values()) == 0


async def test_a_later_task_of_an_id_takes_the_place_of_an_earlier_one(
    store: RedisStateStore,
) -> None:
    async with client_of(store) as client:
        await client.submit("old", session_id=SESSION, task_id="t", attributes={"a": 1})
        await client.cancel(SESSION, "t")
        await store.clear_session(SESSION)
        await client.submit("new", session_id=SESSION, task_id="t", attributes={"b": 2})
        assert await listed(client, handler="old") == []
        assert await listed(client, attributes={"a": 1}) == []
        (found,) = await listed(client, handler="new", attributes={"b": 2}, status="PENDING")
        assert found.attributes == {"b": 2}
        # The same task again does not change what is known of it.
        await client.cancel(SESSION, "t")
        await client.submit("new", session_id=SESSION, task_id="t", attributes={"c": 3})
        (found,) = await listed(client)
        assert (found.status, found.attributes) == (TaskStatus.CANCELLED, {"b": 2})


async def test_children_are_found_by_their_attributes(store: RedisStateStore) -> None:
    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("child", attributes={"kind": "part"}))

    async def child(_: TaskContext) -> int:
        return 1

    async with pool(store, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
        (found,) = await listed(client, attributes={"kind": "part"}, status="COMPLETE")
        assert (found.parent, found.handler) == (task, "child")


@pytest.mark.parametrize("many", sizes(3_000, 1_000_000))
async def test_a_page_costs_the_page(store: RedisStateStore, many: int) -> None:
    async with client_of(store) as client:
        real = [
            await client.submit("rare", session_id=f"s{number % 3}", attributes={"n": number})
            for number in range(50)
        ]
        few = await _costs(store, client, real)
        await fill(store, 0, 1_500)
        some = await _costs(store, client, real)
        await fill(store, 1_500, many)
        grown = await _costs(store, client, real)
    for size, costs in ((50, few), (1_550, some), (many + 50, grown)):
        print(f"commands and bytes of a page of 20, at {size:,} tasks: {costs}")  # noqa: T201
    for name, (commands, answered) in grown.items():
        # What has filled each shard's part of the page costs the same from then on.
        assert commands == some[name][0], name
        assert answered <= 1.2 * some[name][1], name
        assert commands <= 2.5 * few[name][0], name
        assert answered <= 2.5 * few[name][1], name


async def _costs(
    store: RedisStateStore, client: TaskClient, real: list[str]
) -> dict[str, tuple[int, int]]:
    """Count the commands and the bytes that pages take."""
    found: dict[str, tuple[int, int]] = {}
    searches: dict[str, dict[str, Any]] = {
        "all": {},
        "status": {"status": "PENDING"},
        "handler": {"handler": "rare", "status": "PENDING"},
        "session": {"session_id": "s1"},
        "attribute": {"attributes": {"n": 7}, "handler": "rare"},
    }
    for name, filters in searches.items():
        before = await sent_so_far(store.transport)
        page = await client.find(limit=20, **filters)
        after = await sent_so_far(store.transport)
        assert name == "all" or set(ids(page.tasks)) & set(real) or name == "status"
        found[name] = after[0] - before[0], after[1] - before[1]
    return found


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_task_is_found_as_running_while_its_handler_blocks_the_loop(
    store: RedisStateStore, *, resumed: bool
) -> None:
    async def find() -> None:
        async with RedisStateStore(store.settings) as beside, client_of(beside) as client:

            async def is_found() -> bool:
                return ids((await client.find(status=TaskStatus.RUNNING)).tasks) == [task]

            await eventually(is_found, "it is found as running", timeout_s=10)

    async def block(ctx: TaskContext) -> str:
        if resumed:
            await ctx.approval("go on?")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, find()).result()
        return "found"

    async with pool(store, {"h": block}, heartbeat="thread") as client:
        task = await client.submit("h", session_id=SESSION)
        if resumed:
            await becomes(client, task, TaskStatus.PAUSED)
            await client.approve(await open_token(store, task), actor="ann")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "found"
