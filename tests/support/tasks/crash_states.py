"""Tasks left half done, as each kind of crash leaves them, and what one sees of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from redis_state import RedisStateStore
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.primitives.watchlist import watchlist
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.report import SweepReport
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import MAX_CRASHES, TaskTransitions
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions
from redis_state.worker.tasks.waitpoints.pause_model import PauseOptions, PauseRequest, pause_token
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import SESSION, arq_key, key_of_queue, queue_of, queued
from tests.support.scripts.replies import clock_ms, clock_passes

MARK_MS = 310_000
_queues: list[Queue] = []


def sweeper_of(store: RedisStateStore, **options: Any) -> Sweeper:
    """Make a sweeper on the test's queue. Its patience is 100 ms."""
    queue = Queue(store, name=queue_of(store.settings))
    _queues.append(queue)
    chosen: dict[str, Any] = {"lease_ms": 400, **options}
    return Sweeper(store, queue, **chosen)


def claims_of(store: RedisStateStore) -> str:
    """Name the key of what workers have claimed from the test's queue."""
    return store.base.keys.queue(queue_of(store.settings)).claims


async def close_queues() -> None:
    """Disconnect what the sweepers of this test used."""
    while _queues:
        await _queues.pop().aclose()


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    """Send a plain command."""
    return await store.transport.sender.send(*command, repeatable=True)


def due_at_once(score: bytes) -> int:
    """Return the time of an entry that is due now. It stays in its band."""
    return 1 + int(float(score) - watchlist.time_of(score))


async def make_due(store: RedisStateStore, entry: bytes) -> None:
    """Have an entry looked at now, if it is there."""
    for shard in range(WATCH_SHARDS):
        key = store.base.keys.watch(shard)
        was: bytes | None = await send(store, "ZSCORE", key, entry)
        if was is not None:
            await send(store, "ZADD", key, "XX", due_at_once(was), entry)


async def unmark(store: RedisStateStore, entry: bytes) -> None:
    """Have an entry due that says nothing of an end, if it is there."""
    for shard in range(WATCH_SHARDS):
        await send(store, "ZADD", store.base.keys.watch(shard), "XX", 1, entry)


async def forget_entry(store: RedisStateStore, entry: bytes) -> None:
    """Drop an entry, as a server that evicts may."""
    for shard in range(WATCH_SHARDS):
        await send(store, "ZREM", store.base.keys.watch(shard), entry)


async def entry_in_ms(store: RedisStateStore, entry: bytes) -> float | None:
    """Tell in how many ms an entry is due; None if it is not there."""
    now = await clock_ms(store.base.scripts)
    for shard in range(WATCH_SHARDS):
        when = await send(store, "ZSCORE", store.base.keys.watch(shard), entry)
        if when is not None:
            return watchlist.time_of(when) - now
    return None


async def seen(store: RedisStateStore, task: str) -> dict[str, Any]:
    """See all that a sweep could change about a task, but for the time of its entry."""
    keys = store.tasks.keys(SESSION, task)
    record = await store.tasks.load_fields(SESSION, task)
    payloads, marks = (
        [arq_key(store, kind, task, epoch) for epoch in range(4)] for kind in ("job", "in-progress")
    )
    return {
        "record": record and record.fields,
        "lease": await send(store, "HGETALL", keys.lease),
        "journal": await send(store, "HGETALL", keys.journal),
        "updates": [update.update_id for update in await store.list_updates(SESSION)],
        "queue": await queued(store),
        "claims": await send(store, "ZRANGE", claims_of(store), 0, -1),
        "payloads": [await send(store, "EXISTS", name) for name in payloads],
        "marks": [await send(store, "GET", name) for name in marks],
        "watched": await entry_in_ms(store, watch_entry(SESSION, task)) is not None,
        "dead": await send(store, "ZRANGE", store.base.keys.dead_tasks(), 0, -1),
    }


async def submitted(
    store: RedisStateStore, *, handler: str = "answer", session: str = SESSION
) -> str:
    """Create a task as a client does that dies before it queues it."""
    task = uuid4().hex[:8]
    snapshot = TaskContextSnapshot(session_id=session, task_id=task)
    state = TaskState(task, session, TaskStatus.PENDING, TaskType.BACKGROUND, 0, snapshot)
    queue = queue_of(store.settings)
    assert await NewTasks(store).create(state, handler=handler, task_input=None, queue=queue)
    return task


async def queued_as(store: RedisStateStore, task: str, *, runs: int = 0) -> None:
    """Queue it."""
    await Queue(store, name=queue_of(store.settings)).put(Job(SESSION, task, runs, 0))


