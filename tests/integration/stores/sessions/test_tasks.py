from __future__ import annotations

import asyncio
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore, Settings
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.testing import eventually
from tests.support.samples import STORED_STRANGE, admin, changed, strange, task

LONG_AGO = timezone(timedelta(hours=5, minutes=53, seconds=28))


async def test_every_field_of_a_task_comes_back_rebuilt(store: RedisStateStore) -> None:
    whole = TaskState(
        task_id="task",
        session_id="session",
        status=TaskStatus.PAUSED,
        task_type=TaskType.FOREGROUND,
        priority=-3,
        context_snapshot=TaskContextSnapshot(
            session_id="session",
            task_id="task",
            spawned_at=datetime(1890, 1, 1, tzinfo=LONG_AGO),
            llm_context={"a": {"b": [1]}},
            artifacts=[{"id": 1}],
            notify_on_complete=False,
        ),
        trace_id="trace",
        result={"rows": []},
        error="broken",
        description="described",
        progress={"done": 1},
        created_at=datetime(2024, 1, 1, 12, tzinfo=LONG_AGO),
        updated_at=datetime(2024, 1, 1, 13, 0, 0, 1, tzinfo=UTC),
    )
    await store.save_task(whole)
    (loaded,) = await store.list_tasks("session")
    assert loaded == whole
    assert loaded.status is TaskStatus.PAUSED
    assert loaded.task_type is TaskType.FOREGROUND
    assert type(loaded.context_snapshot) is TaskContextSnapshot
    assert await store.tasks.load("session", "task") == whole
    assert await store.tasks.load("session", "other") is None


async def test_naive_times_stay_naive(store: RedisStateStore) -> None:
    naive = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - that is the point
    await store.save_task(task(created_at=naive, updated_at=naive))
    (loaded,) = await store.list_tasks("session")
    assert (loaded.created_at, loaded.updated_at) == (naive, naive)


@pytest.mark.parametrize("result", [0, "", [], {}, False, None])
async def test_falsy_results_are_results(store: RedisStateStore, result: Any) -> None:
    await store.save_task(task(result=result, progress={}, error="", description=""))
    (loaded,) = await store.list_tasks("session")
    assert loaded.result == result
    assert type(loaded.result) is type(result)
    assert (loaded.progress, loaded.error, loaded.description) == ({}, "", "")


async def test_a_stored_task_shares_nothing_with_the_callers(store: RedisStateStore) -> None:
    result = [1]
    saved = task(progress={"list": [1]}, result=result)
    saved.context_snapshot.llm_context["list"] = [1]
    before = deepcopy(saved)
    await store.save_task(saved)
    assert saved == before
    result.append(2)
    saved.context_snapshot.llm_context["list"].append(2)
    (loaded,) = await store.list_tasks("session")
    assert loaded == before
    assert loaded.result is not None
    loaded.result.append(3)
    assert await store.list_tasks("session") == [before]


async def test_what_json_cannot_hold_is_stored_as_its_nearest_form(store: RedisStateStore) -> None:
    saved = task(result=strange(), progress=strange())
    saved.context_snapshot.tool_context["strange"] = strange()
    await store.save_task(saved)
    (loaded,) = await store.list_tasks("session")
    assert loaded.result == loaded.progress == STORED_STRANGE
    found = loaded.context_snapshot.tool_context["strange"]
    assert {**found, "itself": "<cycle>"} == STORED_STRANGE


async def test_tasks_come_in_the_order_of_their_first_save(store: RedisStateStore) -> None:
    for name in ("c", "a", "b", "c", "a"):
        await store.save_task(task(name, description=name))
    assert [each.task_id for each in await store.list_tasks("session")] == ["c", "a", "b"]


async def test_a_session_without_tasks_has_an_empty_list(store: RedisStateStore) -> None:
    assert await store.list_tasks("session") == []


async def test_unawaited_saves_leave_the_last_one_standing(store: RedisStateStore) -> None:
    saves = [asyncio.create_task(store.save_task(task(priority=n))) for n in range(100)]
    await asyncio.gather(*saves)
    assert [each.priority for each in await store.list_tasks("session")] == [99]


async def test_an_older_view_does_not_bring_an_ended_task_back(store: RedisStateStore) -> None:
    now = datetime.now(UTC)
    running = task(status=TaskStatus.RUNNING, updated_at=now)
    ended = task(status=TaskStatus.COMPLETE, result=0, updated_at=now + timedelta(seconds=1))
    assert await store.tasks.save(ended) is True
    assert await store.tasks.save(running) is False
    await store.save_task(running)
    assert await store.list_tasks("session") == [ended]
    assert (await store.health()).stale_task_saves == 2
    started_anew = task(status=TaskStatus.RUNNING, updated_at=now + timedelta(seconds=2))
    await store.save_task(started_anew)
    assert await store.list_tasks("session") == [started_anew]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", 5),
        ("task_id", None),
        ("session_id", b"bytes"),
        ("status", "WAITING"),
        ("status", None),
        ("task_type", "SIDEGROUND"),
        ("priority", "high"),
        ("priority", 1.5),
        pytest.param("priority", 10**5000, id="priority-of-5000-digits"),
        ("context_snapshot", None),
        ("context_snapshot", {"session_id": "s"}),
        ("created_at", "2024-01-01"),
        ("updated_at", None),
    ],
)
async def test_a_field_of_another_kind_is_refused_by_name(
    store: RedisStateStore, field: str, value: Any
) -> None:
    state = task()
    setattr(state, field, value)
    with pytest.raises(InvalidField) as caught:
        await store.save_task(state)
    assert caught.value.field == field
    assert await store.list_tasks("session") == []


async def test_a_state_as_plain_text_is_taken_for_what_it_says(store: RedisStateStore) -> None:
    state = task()
    state.status = "RUNNING"  # type: ignore[assignment]
    await store.save_task(state)
    (loaded,) = await store.list_tasks("session")
    assert loaded.status is TaskStatus.RUNNING


async def test_a_finished_task_lives_as_long_as_it_is_set_to(settings: Settings) -> None:
    async with changed(settings, finished_task_ttl="PT0.05S") as store:
        await store.save_task(task("active"))
        await store.save_task(task("ended", status=TaskStatus.FAILED))

        async def gone() -> bool:
            return [each.task_id for each in await store.list_tasks("session")] == ["active"]

        await eventually(gone, "the finished task expires")
        await store.save_task(task("another"))
        assert sorted(await store.tasks.ids("session")) == ["active", "another"]


async def test_the_order_of_a_task_survives_other_saves(store: RedisStateStore) -> None:
    await store.save_task(task("a"))
    order = await admin(store, "HGET", store.tasks.keys("session", "a").task, "order")
    await store.save_task(task("a", priority=1))
    record = await store.tasks.load_fields("session", "a")
    assert record is not None
    assert record.fields["order"] == order
    assert record.version == 2
