"""Tasks are found by the times of their ends, whatever was lost, and beside an earlier version."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
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
from redis_state.worker import TaskClient, TaskContext, TaskSummary
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.operate import bulk
from redis_state.worker.tasks.operate.bulk import BulkOutcome
from redis_state.worker.tasks.operate.reopen import Reopening
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of, found_are, pool
from tests.support.scripts.replies import HOUR
from tests.support.servers.sets.nodes import sent_so_far
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import make_due, send, started, submitted, sweeper_of
from tests.support.tasks.index.earlier_index import earlier_index
from tests.support.tasks.index.indexed import fill
from tests.support.tasks.work import Work

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
ENDED = (TaskStatus.COMPLETE, TaskStatus.FAILED, TaskStatus.CANCELLED)


async def listed(client: TaskClient, **filters: Any) -> list[TaskSummary]:
    """Read all pages of what has ended."""
    found: list[TaskSummary] = []
    cursor = None
    wanted: dict[str, Any] = {"ended_after": LONG_AGO} | filters
    while True:
        page = await client.find(after=cursor, **wanted)
        found += page.tasks
        cursor = page.cursor
        if cursor is None:
            return found


async def ids(client: TaskClient, **filters: Any) -> list[str]:
    return [task.task_id for task in await listed(client, **filters)]


async def ends(store: RedisStateStore, task: str, status: TaskStatus = TaskStatus.FAILED) -> None:
    """Run a task that was submitted to its end."""
    run = await started(store, task)
    await TaskTransitions(store).finish_run(run, status, error=None)


async def swept(store: RedisStateStore, task: str, *, times: int = 4) -> None:
    sweeper = sweeper_of(store)
    for _ in range(times):
        await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()


async def listed_ends(store: RedisStateStore) -> int:
    """Count what is in the lists of the ends, left over or not."""
    return sum(
        [
            await send(store, "ZLEXCOUNT", store.base.keys.task_index(n).index, b"[e\0", b"(e\1")
            for n in range(WATCH_SHARDS)
        ]
    )


async def test_every_filter_finds_what_the_records_say_in_the_order_of_the_ends(
    store: RedisStateStore,
) -> None:
    chance = random.Random(3)

    async def work(ctx: TaskContext) -> None:
        if ctx.input % 3 == 0:
            raise ValueError("no")

    async with pool(store, {"h": work, "g": work}, max_tasks=8) as client:
        named = [(f"s{number % 4}", f"t{number}") for number in range(48)]
        for number, (session, task) in enumerate(named):
            await client.submit(
                *("hg"[number % 2], number),
                session_id=session,
                task_id=task,
                attributes={"n": number % 5},
                queue="nobodys" if number % 8 == 1 else None,
            )
        gone = [name for number, name in enumerate(named) if number % 8 == 1]
        for name in chance.sample(gone, 4):
            assert await client.cancel(*name)
        unfinished = 2
        await found_are(client, TaskStatus.FAILED, 14)
        await found_are(client, TaskStatus.COMPLETE, 28)
        records = (await client.find(limit=100)).tasks
        model = [task for task in records if task.status.is_terminal]
        assert len(model) == len(named) - unfinished
        moments = sorted(task.updated_at for task in model)

        def expected(keep: Callable[[TaskSummary], bool]) -> list[str]:
            kept = sorted((task for task in model if keep(task)), key=lambda task: task.updated_at)
            return [task.task_id for task in kept]

        early, late = moments[9], moments[-9]
        made = sorted(task.created_at for task in model)[20]
        cases: list[tuple[dict[str, Any], Callable[[TaskSummary], bool]]] = [
            ({}, lambda _: True),
            ({"status": "FAILED"}, lambda task: task.status is TaskStatus.FAILED),
            ({"status": [*TaskStatus]}, lambda _: True),
            ({"handler": "g"}, lambda task: task.handler == "g"),
            ({"session_id": "s1"}, lambda task: task.session_id == "s1"),
            (
                {"attributes": {"n": 2}, "handler": "h"},
                lambda task: task.attributes["n"] == 2 and task.handler == "h",
            ),
            ({"ended_after": early}, lambda task: task.updated_at >= early),
            ({"ended_after": None, "ended_before": late}, lambda task: task.updated_at < late),
            (
                {"ended_after": early.replace(tzinfo=None), "ended_before": late},
                lambda task: early <= task.updated_at < late,
            ),
            ({"created_after": made}, lambda task: task.created_at >= made),
            (
                {"created_before": made, "status": ["FAILED", "CANCELLED"]},
                lambda task: task.created_at < made and task.status is not TaskStatus.COMPLETE,
            ),
            ({"ended_before": LONG_AGO}, lambda _: False),
            ({"ended_after": datetime.max.replace(tzinfo=UTC)}, lambda _: False),
        ]
        for wanted, keep in cases:
            for limit in (1, 7, 100):
                found = await ids(client, limit=limit, newest_first=False, **wanted)
                assert found == expected(keep), (wanted, limit)
                assert await ids(client, limit=limit, **wanted) == found[::-1]
        counted = await client.count(ended_after=early, ended_before=late)
        assert {status: number for status, number in counted.items() if number} == {
            status: len(of)
            for status in ENDED
            if (of := [t for t in model if t.status is status and early <= t.updated_at < late])
        }
        assert sum((await client.count(ended_before=LONG_AGO)).values()) == 0


@pytest.mark.parametrize(
    ("field", "filters"),
    [
        ("ended_after", {"ended_after": "today"}),
        ("ended_before", {"ended_before": 7}),
        ("status", {"ended_after": LONG_AGO, "status": "PENDING"}),
        ("status", {"ended_before": LONG_AGO, "status": ["RUNNING", "PAUSED"]}),
    ],
)
async def test_bad_input_is_refused_by_its_field(
    store: RedisStateStore, field: str, filters: dict[str, Any]
) -> None:
    async with client_of(store) as client:
        for call in (client.find, partial(client.bulk, "rerun")):
            with pytest.raises(InvalidField) as refused:
                await call(**filters)
            assert refused.value.field == field
        with pytest.raises(InvalidField, match="cancel applies to"):
            await client.bulk("cancel", ended_after=LONG_AGO)
        with pytest.raises(InvalidField, match="one filter"):
            await client.count(ended_after=LONG_AGO, handler="h")


async def test_a_cursor_of_another_order_is_refused(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        for _ in range(3):
            await ends(store, await submitted(store))
        by_end = (await client.find(limit=1, status=ENDED, ended_after=LONG_AGO)).cursor
        made = (await client.find(limit=1, status=ENDED)).cursor
        assert by_end is not None
        assert made is not None
        others: list[tuple[str, dict[str, Any]]] = [
            (by_end, {}),
            (by_end, {"created_after": LONG_AGO}),
            (by_end, {"ended_before": LONG_AGO}),
            (by_end, {"ended_after": LONG_AGO, "newest_first": False}),
            (made, {"ended_after": LONG_AGO}),
        ]
        for cursor, filters in others:
            with pytest.raises(InvalidField, match="after"):
                await client.find(after=cursor, status=ENDED, **filters)
        rest = await client.find(after=by_end, status=ENDED, ended_after=LONG_AGO)
        assert len(rest.tasks) == 2


async def test_a_task_has_the_place_of_its_last_end(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        tasks = [await submitted(store) for _ in range(3)]
        for task in reversed(tasks):
            await ends(store, task)
        assert await ids(client, newest_first=False) == tasks[::-1]
        page = await client.find(limit=1, newest_first=False, ended_after=LONG_AGO)
        assert [task.task_id for task in page.tasks] == [tasks[2]]
        # The first of what follows is retried: it leaves its place, and comes last.
        await client.retry(SESSION, tasks[1])
        assert await ids(client) == [tasks[0], tasks[2]]
        await ends(store, tasks[1])
        rest = await client.find(newest_first=False, ended_after=LONG_AGO, after=page.cursor)
        assert [task.task_id for task in rest.tasks] == [tasks[0], tasks[1]]
        await store.tasks.clear(SESSION, tasks[0])
        assert await ids(client) == [tasks[1], tasks[2]]
        await swept(store, tasks[0])
        assert await listed_ends(store) == 2


@pytest.mark.parametrize("many", sizes(3_000, 1_000_000))
async def test_a_page_by_the_end_costs_the_page(store: RedisStateStore, many: int) -> None:
    async with client_of(store) as client:
        for number in range(50):
            handler, session = "rare" if number % 5 else "h", f"s{number % 3}"
            await client.submit(handler, session_id=session, task_id=f"t{number}")
            await client.cancel(session, f"t{number}")
        few = await _costs(store, client)
        await fill(store, 0, 1_500)
        some = await _costs(store, client)
        await fill(store, 1_500, many)
        grown = await _costs(store, client)
    for size, costs in ((50, few), (1_550, some), (many + 50, grown)):
        print(f"commands and bytes of a page of 20, at {size:,} tasks: {costs}")  # noqa: T201
    for name, (commands, answered) in grown.items():
        assert commands == some[name][0], name
        assert answered <= 1.2 * some[name][1], name
        assert commands <= 2.5 * few[name][0], name
        assert answered <= 2.5 * few[name][1], name


async def _costs(store: RedisStateStore, client: TaskClient) -> dict[str, tuple[int, int]]:
    """Count the commands and the bytes that pages take."""
    found: dict[str, tuple[int, int]] = {}
    since: dict[str, Any] = {"ended_after": LONG_AGO}
    searches: list[tuple[str, dict[str, Any]]] = [
        ("end", {"ended_before": datetime.max.replace(tzinfo=UTC)}),
        ("end and status", since | {"status": "CANCELLED"}),
        ("end, status and handler", since | {"status": "CANCELLED", "handler": "rare"}),
        ("end and creation", since | {"created_after": LONG_AGO}),
    ]

    async def page(filters: dict[str, Any]) -> None:
        assert len((await client.find(limit=20, **filters)).tasks) == 20

    async def count() -> None:
        assert (await client.count(**since))[TaskStatus.CANCELLED] == 50

    calls = {name: partial(page, filters) for name, filters in searches} | {"count": count}
    for name, call in calls.items():
        measured: list[tuple[int, int]] = []
        # The lesser of two: a cluster's nodes are looked at now and then.
        for _ in range(2):
            before = await sent_so_far(store.transport)
            await call()
            after = await sent_so_far(store.transport)
            measured.append((after[0] - before[0], after[1] - before[1]))
        found[name] = min(measured)
    return found


# What was lost on the way to the index, or was written by an earlier version


@pytest.mark.parametrize("lost", ["the end", "the retry", "both ends"])
async def test_a_sweeper_makes_the_ends_exact(
    store: RedisStateStore, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop: list[str] = []
    moved = TaskIndex.moved

    def move(self: TaskIndex, task: Any, **options: Any) -> None:
        if task.status in drop:
            # Of a process that died before it was sent.
            drop.append("dropped")
            return
        moved(self, task, **options)

    monkeypatch.setattr(TaskIndex, "moved", move)
    async with client_of(store) as client:
        task = await submitted(store)
        drop += ["f"] if lost != "the retry" else []
        await ends(store, task)
        assert await ids(client) == ([] if drop else [task])
        await swept(store, task)
        assert await ids(client, status="FAILED") == [task]
        drop[:] = {"the end": [], "the retry": ["p", "r"], "both ends": ["c"]}[lost]
        await client.retry(SESSION, task)
        await ends(store, task, TaskStatus.COMPLETE)
        assert ("dropped" in drop) == (lost != "the end")
        await swept(store, task)
        (found,) = await listed(client, status="COMPLETE")
        assert found.task_id == task
        assert (await client.count(ended_after=LONG_AGO))[TaskStatus.FAILED] == 0
        assert await listed_ends(store) == 1


async def test_a_reader_leaves_out_an_end_that_the_record_does_not_have(
    store: RedisStateStore,
) -> None:
    index = TaskIndex(store.base.scripts, store.base.keys)
    async with client_of(store) as client:
        task = await submitted(store)
        await ends(store, task)
        record = await store.tasks.load_fields(SESSION, task)
        assert record is not None
        late = datetime.now(UTC) + timedelta(days=1)
        # A write of a history that the record has lost.
        index.moved(
            indexed_move(
                watch_entry(SESSION, task),
                TaskStatus.FAILED,
                version=9,
                write="lost",
                ttl_ms=HOUR,
                updated_us=int(late.timestamp() * 1e6),
            )
        )
        assert (await client.count(ended_after=late))[TaskStatus.FAILED] == 1
        # It matches, but in another place.
        assert await ids(client) == []
        assert await ids(client) == [task]
        assert (await client.count(ended_after=late))[TaskStatus.FAILED] == 0
        assert await listed_ends(store) == 1


async def test_what_ended_under_an_earlier_version_is_listed_once_it_is_compared(
    store: RedisStateStore,
) -> None:
    async with client_of(store) as client:
        with earlier_index():
            read, inspected, neither = [await submitted(store) for _ in range(3)]
            for task in (read, inspected, neither):
                await ends(store, task)
            await swept(store, neither)
        assert await ids(client) == []
        await swept(store, inspected)
        assert await ids(client) == [inspected]
        # A listing in the order of creation compares each of its tasks.
        assert len((await client.find(status="FAILED")).tasks) == 3
        assert await ids(client, newest_first=False) == [read, inspected, neither]


@pytest.mark.parametrize("earlier", ["retries", "runs again", "both"])
async def test_versions_beside_one_another_leave_each_task_at_its_last_end(
    store: RedisStateStore, earlier: str
) -> None:
    async with client_of(store) as client:
        task = await submitted(store)
        await ends(store, task)
        await ends(store, other := await submitted(store))

        async def retry() -> None:
            await client.retry(SESSION, task)

        async def run() -> None:
            run = await started(store, task)
            # A write of all that is known of a task, by which the earlier version forgets an end.
            record = await store.tasks.load_fields(SESSION, task)
            assert record is not None
            TaskBookkeeping(store).record_attributes(
                run, version=int(record.version), write=record.version.write
            )
            await TaskTransitions(store).finish_run(run, TaskStatus.FAILED, error=None)

        for name, act in (("retries", retry), ("runs again", run)):
            if earlier in (name, "both"):
                with earlier_index():
                    await act()
                    assert len((await client.find(session_id=SESSION)).tasks) == 2
            else:
                await act()
            # Whatever is listed: what does not match is not found.
            found = await listed(client)
            assert len({one.task_id for one in found}) == len(found)
            assert all(one.status is TaskStatus.FAILED for one in found)
        assert len((await client.find()).tasks) == 2
        assert await ids(client) == [task, other]
        assert await ids(client, newest_first=False) == [other, task]
        assert await client.find(limit=1, ended_after=found[0].updated_at) is not None


async def test_what_an_earlier_version_left_goes_when_others_expire(store: RedisStateStore) -> None:
    index = TaskIndex(store.base.scripts, store.base.keys)

    async def put(number: int, us: int) -> None:
        move = indexed_move(
            b"%d" % number, TaskStatus.FAILED, version=us, write="w", ttl_ms=HOUR, updated_us=us
        )
        await index.put(move._replace(created=1, session="s", task=str(number), handler="h"))

    for number in range(400):
        await put(number, 10)
    with earlier_index():
        for number in range(0, 400, 2):
            await put(number, 11)
    for number in range(400):
        await put(number, 20 + number)
    assert await listed_ends(store) == 600
    # As they expire: the first that ended first.
    for number in range(400):
        await index.remove(b"%d" % number, stamp=f"{20 + number} w f {20 + number}")
    assert await listed_ends(store) == 0


async def test_many_are_retried_by_the_times_of_their_ends_each_once(
    store: RedisStateStore,
) -> None:
    work = Work()
    async with pool(store, {"h": work}) as client:
        for number in range(6):
            await client.submit("h", session_id=f"s{number}", task_id=f"t{number}")
            await client.wait(f"s{number}", f"t{number}")
            await found_are(client, TaskStatus.FAILED, number + 1)
        before = await listed(client, newest_first=False)
        assert [task.task_id for task in before] == [f"t{number}" for number in range(6)]
        since = before[2].updated_at
        dry = await client.bulk("retry", ended_after=since, dry_run=True)
        assert [item.task_id for item in dry.items] == ["t2", "t3", "t4", "t5"]
        # They fail again while the call goes on, and end behind it.
        report = await client.bulk("retry", ended_after=since, concurrency=1)
        assert report.counts[BulkOutcome.DONE] == len(report.items) == 4
        assert not report.more

        async def again() -> bool:
            counted = await client.count(ended_after=before[-1].updated_at + timedelta.resolution)
            return counted[TaskStatus.FAILED] == 4

        await eventually(again, "they have failed again")
        work.bad = ""
        rest = await client.bulk("retry", ended_before=since)
        assert {item.task_id for item in rest.items} == {"t0", "t1"}
        await asyncio.gather(*(client.result(f"s{number}", f"t{number}") for number in range(2)))


async def test_a_bulk_change_by_the_ends_takes_none_twice_and_none_that_ends_meanwhile(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_PAGE", 1)
    async with client_of(store) as client:
        names = [await submitted(store) for _ in range(4)]
        for name in names[:3]:
            await ends(store, name)
        behind = datetime.now(UTC)
        retry = Reopening.retry

        class Slow(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return behind.astimezone(tz)

        async def retry_and_end(self: Any, session_id: str, task_id: str, **options: Any) -> Any:
            reopened = await retry(self, session_id, task_id, **options)
            # Its worker's clock is behind: this end is before the call, and behind the cursor.
            with monkeypatch.context() as patch:
                patch.setattr("redis_state.stores.sessions.tasks.datetime", Slow)
                await ends(store, task_id)
            if task_id == names[1]:
                await ends(store, names[3])
            return reopened

        monkeypatch.setattr(Reopening, "retry", retry_and_end)
        report = await client.bulk("retry", ended_after=LONG_AGO)
        assert [item.task_id for item in report.items] == names[:3]
        assert report.counts[BulkOutcome.DONE] == 3
        assert await ids(client, ended_before=behind) == []
        assert set(await ids(client)) == set(names)