async def claimed(store: RedisStateStore, task: str) -> None:
    """Claim its job as a worker does that dies before it starts the task."""
    queue = Queue(store, name=queue_of(store.settings))
    jobs = await queue.claim(queue.name, limit=100)
    assert task in [job.task.task_id for job in jobs if job.task is not None]


async def picked(store: RedisStateStore, task: str, *, runs: int = 0) -> None:
    """Mark a job as arq does when a worker picks it, which then dies."""
    await send(store, "SET", arq_key(store, "in-progress", task, runs), "1", "PX", MARK_MS)


async def started(store: RedisStateStore, task: str, *, lease_ms: int = 60_000) -> StartedRun:
    """Start it."""
    found = await TaskTransitions(store).start(
        SESSION, task, owner=uuid4().hex, lease_ms=lease_ms, worker="w"
    )
    assert isinstance(found, StartedRun)
    return found


async def orphaned(store: RedisStateStore) -> str:
    """Have a worker die while it runs a task; its lease has run out."""
    task = await submitted(store)
    await queued_as(store, task)
    await picked(store, task)
    await started(store, task, lease_ms=1)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    return task


async def given_up(store: RedisStateStore, *, handler: str = "answer") -> str:
    """Have workers die while they run a task, until it is given up."""
    task = await submitted(store, handler=handler)
    for _ in range(MAX_CRASHES + 1):
        await started(store, task, lease_ms=1)
        await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    found = await TaskTransitions(store).start(
        SESSION, task, owner="the last", lease_ms=60_000, worker="w"
    )
    assert isinstance(found, NotStarted)
    return task


async def handed_over(store: RedisStateStore) -> str:
    """Have a worker set a task pending and die before its job is in the queue again."""
    task = await submitted(store)
    await TaskTransitions(store).finish_run(await started(store, task), TaskStatus.PENDING)
    return task


async def paused(
    store: RedisStateStore, *, timeout: timedelta | None = None, overdue: bool = False
) -> tuple[str, str]:
    """Have a worker pause a task; give its token too. An overdue one has just become that."""
    task = await submitted(store)
    run = await started(store, task)
    return task, await pause(store, run, timeout=timeout, overdue=overdue)


async def pause(
    store: RedisStateStore,
    run: StartedRun,
    *,
    timeout: timedelta | None = None,
    overdue: bool = False,
) -> str:
    """Have a run pause its task; give the token."""
    options = PauseOptions(name="x") if timeout is None else PauseOptions(name="x", timeout=timeout)
    question = PauseRequest.read(store.settings, "why", None, options, reveal=True)
    await TaskPauses(store).open(run, "pause:x#1", question)
    assert await TaskPauses(store).wait(run, "pause:x#1") is None
    token = pause_token(run, "pause:x#1")
    if overdue:
        key = store.base.keys.session_token(token)
        assert key is not None
        await send(store, "HSET", key, "expires", 1)
    return token


async def decided(store: RedisStateStore) -> str:
    """Decide a pause as a client does that dies before it queues the task."""
    task, token = await paused(store)
    await decide(store, token)
    return task


async def decide(store: RedisStateStore, token: str, *, actor: str = "ann") -> None:
    """Approve, and queue nothing."""
    await PauseDecisions(store).decide(token, approved=True, value=None, actor=actor)


async def sweep(store: RedisStateStore, task: str, **options: Any) -> SweepReport:
    """Look at a task now, and once more: the second time nothing may change."""
    await make_due(store, watch_entry(SESSION, task))
    sweeper = sweeper_of(store, **options)
    report = await sweeper.run_once()
    assert report.looked == 1
    after = await seen(store, task)
    await make_due(store, watch_entry(SESSION, task))
    again = await sweeper.run_once()
    # Only an entry that two looks in a row have found to be over is taken out.
    status = await store.tasks.look(SESSION, task)
    over = status is None or status.status.is_terminal or not status.ours
    assert again == SweepReport(looked=int(after["watched"]), dropped=after["watched"] and over)
    watched = after["watched"] and not again.dropped
    assert await seen(store, task) == after | {"watched": watched}
    return report


async def status_of(store: RedisStateStore, task: str) -> str | None:
    """Return the status of a task; None if it is gone."""
    state = await store.tasks.load(SESSION, task)
    return None if state is None else state.status.value


async def payload_gone(store: RedisStateStore) -> str:
    """Submit and queue a task, and remove its job's payload."""
    task = await submitted(store)
    await queued_as(store, task)
    await send(store, "DEL", arq_key(store, "job", task))
    return task


async def all_flushed(store: RedisStateStore) -> str:
    """Submit and queue a task, and remove the queue with its job's payload."""
    task = await payload_gone(store)
    await send(store, "DEL", key_of_queue(store.settings))
    return task
