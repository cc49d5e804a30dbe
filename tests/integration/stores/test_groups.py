"""Groups of tasks: joined while open, sealed, and completed by exactly one caller."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore, Settings
from redis_state.models.hosts.task_groups import TaskGroup
from redis_state.models.session_context import MergeStrategy
from redis_state.stores.contexts.groups import GroupStep
from redis_state.testing import eventually
from tests.support.samples import admin, changed, keys_of, shared
from tests.support.servers.faults import run_processes, start_process


async def make(store: RedisStateStore, *tasks: str, **more: Any) -> str:
    group = await store.groups.open("s", **more)
    for task_id in tasks:
        assert await store.groups.join("s", group.group_id, task_id)
    return group.group_id


async def test_a_group_lives_from_open_to_complete(store: RedisStateStore) -> None:
    groups = store.groups
    opened = await groups.open(
        "s",
        name="crew",
        turn_id="1",
        merge_strategy=MergeStrategy.HUMAN_GATED,
        report_strategy="all",
        retain_turn=True,
    )
    assert await groups.open("s", name="crew", turn_id="1") == opened
    assert (opened.status, opened.retain_turn, opened.turn_id) == ("open", True, "1")
    assert opened.merge_strategy is MergeStrategy.HUMAN_GATED
    name = opened.group_id
    for task_id in ("b", "a", "b"):
        assert await groups.join("s", name, task_id)
    assert await groups.finish("s", name, "a", success=True, patch_id="p") == GroupStep(
        "open", completed=False
    )
    assert await groups.seal("s", name) == GroupStep("sealed", completed=False)
    sealed = await groups.load("s", name)
    assert sealed is not None
    assert (sealed.task_ids, sealed.pending_task_ids) == (["b", "a"], ["b"])
    assert (sealed.is_complete, sealed.report_queued) == (False, False)
    assert not await groups.join("s", name, "late")
    assert await groups.seal("s", name) is None
    assert await groups.finish("s", name, "b", success=True) == GroupStep(
        "complete", completed=True
    )
    ended = await groups.load("s", name)
    assert ended is not None
    assert (ended.completed_task_ids, ended.patches) == (["a", "b"], ["p"])
    assert (ended.is_complete, ended.report_queued) == (True, True)
    assert ended.sealed_at is not None
    assert ended.completed_at is not None
    assert opened.created_at <= datetime.now(UTC)
    assert ended.sealed_at <= ended.completed_at


async def test_groups_are_listed_as_they_were_made(store: RedisStateStore) -> None:
    names = [await make(store) for _ in range(3)]
    await store.groups.seal("s", names[1])
    assert [group.group_id for group in await store.groups.list("s")] == names
    opened = await store.groups.list("s", status="open")
    assert [group.group_id for group in opened] == [names[0], names[2]]
    assert await store.groups.list("another") == []


async def test_a_name_belongs_to_its_turn(store: RedisStateStore) -> None:
    turns: list[str | None] = ["1", "2", None, ""]
    opened = [await store.groups.open("s", name="crew", turn_id=turn) for turn in turns]
    assert len({group.group_id for group in opened}) == 4
    sealed = await store.groups.seal_turn("s", "2")
    assert sealed == {opened[1].group_id: GroupStep("complete", completed=True)}
    again = await store.groups.open("s", name="crew", turn_id="2")
    assert again.group_id != opened[1].group_id


async def test_a_turn_sealed_twice_at_once_is_sealed_once(store: RedisStateStore) -> None:
    names = [await make(store, name=name, turn_id="1") for name in ("a", "b")]
    reported = await asyncio.gather(*(store.groups.seal_turn("s", "1") for _ in range(4)))
    assert sorted(name for sealed in reported for name in sealed) == sorted(names)


async def test_a_name_whose_group_has_gone_is_free(store: RedisStateStore) -> None:
    old = await store.groups.open("s", name="crew")
    await admin(store, "DEL", store.base.keys.group("s", old.group_id))
    new = await store.groups.open("s", name="crew")
    assert new.group_id != old.group_id
    assert await store.groups.open("s", name="crew") == new


async def test_a_repeated_call_learns_what_it_did(store: RedisStateStore) -> None:
    name = await make(store, "t")
    await store.groups.seal("s", name, idempotency_key="mine")
    for _ in range(2):
        step = await store.groups.finish("s", name, "t", success=False, idempotency_key="mine")
        assert step == GroupStep("failed", completed=True)
    assert await store.groups.seal("s", name, idempotency_key="mine") == GroupStep(
        "failed", completed=False
    )
    other = await store.groups.finish("s", name, "t", success=True, idempotency_key="other")
    assert other == GroupStep("failed", completed=False)


async def test_a_cancelled_group_keeps_its_open_members(store: RedisStateStore) -> None:
    name = await make(store, "a", "b")
    await store.groups.finish("s", name, "a", success=True)
    assert await store.groups.cancel("s", name) == GroupStep("failed", completed=True)
    assert await store.groups.cancel("s", name) is None
    group = await store.groups.load("s", name)
    assert group is not None
    assert group.pending_task_ids == ["b"]


async def test_what_is_not_there_is_none(store: RedisStateStore) -> None:
    groups = store.groups
    assert await groups.load("s", "none") is None
    assert await groups.join("s", "none", "t") is False
    assert await groups.seal("s", "none") is None
    assert await groups.cancel("s", "none") is None
    assert await groups.finish("s", "none", "t", success=True) is None
    assert await keys_of(store) == []


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("name", {"name": 5}),
        ("turn_id", {"turn_id": 5}),
        ("merge_strategy", {"merge_strategy": "none"}),
        ("report_strategy", {"report_strategy": "some"}),
    ],
)
async def test_bad_input_is_refused_by_name(
    store: RedisStateStore, field: str, more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.groups.open("s", **more)
    assert caught.value.field == field
    assert await keys_of(store) == []


async def test_a_task_that_is_no_member_cannot_finish(store: RedisStateStore) -> None:
    name = await make(store, "t")
    with pytest.raises(InvalidField, match="no member"):
        await store.groups.finish("s", name, "stranger", success=True)


async def test_odd_names_of_tasks_and_patches_come_back(store: RedisStateStore) -> None:
    odd = ["", "a b", "=", "\ud800", "é" * 300]
    name = await make(store, *odd)
    for number, task_id in enumerate(odd):
        await store.groups.finish("s", name, task_id, success=bool(number % 2), patch_id=task_id)
    group = await store.groups.load("s", name)
    assert group is not None
    assert group.task_ids == group.patches == odd
    assert group.completed_task_ids == odd[1::2]
    assert group.failed_task_ids == odd[::2]


async def test_a_damaged_group_is_set_aside(store: RedisStateStore) -> None:
    name, other = await make(store), await make(store)
    await admin(store, "HSET", store.base.keys.group("s", name), "document", "garbage")
    assert [group.group_id for group in await store.groups.list("s")] == [other]
    assert len(await store.unreadable(session_id="s")) == 1


async def test_an_ended_group_goes_as_ended_tasks_do(settings: Settings) -> None:
    async with changed(settings, finished_task_ttl="PT0.05S") as store:
        name = await make(store, "t")
        await store.groups.seal("s", name)
        assert await store.groups.load("s", name) is not None
        await store.groups.finish("s", name, "t", success=True)

        async def gone() -> bool:
            return await store.groups.load("s", name) is None

        await eventually(gone, "the group expires")
        assert await store.groups.list("s") == []


@pytest.mark.slow
async def test_of_8_processes_one_call_completes_the_group(
    store: RedisStateStore, settings: Settings
) -> None:
    tasks = {f"w{n}": [f"w{n}-{number}" for number in range(8)] for n in range(8)}
    name = await make(store, *(task for each in tasks.values() for task in each))
    common = {**shared(settings), "does": "finish", "processes": 8, "group_id": name}
    ran = await run_processes("use_session", [{**common, "tasks": each} for each in tasks.values()])
    completed = [call for calls in ran for call in calls]
    assert len(completed) == 1
    group = await store.groups.load("s", name)
    assert group is not None
    assert group.status == "complete"
    assert sorted(group.completed_task_ids) == sorted(group.task_ids)
    assert completed[0] in ("seal", group.completed_task_ids[-1])


@pytest.mark.slow
async def test_of_4_processes_with_16_callers_all_join_one_group(
    store: RedisStateStore, settings: Settings
) -> None:
    common = {**shared(settings), "does": "join", "processes": 4, "callers": 16}
    ran = await run_processes("use_session", [{**common, "name": f"w{n}"} for n in range(4)])
    assert len({name for names in ran for name in names}) == 1
    [group] = await store.groups.list("s")
    assert len(group.task_ids) == len(set(group.task_ids)) == 64


@pytest.mark.chaos
@pytest.mark.parametrize("after", [False, True])
async def test_a_completion_whose_caller_dies_is_learnt_by_the_repeated_call(
    store: RedisStateStore, settings: Settings, *, after: bool
) -> None:
    name = await make(store, "t")
    await store.groups.seal("s", name)
    argument = {**shared(settings), "does": "crash", "call": "finish", "group_id": name}
    process = await start_process(
        "use_session", {**argument, "script": "finish_member", "after": after}
    )
    _, err = await process.communicate()
    assert process.returncode == -9, err.decode()
    group = await store.groups.load("s", name)
    assert isinstance(group, TaskGroup)
    assert group.is_complete is after
    step = await store.groups.finish("s", name, "t", success=True, idempotency_key="mine")
    assert step == GroupStep("complete", completed=True)
