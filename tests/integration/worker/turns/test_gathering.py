"""Inputs that are gathered into one task: the last of many, or all of a batch, each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, KeyReused, OutcomeUnknown
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.histories import read_history
from redis_state.worker.tasks.submitting.gathering import MOST_ITEM_BYTES
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queue_of
from tests.support.samples import changed
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

pytestmark = pytest.mark.worker

SOON, LATER = timedelta(milliseconds=300), timedelta(hours=1)


class Work:
    """Says what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    async def __call__(self, ctx: TaskContext) -> Any:
        self.given.append(ctx.input)
        return ctx.input


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def batch(client: TaskClient, item: Any, item_id: str | None = None, **options: Any) -> str:
    chosen: dict[str, Any] = {"session_id": SESSION, "after": LATER} | options
    return await client.batch("work", item, item_id=item_id, **chosen)


async def debounce(client: TaskClient, given: Any, **options: Any) -> str:
    chosen: dict[str, Any] = {"session_id": SESSION, "wait": LATER} | options
    return await client.debounce("work", given, **chosen)


async def look(store: RedisStateStore, task: str) -> Any:
    found = await store.tasks.look(SESSION, task)
    assert found is not None
    return found


async def test_a_full_batch_runs_with_its_items_in_order_and_the_next_item_opens_another(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    names = [await batch(client, n, f"i{n}", most=3) for n in range(7)]
    assert len(set(names[:3])) == len(set(names[3:6])) == 1
    assert len(set(names)) == 3
    # The same item is in the same task, whatever was opened since.
    assert await batch(client, 1, "i1", most=3) == names[0]
    async with pool(store, {"work": work}):
        assert await client.result(SESSION, names[0], timeout_s=60) == [0, 1, 2]
        assert await client.result(SESSION, names[3], timeout_s=60) == [3, 4, 5]
        assert (await look(store, names[6])).status is TaskStatus.PENDING
        assert await batch(client, 1, "i1", most=3) == names[0]
        with pytest.raises(KeyReused):
            await batch(client, "other", "i1", most=3)
    assert len(work.given) == 2


async def test_a_batch_runs_when_its_time_has_come_and_its_start_closes_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    before = await clock_ms(store.base.scripts)
    first = await batch(client, {"a": 1}, after=SOON)
    assert await batch(client, None, after=SOON) == first
    assert (await look(store, first)).due_ms - before >= 300
    async with pool(store, {"work": work}):
        assert await client.result(SESSION, first, timeout_s=60) == [{"a": 1}, None]
    assert await batch(client, 3) != first


async def test_keys_handlers_and_sessions_have_batches_of_their_own(client: TaskClient) -> None:
    names = {
        await batch(client, 1),
        await batch(client, 1, group="k"),
        await batch(client, 1, group="\ud800"),
        await batch(client, 1, session_id="other"),
        await client.batch("handler", 1, session_id=SESSION, after=LATER),
        await debounce(client, 1),
        await debounce(client, 1, group="k"),
    }
    assert len(names) == 7


async def test_only_the_last_input_runs_and_each_puts_the_task_off(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work}):
        wait = timedelta(milliseconds=200)
        first = await debounce(client, 0, wait=wait, at_most=LATER)
        due = (await look(store, first)).due_ms
        for number in range(1, 4):
            assert await debounce(client, number, wait=timedelta(seconds=1), at_most=LATER) == first
            then = (await look(store, first)).due_ms
            assert then >= due  # of one millisecond, maybe
            due = then
        assert await client.result(SESSION, first, timeout_s=60) == 3
        assert await clock_ms(store.base.scripts) >= due
        assert await debounce(client, 4, wait=wait) != first
        await eventually(lambda: work.given == [3, 4], "each burst runs once")


async def test_a_burst_that_never_ends_runs_at_the_latest_in_time(
    store: RedisStateStore, client: TaskClient
) -> None:
    first = await debounce(client, 0, wait=SOON, at_most=timedelta(seconds=1))
    begun = (await look(store, first)).due_ms - 300
    for number in range(1, 50):
        assert await debounce(client, number, wait=timedelta(hours=1)) == first
    assert (await look(store, first)).due_ms == begun + 1000


