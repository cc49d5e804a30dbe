from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidTransition, LeaseLost, TokenUnknown
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.transport.keys import pause_id_of
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.deciding import Decided, PauseDecisions
from redis_state.worker.tasks.waitpoints.pause_model import (
    Decision,
    PauseRequest,
    decision_of,
    pause_token,
)
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import SESSION, statuses, updates_of
from tests.support.servers.faults import run_processes
from tests.support.tasks.runs import record_step

ENDS = (TaskStatus.COMPLETE, TaskStatus.FAILED, TaskStatus.CANCELLED)


@pytest.fixture
def life(store: RedisStateStore) -> TaskTransitions:
    return TaskTransitions(store)


async def create(life: TaskTransitions, task_id: str = "t") -> bool:
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id=task_id)
    state = TaskState(task_id, SESSION, TaskStatus.PENDING, TaskType.BACKGROUND, 3, snapshot)
    return await NewTasks(life._store).create(state, handler="h", task_input={"n": 1})


async def try_start(
    life: TaskTransitions, owner: str = "one", *, task_id: str = "t", lease_ms: int = 60_000
) -> StartedRun | NotStarted:
    return await life.start(SESSION, task_id, owner=owner, lease_ms=lease_ms, worker=owner)


async def started(life: TaskTransitions, owner: str = "one", **options: Any) -> StartedRun:
    found = await try_start(life, owner, **options)
    assert isinstance(found, StartedRun)
    return found


async def paused(life: TaskTransitions, store: RedisStateStore, task_id: str = "t") -> str:
    await create(life, task_id)
    return await pause(store, await started(life, task_id=task_id))


async def pause(store: RedisStateStore, run: StartedRun) -> str:
    pausing = TaskPauses(store)
    requested = PauseRequest.read(store.settings, "why", {"q": 1}, {"name": "x"}, reveal=True)
    assert (await pausing.open(run, "pause:x#1", requested))["state"] == "open"
    assert await pausing.wait(run, "pause:x#1") is None
    return pause_token(run, "pause:x#1")


async def status(store: RedisStateStore, task_id: str = "t") -> str:
    state = await store.tasks.load(SESSION, task_id)
    assert state is not None
    return state.status.value


async def in_state(life: TaskTransitions, store: RedisStateStore, wanted: TaskStatus) -> None:
    if wanted is TaskStatus.PAUSED:
        await paused(life, store)
        return
    await create(life)
    if wanted is not TaskStatus.PENDING:
        run = await started(life)
        if wanted is not TaskStatus.RUNNING:
            await life.finish_run(run, wanted)


