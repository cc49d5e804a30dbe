from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from redis_state import InvalidField, InvalidTransition, LeaseLost, RedisStateStore, Settings
from redis_state.models import (
    A2A,
    ASAP,
    TaskContextSnapshot,
    TaskPhase,
    TaskState,
    TaskStatus,
    TaskType,
    can_transition,
)
from redis_state.scripts import Fence
from tests.support.hosts import Host
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import fields, lives, outcome
from tests.support.scripts.tasks import epoch_of, start
from tests.support.servers.faults import run_processes
from tests.support.sizes import sizes


async def save_task(
    store: RedisStateStore, task_id: str = "t", status: TaskStatus = TaskStatus.PENDING
) -> None:
    snapshot = TaskContextSnapshot(session_id="s", task_id=task_id)
    await store.save_task(TaskState(task_id, "s", status, TaskType.FOREGROUND, 0, snapshot))


async def path_of(store: RedisStateStore, task_id: str) -> list[str]:
    updates = await store.list_updates("s", task_id=task_id)
    contents: list[dict[str, Any]] = [update.content for update in updates]
    return [content.get("phase", content["status"]) for content in contents]


async def test_a_task_goes_its_way_in_a_protocols_words_and_its_session_is_told(
    store: RedisStateStore,
) -> None:
    await save_task(store)
    for word in ("working", "input_required", "working"):
        moved = await store.transitions.move("s", "t", word, words=ASAP)
        assert moved.status.value == ASAP.phase(word).status.value
    done = await store.transitions.move("s", "t", "completed", words=ASAP, result={"n": 1})
    assert (done.status, done.result) == (TaskStatus.COMPLETE, {"n": 1})
    assert await store.list_tasks("s") == [done]
    assert await path_of(store, "t") == ["RUNNING", "PAUSED", "RUNNING", "COMPLETE"]
    left = (await lives(store.base.scripts, store.tasks.keys("s", "t").task))[0]
    assert 0 < left <= store.settings.finished_task_ttl.total_seconds() * 1000


async def test_what_a_protocol_says_more_finely_is_kept(store: RedisStateStore) -> None:
    await save_task(store, status=TaskStatus.RUNNING)
    assert await store.transitions.phase("s", "t") is TaskPhase.RUNNING
    waiting = await store.transitions.move("s", "t", "auth-required", words=A2A)
    assert waiting.status is TaskStatus.PAUSED
    assert await store.transitions.phase("s", "t") is TaskPhase.AUTH_REQUIRED
    await store.transitions.move("s", "t", "rejected", words=A2A, error="not you")
    assert await store.transitions.phase("s", "t") is TaskPhase.REJECTED
    with pytest.raises(InvalidTransition) as caught:
        await store.transitions.move("s", "t", "working", words=A2A)
    assert (caught.value.current, caught.value.wanted) == ("rejected", "working")
    with pytest.raises(InvalidTransition) as caught:
        await store.transitions.move("s", "t", "working", words=ASAP)
    assert (caught.value.current, caught.value.wanted) == ("failed", "working")
    assert await path_of(store, "t") == ["AUTH_REQUIRED", "REJECTED"]


async def test_what_cannot_be_moved_is_said_and_stays(store: RedisStateStore) -> None:
    await save_task(store)
    with pytest.raises(InvalidTransition, match="'u' is missing") as caught:
        await store.transitions.move("s", "u", "RUNNING")
    assert (caught.value.task_id, caught.value.current) == ("u", "missing")
    with pytest.raises(InvalidTransition, match="missing"):
        await store.transitions.move("other", "t", "RUNNING")
    with pytest.raises(InvalidTransition, match="is submitted: it cannot become completed"):
        await store.transitions.move("s", "t", "completed", words=ASAP)
    with pytest.raises(InvalidField, match="status: ASAP says one of"):
        await store.transitions.move("s", "t", "COMPLETE", words=ASAP)
    with pytest.raises(InvalidField, match="priority: a move changes error, progress, result"):
        await store.transitions.move("s", "t", "RUNNING", priority=3)
    assert await store.transitions.phase("s", "u") is None
    assert await store.transitions.phase("s", "t") is TaskPhase.PENDING
    assert await path_of(store, "t") == []
    assert await store.list_tasks("other") == []


async def test_only_the_worker_that_runs_a_task_moves_it(store: RedisStateStore) -> None:
    await save_task(store)
    keys, scripts = store.base.keys, store.base.scripts
    await start(scripts, keys, task_keys(keys))
    before = await fields(scripts, keys.task("s", "t"))
    with pytest.raises(LeaseLost):
        await store.transitions.move("s", "t", "CANCELLED")
    lease = keys.lease("s", "t")
    with pytest.raises(LeaseLost) as caught:
        await store.transitions.move("s", "t", "COMPLETE", fence=Fence(lease, 7, "one"))
    epoch = await epoch_of(scripts, lease)
    assert (caught.value.epoch, caught.value.current) == (7, epoch)
    assert await fields(scripts, keys.task("s", "t")) == before
    fence = Fence(lease, epoch, "one")
    done = await store.transitions.move("s", "t", "COMPLETE", fence=fence, result=1)
    assert done.result == 1


async def test_a_host_gets_its_own_classes_back(host: Host) -> None:
    await host.store.save_task(host.task("t", "s", status=host.types.TaskStatus.PENDING))
    moved = await host.store.transitions.move("s", "t", host.types.TaskStatus.RUNNING)
    assert type(moved) is host.types.TaskState
    assert moved.status is host.types.TaskStatus.RUNNING


async def test_a_cancel_and_a_completion_at_once_have_one_winner(store: RedisStateStore) -> None:
    for number in range(30):
        await save_task(store, f"t{number}", TaskStatus.RUNNING)
        ends = ["COMPLETE", "CANCELLED", "FAILED"]
        results = await asyncio.gather(
            *(
                outcome(store.transitions.move("s", f"t{number}", end), InvalidTransition)
                for end in ends[number % 3 :] + ends[: number % 3]
            )
        )
        (won,) = [each.status.value for each in results if isinstance(each, TaskState)]
        lost = [each.current for each in results if isinstance(each, InvalidTransition)]
        assert lost == [won, won]


@pytest.mark.parametrize("processes", sizes(3, 8))
async def test_eight_processes_move_the_same_tasks_along_one_lawful_path(
    store: RedisStateStore, settings: Settings, processes: int
) -> None:
    tasks = [f"t{number}" for number in range(12)]
    for task in tasks:
        await save_task(store, task)
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "tasks": tasks,
        "rounds": 3,
        "words": ["working", "input-required", "auth-required", "working", "completed", "rejected"],
    }
    stated = await run_processes(
        "race_transitions", [{**argument, "name": f"p{number}"} for number in range(processes)]
    )
    won = Counter((task, word) for each in stated for task, word in each["won"])
    assert sum(won.values()) > len(tasks)
    refused = [tuple(each) for one in stated for each in one["refused"]]
    assert len(refused) + sum(won.values()) == processes * 3 * 6 * len(tasks)
    for task in tasks:
        path = [A2A.word(TaskPhase(phase)) for phase in await path_of(store, task)]
        assert Counter(path) == Counter({w: n for (t, w), n in won.items() if t == task})
        for source, wanted in zip(["submitted", *path], path, strict=False):
            assert can_transition(source, wanted, words=A2A), path
        assert path[-1] in {"completed", "rejected"}
        assert [word in {"completed", "rejected"} for word in path].count(True) == 1
    assert all(not can_transition(source, wanted, words=A2A) for _, source, wanted in refused)