async def test_the_input_stays_with_the_task_when_it_is_reopened_or_copied(
    store: RedisStateStore, client: TaskClient
) -> None:
    failing, work = True, Work()

    async def fails(ctx: TaskContext) -> Any:
        if failing:
            raise ValueError
        return await work(ctx)

    async with pool(store, {"work": fails}):
        first = await batch(client, "a", most=2)
        await batch(client, "b", most=2)
        await becomes(client, first, TaskStatus.FAILED)
        failing = False
        await client.retry(SESSION, first)
        assert await batch(client, "c", most=2) != first
        again = await client.rerun(SESSION, first)
        forked = await client.fork(SESSION, first)
        for name in (first, again, forked):
            assert await client.result(SESSION, name, timeout_s=60) == ["a", "b"]
    assert work.given == [["a", "b"]] * 3
    history = await read_history(store, SESSION, first)
    assert history is not None
    assert history.input == ["a", "b"]
    found = await client.find(handler="work", status="COMPLETE")
    assert len(found.tasks) == 3


async def test_a_batch_may_run_in_turn_and_a_cancelled_one_takes_no_more(
    store: RedisStateStore, client: TaskClient
) -> None:
    first = await batch(client, 1, in_turn=True, priority=2, attributes={"tenant": "acme"})
    assert (await look(store, first)).key == f"1:{SESSION}"
    assert [task.task_id for task in (await client.find(attributes={"tenant": "acme"})).tasks] == [
        first
    ]
    await client.cancel(SESSION, first)
    second = await batch(client, 2, in_turn=True, most=1)
    assert second != first
    async with pool(store, {"work": Work()}):
        assert await client.result(SESSION, second, timeout_s=60) == [2]


async def test_what_is_gathered_is_limited_under_the_key_that_its_first_call_gave(
    store: RedisStateStore, client: TaskClient
) -> None:
    await client.queues.limit(queue_of(store.settings), per_key=1)
    options: dict[str, Any] = {"limit_key": "acme", "group": "page"}
    held = await client.submit("hold", session_id=SESSION, limit_key="acme")
    opened = asyncio.Event()

    async def hold(_: TaskContext) -> None:
        await opened.wait()

    work = Work()
    async with pool(store, {"hold": hold, "work": work}):
        await becomes(client, held, TaskStatus.RUNNING)
        full = [await batch(client, n, most=2, **options) for n in range(2)]
        soon = await debounce(client, "last", wait=timedelta(milliseconds=1), **options)
        free = await batch(client, "free", most=1)
        assert {(await look(store, task)).key for task in (full[0], soon)} == {"k:acme"}
        assert await client.result(SESSION, free, timeout_s=60) == ["free"]
        # Both are due, and wait for the permit of their key.
        assert work.given == [["free"]]
        opened.set()
        assert await client.result(SESSION, full[0], timeout_s=60) == [0, 1]
        assert await client.result(SESSION, soon, timeout_s=60) == "last"


async def test_a_burst_that_waits_for_its_turn_is_put_off_by_the_next_input(
    store: RedisStateStore, client: TaskClient
) -> None:
    opened, work = asyncio.Event(), Work()

    async def hold(_: TaskContext) -> None:
        await opened.wait()

    async with pool(store, {"hold": hold, "work": work}):
        held = await client.submit("hold", session_id=SESSION, in_turn=True)
        await becomes(client, held, TaskStatus.RUNNING)
        first = await debounce(client, "a", wait=SOON, at_most=LATER, in_turn=True)
        keyed = Queue(store).keys(queue_of(store.settings)).keyed
        await eventually(
            lambda: ask(store.base.scripts, "ZCARD", keyed), "the burst is due, and waits"
        )
        assert await debounce(client, "b", wait=timedelta(seconds=1), in_turn=True) == first
        due = (await look(store, first)).due_ms
        opened.set()
        assert await client.result(SESSION, first, timeout_s=60) == "b"
        assert await clock_ms(store.base.scripts) >= due
    assert work.given == ["b"]


async def test_a_burst_in_a_paused_queue_is_put_off_by_the_next_input(
    store: RedisStateStore, client: TaskClient
) -> None:
    work, name = Work(), queue_of(store.settings)
    await client.queues.pause(name)
    async with pool(store, {"work": work}):
        first = await debounce(client, "a", wait=timedelta(milliseconds=1), at_most=LATER)
        due = (await look(store, first)).due_ms
        await clock_passes(store.base.scripts, due)
        assert await debounce(client, "b", wait=timedelta(seconds=1), at_most=LATER) == first
        due = (await look(store, first)).due_ms
        await client.queues.resume(name)
        assert await client.result(SESSION, first, timeout_s=60) == "b"
        assert await clock_ms(store.base.scripts) >= due
    assert work.given == ["b"]


