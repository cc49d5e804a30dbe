"""The server's clock is set back: nothing waits for longer than it was put for.

What such a server has stored is planted: times as it wrote them when its clock was an hour ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import ReceiveTimeout
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.primitives.watchlist.watchlist import ENDED_MS, WatchList, check_after
from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.worker import Handler, TaskContext
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.a2a.rows import a2a_keys, write
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queue_of
from tests.support.script_calls.names import job_keys
from tests.support.scripts.replies import HOUR, ask, clock_ms
from tests.support.tasks.crash_states import (
    claimed,
    claims_of,
    close_queues,
    queued_as,
    started,
    submitted,
    sweeper_of,
)

pytestmark = pytest.mark.role("any", why="it sets the server's clock back")
AHEAD_MS = 3_600_000
SHORT_MS = 400
# Long enough to set the clock back meanwhile.
_WAIT = timedelta(seconds=4)


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    await close_queues()


async def set_back(scripts: Scripts, *names: tuple[str, str]) -> None:
    """Let fields of hashes be times of a clock that was an hour ahead; and all watch lists."""
    for key, field in names:
        assert await ask(scripts, "HEXISTS", key, field)
        await ask(scripts, "HINCRBY", key, field, AHEAD_MS)
    keys = Keys(scripts.transport.settings.namespace)
    for shard in range(WATCH_SHARDS):
        for entry in await ask(scripts, "ZRANGE", keys.watch(shard), 0, -1):
            await ask(scripts, "ZINCRBY", keys.watch(shard), AHEAD_MS, entry)
        clock = f"{keys.watch(shard)}:clock"
        if await ask(scripts, "EXISTS", clock):
            await ask(scripts, "INCRBY", clock, AHEAD_MS)


async def within_its_length(taken: Any, described: str) -> None:
    """Wait until something can be taken: first it cannot, later than its length it can."""
    begun = time.monotonic()
    assert not await taken()
    await eventually(taken, described, timeout_s=60)
    assert time.monotonic() - begun >= SHORT_MS / 1000 * 0.9


async def test_a_lease_is_taken_over_after_its_length(scripts: Scripts, keys: Keys) -> None:
    leases, lease = Leases(scripts, keep_ms=HOUR), keys.lease("s", "t")
    dead = await leases.acquire(lease, duration_ms=SHORT_MS)
    assert dead is not None
    await set_back(scripts, (lease, "expires"))
    taken: list[int] = []

    async def take() -> bool:
        held = await leases.acquire(lease, duration_ms=HOUR)
        taken.extend([held.epoch] if held else [])
        return held is not None

    await within_its_length(take, "the lease is taken over")
    assert len(taken) == 1
    assert taken[0] > dead.epoch


async def test_a_lease_that_is_renewed_stays_its_owner_s(scripts: Scripts, keys: Keys) -> None:
    leases, lease = Leases(scripts, keep_ms=HOUR), keys.lease("s", "t")
    held = await leases.acquire(lease, duration_ms=HOUR)
    assert held is not None
    await set_back(scripts, (lease, "expires"))
    assert await leases.acquire(lease, duration_ms=HOUR) is None
    await leases.renew(held, duration_ms=SHORT_MS)
    assert await leases.is_held(lease)
    assert int(await ask(scripts, "HGET", lease, "expires")) - await clock_ms(scripts) > 0
    await leases.renew(held, duration_ms=HOUR)


async def test_an_entry_of_the_watch_list_is_due_after_its_delay_or_soon(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    # More than the script moves at a time.
    await asyncio.gather(
        *(
            scripts.watch_entry(keys.watch(0), entry=b"%d" % number, delay_ms=HOUR, stands="later")
            for number in range(2_500)
        )
    )
    for number in range(WATCH_SHARDS):
        await watch.put(f"soon {number}".encode(), delay_ms=SHORT_MS)
    await set_back(scripts)
    found: list[bytes] = []

    async def claim() -> bool:
        found.extend(claim.entry for claim in await watch.claim_due())
        return len(found) == WATCH_SHARDS

    await within_its_length(claim, "the entries are due")
    assert set(found) == {f"soon {number}".encode() for number in range(WATCH_SHARDS)}
    latest = await ask(scripts, "ZRANGE", keys.watch(0), -1, -1, "WITHSCORES")
    # What was put for longer is looked at soon: only a look tells what is true by the new time.
    assert float(latest[1]) - await clock_ms(scripts) < 1_000 + HOUR / 1_000


async def test_what_is_checked_from_time_to_time_is_checked_soon(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    await watch.put(b"e", delay_ms=check_after(HOUR), sooner=True)
    await set_back(scripts)
    await watch.put(b"other", delay_ms=HOUR)
    shards = [keys.watch(shard) for shard in range(WATCH_SHARDS)]
    await asyncio.gather(*(scripts.claim_due(key, limit=1, hold_ms=1) for key in shards))
    (due_ms,) = [
        float(score)
        for score in [await ask(scripts, "ZSCORE", key, b"e") for key in shards]
        if score is not None
    ]
    assert 0 < due_ms - check_after(await clock_ms(scripts)) <= 1_000 + HOUR / 1_000


# How a version that knows no band of what is only checked sets a watch list back.
_SET_BACK_EARLIER = """
local time, last = redis.call('TIME'), tonumber(redis.call('GET', KEYS[2]))
local now, soon = time[1] * 1000 + math.floor(time[2] / 1000), 1000
assert(last > now)
local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  local left = all[i + 1] - last
  if left > 5000000000000 then left = soon end
  if left > soon then left = soon + left / 1000 end
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + left), all[i])
end
redis.call('SET', KEYS[2], string.format('%.0f', now), 'PX', 86400000)
"""


@pytest.mark.parametrize("overdue_ms", [-HOUR, 1, HOUR, 365 * 24 * HOUR])
async def test_what_is_only_checked_is_due_soon_if_an_earlier_version_sets_the_list_back(
    scripts: Scripts, keys: Keys, overdue_ms: int
) -> None:
    watch = keys.watch(0)
    due_ms = await clock_ms(scripts) + AHEAD_MS - overdue_ms
    await ask(scripts, "ZADD", watch, check_after(due_ms), b"e")
    await ask(scripts, "PEXPIRE", watch, HOUR)
    await ask(scripts, "SET", f"{watch}:clock", await clock_ms(scripts) + AHEAD_MS, "PX", HOUR)
    await ask(scripts, "EVAL", _SET_BACK_EARLIER, 2, watch, f"{watch}:clock")
    in_ms = float(await ask(scripts, "ZSCORE", watch, b"e")) - await clock_ms(scripts)
    assert in_ms <= 1_000 + HOUR / 1_000


@pytest.mark.parametrize("due_in_ms", [-HOUR, HOUR])
async def test_what_is_only_checked_stays_so_when_the_list_is_set_back(
    scripts: Scripts, keys: Keys, due_in_ms: int
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)
    for entry, score in ((b"check", check_after(now + due_in_ms)), (b"ended", ENDED_MS + now)):
        await ask(scripts, "ZADD", watch, score, entry)
    await set_back(scripts)
    await ask(scripts, "SET", f"{watch}:clock", now + AHEAD_MS, "PX", HOUR)
    reply = await scripts.claim_due(watch, limit=8, hold_ms=HOUR)
    assert reply.facts[1::3] == ([b"check"] if due_in_ms < 0 else [])
    left_ms = round(float(await ask(scripts, "ZSCORE", watch, b"ended"))) - now
    assert left_ms < HOUR
    if due_in_ms > 0:
        next_ms = float(await ask(scripts, "ZSCORE", watch, b"check")) - check_after(now)
        assert 0 < next_ms < HOUR / 10


async def test_an_entry_put_again_does_not_wait_for_the_time_of_before(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    await watch.put(b"e", delay_ms=HOUR)
    await set_back(scripts)
    when = await watch.put(b"e", delay_ms=1)
    assert when - await clock_ms(scripts) < HOUR / 10
    assert await watch.put(b"e", delay_ms=HOUR) > when


async def test_the_task_of_a_dead_worker_is_taken_over_after_a_lease(
    store: RedisStateStore,
) -> None:
    scripts = store.base.scripts
    task = await submitted(store)
    run = await started(store, task, lease_ms=SHORT_MS)
    await set_back(scripts, (run.held.key, "expires"))
    sweeper = sweeper_of(store)

    async def takes_over() -> bool:
        return (await sweeper.run_once()).taken_over == 1

    await within_its_length(takes_over, "the task is given to another worker")
    again = await started(store, task)
    assert again.held.epoch > run.held.epoch


async def claims_set_back(store: RedisStateStore) -> list[int]:
    """Let claims be of a clock that was an hour ahead; return when they were made."""
    scripts, claims = store.base.scripts, claims_of(store)
    tasks = await ask(scripts, "ZRANGE", claims, 0, -1)
    return [int(float(await ask(scripts, "ZINCRBY", claims, AHEAD_MS, task))) for task in tasks]


async def limited(store: RedisStateStore, limit: str) -> None:
    keys = store.base.keys.queue(queue_of(store.settings))
    await store.base.scripts.set_flow(keys, {"limit": limit.encode()})


@pytest.mark.parametrize("limit", ["", "1"])
async def test_a_task_that_a_dead_worker_claimed_and_ran_is_taken_over_after_a_lease(
    store: RedisStateStore, limit: str
) -> None:
    await limited(store, limit)
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    run = await started(store, task, lease_ms=SHORT_MS)
    await set_back(store.base.scripts, (run.held.key, "expires"))
    await claims_set_back(store)
    sweeper = sweeper_of(store)

    async def takes_over() -> bool:
        return (await sweeper.run_once()).taken_over == 1

    await within_its_length(takes_over, "the task is given to another worker")
    await claimed(store, task)


@pytest.mark.parametrize("limit", ["", "1"])
async def test_a_task_that_a_dead_worker_claimed_and_did_not_start_is_given_to_another(
    store: RedisStateStore, limit: str
) -> None:
    await limited(store, limit)
    task = await submitted(store)
    await queued_as(store, task)
    await claimed(store, task)
    (old,) = await claims_set_back(store)
    assert (await sweeper_of(store).run_once()).released == 1
    await claimed(store, task)
    (new,) = (await ask(store.base.scripts, "ZRANGE", claims_of(store), 0, -1, "WITHSCORES"))[1:]
    assert int(new) < old
    # If the first is alive it has no permit any more. The other one has.
    starts = TaskTransitions(store).start
    found = [
        await starts(
            SESSION, task, owner=owner, lease_ms=HOUR, worker=owner, claimed=b"%d" % int(claim)
        )
        for owner, claim in (("old", old), ("new", new))
    ]
    assert isinstance(found[1 if limit else 0], StartedRun)
    assert not limit or isinstance(found[0], NotStarted)


async def test_the_slot_of_a_worker_that_died_before_it_ended_its_claim_is_free_again(
    store: RedisStateStore,
) -> None:
    await limited(store, "1")
    over, next_one = await submitted(store), await submitted(store)
    await queued_as(store, over)
    await claimed(store, over)
    await TaskTransitions(store).finish_run(await started(store, over), TaskStatus.COMPLETE)
    await claims_set_back(store)
    await queued_as(store, next_one)
    await sweeper_of(store).run_once()
    await claimed(store, next_one)


@pytest.mark.parametrize("ahead_ms", [AHEAD_MS, 100_000])
async def test_a_job_that_waits_is_due_once_its_task_is_inspected(
    store: RedisStateStore, ahead_ms: int
) -> None:
    scripts, queue = store.base.scripts, store.base.keys.queue(queue_of(store.settings)).queue
    task = await submitted(store)
    await queued_as(store, task)
    (job,) = await ask(scripts, "ZRANGE", queue, 0, -1)
    await set_back(scripts)
    await ask(scripts, "ZINCRBY", queue, ahead_ms, job)
    sweeper = sweeper_of(store)

    async def is_due() -> bool:
        await sweeper.run_once()
        return float(await ask(scripts, "ZSCORE", queue, job)) <= await clock_ms(scripts)

    await eventually(is_due, "a worker may claim it", timeout_s=60)
    assert await ask(scripts, "ZRANGE", queue, 0, -1) == [job]


@pytest.mark.parametrize("way", [{}, {"limit_key": "k"}, {"in_turn": True, "limit_key": "k"}])
async def test_a_delay_is_no_longer_than_its_length(
    store: RedisStateStore, way: dict[str, Any]
) -> None:
    scripts, queue = store.base.scripts, store.base.keys.queue(queue_of(store.settings))
    for task, wait in (
        ("delay", timedelta(minutes=10)),
        ("soon", timedelta(milliseconds=SHORT_MS)),
    ):
        async with client_of(store) as client:
            await client.submit("answer", session_id=SESSION, task_id=task, delay=wait, **way)
        await _written_ahead(store, task)
    await set_back(scripts)
    sweeper = sweeper_of(store)

    async def is_claimed() -> bool:
        await sweeper.run_once()
        reply = await scripts.claim_jobs(queue, limit=9, life_ms=HOUR)
        found: list[bytes] = reply.facts[3::3]
        assert not any(b"/delay:" in job for job in found)
        return any(b"/soon:" in job for job in found)

    await eventually(is_claimed, "a worker may claim it", timeout_s=60)

    async def is_moved() -> bool:
        await sweeper.run_once()
        (due,) = (await ask(scripts, "ZRANGE", queue.queue, 0, -1, "WITHSCORES"))[1:]
        return float(due) - await clock_ms(scripts) < HOUR / 2

    await eventually(is_moved, "the other one is put off for its length", timeout_s=60)


async def test_a_task_is_not_due_before_the_moment_that_was_given(store: RedisStateStore) -> None:
    scripts, queue = store.base.scripts, store.base.keys.queue(queue_of(store.settings)).queue
    at = datetime.now(UTC) + timedelta(hours=2)
    async with client_of(store) as client:
        await client.submit("answer", session_id=SESSION, task_id="at", at=at)
    await ask(scripts, "HINCRBY", store.base.keys.task(SESSION, "at"), "order", AHEAD_MS * 1_000)
    await set_back(scripts)
    sweeper = sweeper_of(store)

    async def is_inspected() -> bool:
        return (await sweeper.run_once()).looked > 0

    await eventually(is_inspected, "it is inspected", timeout_s=60)
    (due,) = (await ask(scripts, "ZRANGE", queue, 0, -1, "WITHSCORES"))[1:]
    assert float(due) == round(at.timestamp() * 1_000)


async def _written_ahead(store: RedisStateStore, task: str) -> None:
    """Let a task that is put off have been submitted by a clock that was an hour ahead."""
    scripts, key = store.base.scripts, store.base.keys.task(SESSION, task)
    await ask(scripts, "HINCRBY", key, "due", AHEAD_MS)
    await ask(scripts, "HINCRBY", key, "order", AHEAD_MS * 1_000)
    queue = store.base.keys.queue(queue_of(store.settings)).queue
    for job in await ask(scripts, "ZRANGE", queue, 0, -1):
        if f"/{task}:".encode() in job:
            await ask(scripts, "ZINCRBY", queue, AHEAD_MS, job)


async def _sleeps(ctx: TaskContext) -> str:
    await ctx.sleep(_WAIT)
    return "slept"


async def _is_not_decided(ctx: TaskContext) -> Any:
    decision = await ctx.approval("?", timeout=_WAIT, on_timeout="resume", default="late")
    return decision.value


async def _hears_nothing(ctx: TaskContext) -> Any:
    try:
        return await ctx.receive("a", timeout=_WAIT, hold_s=0)
    except ReceiveTimeout:
        return "nothing"


@pytest.mark.parametrize(
    ("handler", "result"),
    [(_sleeps, "slept"), (_is_not_decided, "late"), (_hears_nothing, "nothing")],
)
async def test_a_task_waits_for_no_longer_than_it_said(
    store: RedisStateStore, handler: Handler, result: Any
) -> None:
    scripts, keys = store.base.scripts, store.base.keys
    key, shown = keys.task(SESSION, "t"), False
    async with pool(store, {"h": handler}, lease_s=30.0) as client:
        await client.submit("h", session_id=SESSION, task_id="t")
        await becomes(client, "t", TaskStatus.PAUSED)
        digest = await ask(scripts, "HGET", key, "pause_token")
        if digest:
            token = f"{keys.tasks(SESSION).removesuffix('tasks')}token:{digest.decode()}"
            await set_back(scripts, (token, "opened"), (token, "expires"))
            shown = await ask(scripts, "HGET", token, "state") == b"open"
        else:
            journal = store.tasks.keys(SESSION, "t").journal
            names = [name.decode() for name in await ask(scripts, "HKEYS", journal)]
            due = [(journal, name) for name in names if name.startswith("due:")]
            await set_back(scripts, (key, "waits_until"), *due)
            shown = await ask(scripts, "HGET", key, "status") == b"PAUSED"
        assert await client.result(SESSION, "t", timeout_s=60) == result
    assert shown


async def _works_meanwhile(ctx: TaskContext) -> Any:
    decided = asyncio.Event()

    async def decide() -> Any:
        value = await _is_not_decided(ctx)
        decided.set()
        return value

    return (await asyncio.gather(decide(), ctx.step("work", decided.wait)))[0]


async def test_a_run_whose_step_works_waits_for_no_longer_than_it_said(
    store: RedisStateStore,
) -> None:
    scripts = store.base.scripts
    async with pool(store, {"h": _works_meanwhile}, lease_s=30.0) as client:
        await client.submit("h", session_id=SESSION, task_id="t")
        (pause,) = await eventually(lambda: client.pauses(SESSION), "a pause is open")
        assert pause.pause_id is not None
        token = store.base.keys.session_token(pause.pause_id)
        assert token is not None
        await set_back(scripts, (token, "opened"), (token, "expires"))
        assert await ask(scripts, "HGET", token, "state") == b"open"
        assert await client.result(SESSION, "t", timeout_s=60) == "late"


async def test_a_job_is_claimed_after_the_length_of_a_dead_scheduler_s_claim(
    scripts: Scripts, keys: Keys
) -> None:
    job = job_keys(keys)
    await scripts.save_job(
        job,
        {"document": b"{}"},
        write="w",
        ttl_ms=HOUR,
        job_id="j",
        next_us=1,
        interval_us=None,
        enabled=True,
    )

    async def claim(owner: str) -> Reply:
        return await scripts.claim_job(
            job.job, job.due, owner=owner, lease_ms=SHORT_MS, job_id="j", up_to_us=1
        )

    assert (await claim("dead")).word is ReplyCode.OK
    await set_back(scripts, (job.job, "expires"))

    async def claims() -> bool:
        return (await claim("other")).word is ReplyCode.OK

    await within_its_length(claims, "the job is claimed")


async def test_the_owner_of_an_a2a_task_is_found_dead_after_its_lease(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    begun = (await write(scripts, task, lease_ms=SHORT_MS)).facts[2]
    await set_back(scripts, (task.lease, "expires"))

    async def ends() -> bool:
        found = await scripts.read_a2a_task(task)
        owner, epoch, left_ms = found.facts[:3]
        assert (owner, epoch) == (b"me", begun)
        assert left_ms <= SHORT_MS
        ended = await write(
            scripts, task, rule="open", write="end", phase="e", owner="", epoch=int(epoch)
        )
        return ended.word is ReplyCode.OK

    await within_its_length(ends, "the task is ended")
