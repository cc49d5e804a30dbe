"""Runs of a task without a queue: each begins as a worker's does, and is followed by the next."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.primitives.lease import Leases, new_owner
from redis_state.testing import eventually
from redis_state.worker import Handler, StepPolicy
from redis_state.worker.queue.jobs.job import JobPayload, RunAgain
from redis_state.worker.runs.config import RunConfig
from redis_state.worker.runs.run_task import run_task
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.recorded.journal import Journals
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION

TASK = "t"


async def make(store: RedisStateStore, task_id: str = TASK) -> None:
    """Write a task down that waits, and queue nothing."""
    state = TaskState(
        task_id=task_id,
        session_id=SESSION,
        status=TaskStatus.PENDING,
        task_type=TaskType.BACKGROUND,
        priority=0,
        context_snapshot=TaskContextSnapshot(session_id=SESSION, task_id=task_id),
    )
    assert await NewTasks(store).create(state, handler="h", task_input=None)


async def record_step(store: RedisStateStore, started: StartedRun, entry: str, result: Any) -> Any:
    """Note a step's result below the context, which is polite; return what the journal holds."""
    keys = store.tasks.keys(started.state.session_id, started.state.task_id)
    journals = Journals(store.base)
    return (await journals.record_step(keys, entry, result, run=started.replay))[1]


async def run_once(
    store: RedisStateStore,
    handler: Handler,
    *,
    steps: StepPolicy | None = None,
    task_id: str = TASK,
    lease_s: float = 60.0,
) -> TaskState:
    """Run a task once; return it as it then is."""
    await run_unread(store, handler, steps=steps, task_id=task_id, lease_s=lease_s)
    state = await store.tasks.load(SESSION, task_id)
    assert state is not None
    return state


async def run_unread(
    store: RedisStateStore,
    handler: Handler,
    *,
    steps: StepPolicy | None = None,
    task_id: str = TASK,
    lease_s: float = 60.0,
) -> None:
    """Run a task once, also one that cannot be read behind it."""
    leases = Leases(store.base.scripts, keep_ms=60_000)
    terms = RunConfig({"h": handler}, "worker", lease_s, 60.0, 70.0, leases, steps=steps)
    with suppress(RunAgain):
        await run_task(store, terms, JobPayload(SESSION, task_id), queue="q")


async def run_to_the_end(
    store: RedisStateStore,
    handler: Handler,
    *,
    steps: StepPolicy | None = None,
    task_id: str = TASK,
) -> TaskState:
    """Run a new task again and again until it is over."""
    await make(store, task_id)
    for _ in range(50):
        state = await run_once(store, handler, steps=steps, task_id=task_id)
        if state.status.is_terminal:
            return state
    raise AssertionError("it is never over")


def begin_again() -> NoReturn:
    """End this run: the task is handed back, and its next run begins at the handler's start."""
    raise BackendUnavailable("test", "this run ends here")


async def take(store: RedisStateStore, task_id: str = TASK) -> StartedRun:
    """Begin a run whatever the lease says, as after a worker's death."""
    lease = store.base.keys.lease(SESSION, task_id)
    await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
    started = await TaskTransitions(store).start(
        SESSION, task_id, owner=new_owner(), lease_ms=60_000, worker="worker"
    )
    assert isinstance(started, StartedRun)
    return started


async def steal(
    store: RedisStateStore, task_id: str, *, owner: str = "thief", lease_ms: int = 60_000
) -> StartedRun:
    """Take a task over from a run that goes on, and may renew its lease at any moment."""
    lease = store.base.keys.lease(SESSION, task_id)

    async def stolen() -> StartedRun | None:
        await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
        started = await TaskTransitions(store).start(
            SESSION, task_id, owner=owner, lease_ms=lease_ms, worker=owner
        )
        return started if isinstance(started, StartedRun) else None

    started = await eventually(stolen, f"{task_id} is taken over")
    assert started is not None
    return started


async def renewed(store: RedisStateStore, task_id: str = TASK) -> None:
    """Wait until the lease of a run has been renewed twice since now."""
    lease, seen = store.base.keys.lease(SESSION, task_id), set[Any]()

    async def twice() -> bool:
        seen.add(await store.transport.sender.send("HGET", lease, "expires", repeatable=True))
        return len(seen) > 2

    await eventually(twice, f"the lease of {task_id} is renewed")


async def parts_left(store: RedisStateStore, task_id: str = TASK) -> list[Any]:
    """Name the chunks that a task's journal holds."""
    journal = store.base.keys.journal(SESSION, task_id)
    names: list[bytes] = await store.transport.sender.send("HKEYS", journal, repeatable=True)
    return [name for name in names if name.startswith(b"part:")]
