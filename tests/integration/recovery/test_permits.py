"""A permit goes to another task only once the run that had it can begin and write no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases, new_owner
from redis_state.worker import TaskClient
from redis_state.worker.queue.jobs.job import ClaimedJob, Job, QueueState
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.permits import queue_again
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of, queue_of
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.crash_states import close_queues, forget_entry, make_due, sweeper_of

pytestmark = pytest.mark.worker

_LEASE_MS = 60_000


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    await close_queues()


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def _claim(store: RedisStateStore) -> list[ClaimedJob]:
    queue = Queue(store, name=queue_of(store.settings))
    return await queue.claim(queue.name, limit=10)


async def _start(
    store: RedisStateStore, job: ClaimedJob, *, lease_ms: int = _LEASE_MS
) -> StartedRun | NotStarted:
    assert job.task is not None
    return await TaskTransitions(store).start(
        SESSION,
        job.task.task_id,
        owner=new_owner(),
        lease_ms=lease_ms,
        worker="w",
        claimed=job.claimed,
    )


async def _sweep(store: RedisStateStore, task: str) -> None:
    """Sweep as a worker does, once what is claimed now is older than its patience."""
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 150)
    await make_due(store, watch_entry(SESSION, task))
    await sweeper_of(store).run_once()


def _names(jobs: list[ClaimedJob]) -> list[str]:
    return [job.task.task_id for job in jobs if job.task is not None]


async def _first_and_more_urgent(client: TaskClient, key: str | None) -> tuple[ClaimedJob, str]:
    """Claim one task of a queue that runs one at a time, and submit one that goes before it."""
    store = client.store
    await client.queues.limit(queue_of(store.settings), running=1 if key is None else None)
    await client.queues.limit(queue_of(store.settings), per_key=None if key is None else 1)
    task = await client.submit("work", session_id=SESSION, limit_key=key)
    [job] = await _claim(store)
    urgent = await client.submit("work", session_id=SESSION, limit_key=key, priority=1)
    assert _names([job]) == [task]
    assert await _claim(store) == []
    return job, urgent


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_run_whose_permit_is_anothers_cannot_renew_its_lease(
    store: RedisStateStore, client: TaskClient, key: str | None
) -> None:
    job, urgent = await _first_and_more_urgent(client, key)
    stalled = await _start(store, job, lease_ms=1)
    assert isinstance(stalled, StartedRun)
    leases = Leases(store.base.scripts, keep_ms=_LEASE_MS)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    await _sweep(store, stalled.state.task_id)
    [other] = await _claim(store)
    assert _names([other]) == [urgent]
    with pytest.raises(LeaseLost) as lost:
        await leases.renew(stalled.held, duration_ms=_LEASE_MS)
    assert not lost.value.released
    with pytest.raises(LeaseLost):
        await TaskTransitions(store).finish_run(stalled, TaskStatus.COMPLETE)
    # Its worker counts as dead, and the task is another's after the more urgent one.
    await Queue(store, name=queue_of(store.settings)).end(other.queue, [(other, None)])
    [again] = await _claim(store)
    taken_over = await _start(store, again)
    assert isinstance(taken_over, StartedRun)
    assert (taken_over.state.task_id, taken_over.crashes) == (stalled.state.task_id, 1)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_run_that_renewed_its_lease_before_the_sweep_keeps_its_permit(
    store: RedisStateStore, client: TaskClient, key: str | None
) -> None:
    job, _ = await _first_and_more_urgent(client, key)
    stalled = await _start(store, job, lease_ms=1)
    assert isinstance(stalled, StartedRun)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    leases = Leases(store.base.scripts, keep_ms=_LEASE_MS)
    await leases.renew(stalled.held, duration_ms=_LEASE_MS)
    await _sweep(store, stalled.state.task_id)
    assert await _claim(store) == []
    await TaskTransitions(store).finish_run(stalled, TaskStatus.COMPLETE)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_worker_that_stalls_before_the_start_does_not_start_what_lost_its_permit(
    store: RedisStateStore, client: TaskClient, key: str | None
) -> None:
    job, urgent = await _first_and_more_urgent(client, key)
    assert job.task is not None
    await _sweep(store, job.task.task_id)
    [other] = await _claim(store)
    assert _names([other]) == [urgent]
    assert await _start(store, job) == NotStarted("PENDING")
    await Queue(store, name=queue_of(store.settings)).end(other.queue, [(other, None)])
    [again] = await _claim(store)
    assert isinstance(await _start(store, again), StartedRun)


async def test_a_run_of_a_queue_without_limits_keeps_its_task_until_another_starts_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    task = await client.submit("work", session_id=SESSION)
    [job] = await _claim(store)
    stalled = await _start(store, job, lease_ms=1)
    assert isinstance(stalled, StartedRun)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
    await _sweep(store, task)
    leases = Leases(store.base.scripts, keep_ms=_LEASE_MS)
    await leases.renew(stalled.held, duration_ms=_LEASE_MS)
    [again] = await _claim(store)
    refused = await _start(store, again)
    assert isinstance(refused, NotStarted)
    assert refused.reason == "held"
    await TaskTransitions(store).finish_run(stalled, TaskStatus.COMPLETE)


class _SlowQueue(Queue):
    """A sweeper's queue between whose two steps others do something."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def _ensure(self, job: Job, patience_ms: int) -> tuple[QueueState, int]:
        found = await super()._ensure(job, patience_ms)
        if self.meanwhile is not None:
            do, self.meanwhile = self.meanwhile, None
            await do()
        return found