async def test_a_task_is_created_once_and_started_with_its_input(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    assert await create(life)
    assert not await create(life)
    run = await started(life)
    assert (run.handler, run.input, run.attempts) == ("h", {"n": 1}, 1)
    assert (run.state.status, run.state.priority, run.journal) == (TaskStatus.RUNNING, 3, {})
    assert await statuses(store, "t") == ["PENDING", "RUNNING"]
    reported = (await updates_of(store, "t"))[-1]
    assert reported.content == {"status": "RUNNING", "worker": "one"}


async def test_who_comes_second_is_told_how_long_the_lease_runs(life: TaskTransitions) -> None:
    await create(life)
    await started(life)
    found = await try_start(life, "two")
    assert isinstance(found, NotStarted)
    assert found.reason == "held"
    assert 50_000 < found.left_ms <= 60_000


@pytest.mark.parametrize("wanted", [TaskStatus.PAUSED, *ENDS])
async def test_a_task_that_is_not_to_be_run_is_not_started(
    life: TaskTransitions, store: RedisStateStore, wanted: TaskStatus
) -> None:
    await in_state(life, store, wanted)
    assert await try_start(life, "two") == NotStarted(wanted.value)


async def test_a_task_that_is_not_there_is_not_started(life: TaskTransitions) -> None:
    assert await try_start(life) == NotStarted("missing")


@pytest.mark.parametrize("end", ENDS)
async def test_a_run_ends_its_task_once(
    life: TaskTransitions, store: RedisStateStore, end: TaskStatus
) -> None:
    await create(life)
    run = await started(life)
    await life.finish_run(run, end, result=[1], error="why")
    with pytest.raises(InvalidTransition) as caught:
        await life.finish_run(run, TaskStatus.COMPLETE)
    assert caught.value.current == end.value
    state = await store.tasks.load(SESSION, "t")
    assert state is not None
    assert (state.status, state.result, state.error) == (end, [1], "why")
    assert await statuses(store, "t") == ["PENDING", "RUNNING", end.value]


async def test_a_task_handed_over_is_started_under_the_next_epoch(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    await create(life)
    first = await started(life)
    await life.finish_run(first, TaskStatus.PENDING)
    second = await started(life, "two")
    assert second.held.epoch > first.held.epoch
    assert second.attempts == 2
    with pytest.raises(LeaseLost) as caught:
        await life.finish_run(first, TaskStatus.COMPLETE, result="stale")
    epochs = (first.held.epoch, second.held.epoch)
    assert (caught.value.epoch, caught.value.current) == epochs
    with pytest.raises(LeaseLost):
        await record_step(store, first, "step:x#1", "stale")
    with pytest.raises(LeaseLost):
        await TaskChanges(store).set_priority(first, 9)
    with pytest.raises(LeaseLost):
        await pause(store, first)
    with pytest.raises(LeaseLost):
        await TaskPauses(store).wait(first, "pause:x#1")
    assert await status(store) == "RUNNING"
    assert await record_step(store, second, "step:x#1", (1, 2)) == [1, 2]


@pytest.mark.parametrize("waiting", [TaskStatus.PENDING, TaskStatus.PAUSED])
async def test_a_task_that_waits_can_be_cancelled(
    life: TaskTransitions, store: RedisStateStore, waiting: TaskStatus
) -> None:
    await in_state(life, store, waiting)
    state = await store.tasks.load(SESSION, "t")
    assert state is not None
    assert await life.cancel(state, "enough")
    assert await status(store) == "CANCELLED"
    with pytest.raises(InvalidTransition):
        await life.cancel(state, "again")


async def test_a_task_that_runs_is_cancelled_by_its_worker_only(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    await create(life)
    run = await started(life)
    assert not await life.cancel(run.state, "enough")
    assert await status(store) == "RUNNING"


async def test_a_pause_frees_the_lease_and_is_told_with_its_token(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    token = await paused(life, store)
    reported = await updates_of(store, "t")
    assert [update.update_type.value for update in reported[-2:]] == ["CHECKPOINT", "STATUS_CHANGE"]
    requested = {"reason": "why", "pause_id": pause_id_of(token), "payload": {"q": 1}}
    assert reported[-2].content == requested | {"pause": "x", "tags": []}
    assert await status(store) == "PAUSED"
    decided = await PauseDecisions(store).decide(token, approved=True, value={"n": 2}, actor="ann")
    assert decided == Decided(SESSION, "t")
    run = await started(life, "two")
    decision = decision_of("pause:x#1", run.journal["pause:x#1"])
    assert decision == Decision(approved=True, value={"n": 2}, actor="ann")
    reported = await updates_of(store, "t")
    assert reported[-2].content == {
        "status": "PENDING",
        "pause": "x",
        "approved": True,
        "actor": "ann",
    }


async def test_a_token_is_refused_once_its_task_is_gone_or_over(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    token = await paused(life, store)
    state = await store.tasks.load(SESSION, "t")
    assert state is not None
    await life.cancel(state, None)
    with pytest.raises(InvalidTransition):
        await PauseDecisions(store).decide(token, approved=True, value=None, actor="ann")
    await store.clear_session(SESSION)
    with pytest.raises(TokenUnknown):
        await PauseDecisions(store).decide(token, approved=True, value=None, actor="ann")


async def test_only_a_task_that_waits_gets_a_new_priority_at_once(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    assert await TaskChanges(store).prioritize(SESSION, "t", 9) is None
    await create(life)
    waiting = await TaskChanges(store).prioritize(SESSION, "t", 5)
    assert waiting is not None
    assert (waiting.attempts, waiting.priority, waiting.queue) == (0, 5, None)
    run = await started(life)
    assert await TaskChanges(store).prioritize(SESSION, "t", 9) is None
    await TaskChanges(store).set_priority(run, 8)
    await life.finish_run(run, TaskStatus.PENDING)
    waiting = await TaskChanges(store).prioritize(SESSION, "t", 9)
    assert waiting is not None
    assert (waiting.attempts, waiting.priority, waiting.queue) == (1, 9, None)
    state = await store.tasks.load(SESSION, "t")
    assert state is not None
    assert state.priority == 9


# Races


async def test_of_many_who_start_one_task_one_runs_it(life: TaskTransitions) -> None:
    await create(life)
    found = await asyncio.gather(*(try_start(life, f"w{n}") for n in range(50)))
    assert sum(isinstance(one, StartedRun) for one in found) == 1


async def test_finishing_and_cancelling_and_starting_leave_one_end(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    ends: Counter[str] = Counter()
    for number in range(30):
        task_id = f"t{number}"
        await create(life, task_id)
        state = await store.tasks.load(SESSION, task_id)
        assert state is not None

        async def run(task_id: str) -> None:
            found = await try_start(life, task_id=task_id)
            if isinstance(found, StartedRun):
                await life.finish_run(found, TaskStatus.COMPLETE)

        calls = [run(task_id), life.cancel(state, None)]
        await asyncio.gather(*(calls if number % 2 else calls[::-1]))
        reported = await statuses(store, task_id)
        assert sum(TaskStatus(one).is_terminal for one in reported) == 1
        ends[reported[-1]] += 1
        assert await status(store, task_id) == reported[-1]
    assert len(ends) == 2


async def test_resolving_against_cancelling_has_one_winner(
    life: TaskTransitions, store: RedisStateStore
) -> None:
    for number in range(20):
        task_id = f"t{number}"
        token = await paused(life, store, task_id)
        state = await store.tasks.load(SESSION, task_id)
        assert state is not None
        calls: list[Any] = [
            PauseDecisions(store).decide(token, approved=True, value=None, actor="ann"),
            life.cancel(state, None),
        ]
        if number % 2:
            calls.reverse()
        found = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in found if isinstance(one, InvalidTransition)]
        # A cancel that comes after the resume finds the task pending, and ends it all the same.
        assert len(refused) <= 1
        assert await status(store, task_id) == "CANCELLED"


@pytest.mark.slow
async def test_between_four_processes_each_task_and_each_token_has_one_winner(
    life: TaskTransitions, store: RedisStateStore, settings: Settings
) -> None:
    tasks = [f"new-{number}" for number in range(60)]
    for task in tasks:
        await create(life, task)
    tokens = [await paused(life, store, f"paused-{number}") for number in range(60)]
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "tasks": tasks,
        "tokens": tokens,
        "callers": 5,
    }
    arguments = [argument | {"name": f"p{number}"} for number in range(4)]
    wins: Counter[str] = Counter()
    for result in await run_processes("race_tasks", arguments):
        wins.update([*result["started"], *result["resumed"]])
    assert wins == Counter(dict.fromkeys([*tasks, *tokens], 1))