@pytest.mark.parametrize("limit_key", [None, "acme"])
async def test_a_burst_that_waits_for_a_worker_with_its_handler_is_put_off_by_the_next_input(
    store: RedisStateStore, client: TaskClient, limit_key: str | None
) -> None:
    work = Work()
    options: dict[str, Any] = {"at_most": LATER, "limit_key": limit_key}
    async with pool(store, {"work": work}):
        # So the name is known, and not a wrong one.
        assert await client.result(SESSION, await batch(client, 1, most=1), timeout_s=60) == [1]
    async with pool(store, {"other": Work()}):
        first = await debounce(client, "a", wait=timedelta(milliseconds=1), **options)

        async def is_parked() -> bool:
            return sum(each.waiting for each in await client.unserved()) == 1

        await eventually(is_parked, "it waits for a worker that has its handler")
        assert await debounce(client, "b", wait=timedelta(seconds=2), **options) == first
        due = (await look(store, first)).due_ms
        assert not await is_parked()
    async with pool(store, {"work": work}):
        assert await client.result(SESSION, first, timeout_s=60) == "b"
        assert await clock_ms(store.base.scripts) >= due
    assert work.given == [[1], "b"]


async def test_a_session_that_is_cleared_forgets_what_it_has_gathered(
    store: RedisStateStore, client: TaskClient
) -> None:
    first = await batch(client, 1, "i")
    await store.clear_session(SESSION)
    assert await batch(client, 1, "i") != first


async def test_a_batch_is_full_of_bytes_too(store: RedisStateStore, client: TaskClient) -> None:
    large = "x" * (MOST_ITEM_BYTES - 2)
    names = [await batch(client, large) for _ in range(5)]
    assert len(set(names[:4])) == 1
    assert names[4] != names[0]
    now = await clock_ms(store.base.scripts)
    assert (await look(store, names[0])).due_ms <= now < (await look(store, names[4])).due_ms
    async with pool(store, {"work": Work()}):
        await client.wait(SESSION, names[0], timeout_s=60)


@pytest.mark.parametrize(
    ("call", "options", "field"),
    [
        (batch, {"after": 5}, "after"),
        (batch, {"limit_key": ""}, "limit_key"),
        (debounce, {"limit_key": "", "in_turn": True}, "limit_key"),
        (batch, {"after": timedelta(days=2)}, "after"),
        (batch, {"after": timedelta(0)}, "after"),
        (batch, {"most": 0}, "most"),
        (batch, {"most": 1001}, "most"),
        (batch, {"item_id": ""}, "item_id"),
        (batch, {"item_id": "x" * 201}, "item_id"),
        (batch, {"group": 1}, "group"),
        (batch, {"session_id": 1}, "session_id"),
        (batch, {"item": "x" * MOST_ITEM_BYTES}, "item"),
        (debounce, {"wait": "1 s"}, "wait"),
        (debounce, {"at_most": timedelta(seconds=1)}, "at_most"),
        (debounce, {"given": "x" * MOST_ITEM_BYTES}, "task_input"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    client: TaskClient, call: Any, options: dict[str, Any], field: str
) -> None:
    given = {"item": 1} if call is batch else {"given": 1}
    with pytest.raises(InvalidField) as wrong:
        await call(client, **given | options)
    assert wrong.value.field == field
    assert "xxx" not in str(wrong.value)


async def test_many_callers_at_once_lose_no_item_and_double_none(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work}, max_tasks=4):
        names = await asyncio.gather(
            *(batch(client, n, f"i{n}", most=7, after=SOON) for n in range(100))
        )
        twice = await asyncio.gather(
            *(batch(client, n, f"i{n}", most=7, after=SOON) for n in range(100))
        )
        assert names == twice
        for name in set(names):
            result = await client.result(SESSION, name, timeout_s=60)
            assert sorted(result) == [n for n in range(100) if names[n] == name]
    assert queue_of(store.settings)
    assert max(len(given) for given in work.given) <= 7


@pytest.mark.chaos
async def test_an_item_that_fills_a_batch_is_not_said_to_be_missing_when_the_queue_is_full(
    store: RedisStateStore, client: TaskClient
) -> None:
    async with (
        CommandProxy(store.settings.url.get_secret_value()) as proxy,
        changed(store.settings, url=proxy.url) as behind,
        client_of(behind) as far,
    ):
        task = await batch(far, "a", most=2)
        # Who learns that nothing was written adds it once more, without an id to another batch.
        with proxy.answer("defer_job", OOM), pytest.raises(OutcomeUnknown):
            await batch(far, "b", most=2)
    history = await read_history(store, SESSION, task)
    assert history is not None
    assert history.input == ["a", "b"]