async def _looked_at_by_two(
    store: RedisStateStore, job: ClaimedJob, between: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Let one sweeper do all between the two steps of another, and something more behind that."""
    assert job.task is not None
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 150)
    look = await store.tasks.look(SESSION, job.task.task_id)
    assert look is not None
    slow = _SlowQueue(store, name=queue_of(store.settings))
    other, transitions = Queue(store, name=queue_of(store.settings)), TaskTransitions(store)

    async def meanwhile() -> None:
        assert await queue_again(store, transitions, other, [look], patience_ms=100) != [
            QueueState.HELD
        ]
        if between is not None:
            await between()

    slow.meanwhile = meanwhile
    await queue_again(store, transitions, slow, [look], patience_ms=100)
    assert slow.meanwhile is None


@pytest.mark.parametrize("key", [None, "k"])
async def test_two_sweepers_of_one_claim_let_its_worker_not_begin(
    store: RedisStateStore, client: TaskClient, key: str | None
) -> None:
    job, urgent = await _first_and_more_urgent(client, key)
    await _looked_at_by_two(store, job)
    [other] = await _claim(store)
    assert _names([other]) == [urgent]
    assert isinstance(await _start(store, other), StartedRun)
    assert await _start(store, job) == NotStarted("PENDING")


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_slow_sweeper_leaves_a_newer_claim_its_right(
    store: RedisStateStore, client: TaskClient, key: str | None
) -> None:
    await client.queues.limit(queue_of(store.settings), running=1 if key is None else None)
    await client.queues.limit(queue_of(store.settings), per_key=None if key is None else 1)
    await client.submit("work", session_id=SESSION, limit_key=key)
    [job] = await _claim(store)
    newer: list[ClaimedJob] = []

    async def claim() -> None:
        newer.extend(await _claim(store))

    await _looked_at_by_two(store, job, claim)
    [again] = newer
    assert isinstance(await _start(store, again), StartedRun)


@pytest.mark.parametrize("lost", ["unreachable", "restored"])
async def test_a_claim_that_outlived_its_task_is_ended_whatever_was_inspected_before(
    store: RedisStateStore, client: TaskClient, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    job, _ = await _first_and_more_urgent(client, "k")
    started = await _start(store, job)
    assert isinstance(started, StartedRun)
    task, drop_claims, refused = started.state.task_id, Queue.drop_claims, list[object]()
    entry = watch_entry(SESSION, task)

    async def unreachable(_: Queue, *named: object, **__: object) -> None:
        refused.append(named)
        raise BackendUnavailable("redis://somewhere", "away")

    history = QueueHistory(store, Queue(store, name=queue_of(store.settings)))
    sweeper = sweeper_of(store, history=history)
    await history.run_once()
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 150)
    await sweeper.run_once()
    await TaskTransitions(store).finish_run(started, TaskStatus.COMPLETE)
    if lost == "unreachable":
        monkeypatch.setattr(Queue, "drop_claims", unreachable)
        for _ in range(2):
            await make_due(store, entry)
            with pytest.raises(BackendUnavailable):
                await sweeper.run_once()
        assert len(refused) == 2
        monkeypatch.setattr(Queue, "drop_claims", drop_claims)
    else:
        await client.drop_queue()
    await forget_entry(store, entry)
    assert (await client.queues.get(queue_of(store.settings))).running == 1
    await history.run_once()
    await sweeper.run_once()
    assert (await client.queues.get(queue_of(store.settings))).running == 0
