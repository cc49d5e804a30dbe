"""A session's context, patches and groups outlive its process and are one for all processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.sessions import (
    ContextPatch,
    MergeStrategy,
    SessionLimits,
    TaskResult,
    TaskRuntime,
)
from penguiflow.state import SteeringEvent, SteeringEventType, TaskState, TaskStatus

from redis_state import BackendUnavailable, InvalidField, Settings
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually
from tests.support.penguiflow.sessions import make_store
from tests.support.servers.faults import Proxy, run_processes

GATED = MergeStrategy.HUMAN_GATED


def patch(task_id: str = "task", **more: Any) -> ContextPatch:
    return ContextPatch(task_id=task_id, digest=["found"], **more)


async def reported(store: Any) -> list[str]:
    updates = await store.list_updates("session")
    return [update.content.get("title") or update.content.get("kind") for update in updates]


async def test_what_a_killed_process_left_is_approved_once_by_others(settings: Settings) -> None:
    common = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    [left] = await run_processes("durable_session", [{**common, "does": "leave"}])
    decide = {**common, "does": "decide", **left}
    found = await run_processes("durable_session", [decide] * 3)
    for each in found:
        assert each["context"] == [{"goal": "report"}, {"n": 1}]
        assert each["version"] == 1
        assert each["pending"] in ([left["patch_id"]], [])
        assert each["results"] == {"task": {"hits": 3}}
        assert each["left"] == []
        assert each["group"] == "complete"
    assert [each["won"] for each in found].count(True) == 1
    assert [each["sealed"] for each in found].count(True) == 1


async def test_updates_of_the_context_are_saved_in_order_and_waited_for(
    host: Any, elsewhere: Any
) -> None:
    async with open_session(host, "session") as session:
        for number in range(20):
            session.update_context(llm_context={"n": number})
        session.update_context(tool_context={"tool": 1})
        assert session.get_context() == ({"n": 19}, {"tool": 1})
        await host.drain()
        context = await elsewhere.contexts.load("session")
        assert (context.llm_context, context.tool_context) == ({"n": 19}, {"tool": 1})
        assert (context.version, context.context_hash) == (21, session.context_hash)
        assert session.context_version == 21
        session.update_context(llm_context={"n": "last"})
    async with open_session(elsewhere, "session") as session:
        assert session.get_context() == ({"n": "last"}, {"tool": 1})


async def test_what_json_cannot_hold_stays_with_the_session_that_was_given_it(host: Any) -> None:
    callback = object()
    async with open_session(host, "session") as session:
        session.update_context(tool_context={"callback": callback})
        await session.apply_context_patch(patch=patch())
        assert session.get_context()[1]["callback"] is callback
        assert list(session.get_background_results()) == ["task"]


async def test_what_json_cannot_hold_stays_when_another_process_changes_the_context(
    host: Any, elsewhere: Any, settings: Settings
) -> None:
    def callback() -> None: ...

    async with open_session(host, "session") as session:
        session.update_context(
            llm_context={"goal": "report"}, tool_context={"callback": callback, "n": 1}
        )
        await session.save_context()
        argument = {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "does": "update",
            "parts": {"llm_context": {"goal": "memo"}},
        }
        [seen] = await run_processes("durable_session", [argument])
        assert seen[0] == {"goal": "memo"}
        assert isinstance(seen[1]["callback"], str)
        await session.refresh()
        assert session.get_context() == ({"goal": "memo"}, {"callback": callback, "n": 1})
        assert session.context_version == 2
        # Another one's change of the tools keeps what it leaves as it was.
        for value, kept in ((seen[1]["callback"], callback), ("none", "none")):
            tools = {"callback": value, "n": 2}
            await elsewhere.contexts.update_context("session", tool_context=tools)
            await session.refresh()
            assert session.get_context()[1] == {"callback": kept, "n": 2}


async def test_a_patch_is_decided_in_one_of_two_sessions(host: Any, elsewhere: Any) -> None:
    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        patch_id = await here.apply_context_patch(patch=patch(), strategy=GATED, payload=1)
        assert patch_id is not None
        async with asyncio.timeout(60):
            first = await asyncio.gather(
                here.apply_pending_patch(patch_id=patch_id),
                there.reject_pending_patch(patch_id),
            )
        assert sorted(first) == [False, True]
        assert not await here.apply_pending_patch(patch_id=patch_id)
        assert not await there.apply_pending_patch(patch_id="of nobody")
        applied = {"task"} if first[0] else set[str]()
        for session in (here, there):
            await session.refresh()
            assert set(session.get_background_results()) == applied
            assert session.pending_patches == {}
        title = "Context updated" if first[0] else "Context patch rejected"
        assert await reported(host) == ["context_patch", title]
        taken = [
            await each.mark_background_consumed(task_ids=["task", ""]) for each in (here, there)
        ]
        assert taken == [len(applied), 0]
        assert here.get_background_results() == {}


async def test_a_sessions_own_limit_of_waiting_patches_holds(host: Any, elsewhere: Any) -> None:
    limits = SessionLimits(max_pending_patches=1)
    async with (
        open_session(host, "session", limits=limits) as here,
        open_session(elsewhere, "session") as there,
    ):
        patch_id = await here.apply_context_patch(patch=patch("a"), strategy=GATED)
        assert patch_id is not None
        with pytest.raises(RuntimeError, match="pending_patch_limit_exceeded"):
            await here.apply_context_patch(patch=patch("b"), strategy=GATED)
        assert await there.reject_pending_patch(patch_id)
        assert await here.apply_context_patch(patch=patch("b"), strategy=GATED) is not None


async def test_an_update_that_cannot_be_saved_does_not_hold_up_the_next(host: Any) -> None:
    # PenguiFlow makes a mapping of it.
    pairs: Any = [("n", 1)]
    async with open_session(host, "session") as session:
        session.update_context(tool_context=pairs)
        with pytest.raises(InvalidField, match="tool_context"):
            await session.save_context()
        session.update_context(llm_context={"n": 2})
        await session.save_context()
        context = await host.contexts.load("session")
        assert (context.llm_context, context.version) == ({"n": 2}, 1)


async def test_a_listener_hears_what_was_stored(host: Any) -> None:
    async with open_session(host, "session") as session:
        heard: list[Any] = []
        updates = await session.subscribe()

        async def listen() -> None:
            heard.extend([await anext(updates) for _ in range(3)])

        listening = asyncio.create_task(listen())
        await session.apply_context_patch(patch=patch(source_context_version=9))
        patch_id = await session.apply_context_patch(patch=patch(), strategy=GATED)
        assert patch_id is not None
        await session.apply_pending_patch(patch_id=patch_id)
        async with asyncio.timeout(60):
            await listening
        stored = await host.list_updates("session")
        assert [each.update_id for each in heard] == [each.update_id for each in stored]
        assert {type(each) for each in heard} == {type(each) for each in stored}


@pytest.mark.parametrize("kind", [SteeringEventType.APPROVE, SteeringEventType.REJECT])
async def test_a_patch_left_behind_is_decided_by_steering_from_elsewhere(
    host: Any, elsewhere: Any, kind: SteeringEventType
) -> None:
    async with open_session(host, "session") as session:
        patch_id = await session.apply_context_patch(patch=patch(), strategy=GATED)
    event = SteeringEvent(
        session_id="session", task_id="task", event_type=kind, payload={"patch_id": patch_id}
    )
    async with open_session(host, "session") as session:
        assert list(session.pending_patches) == [patch_id]
        await elsewhere.save_steering(event)
        await eventually(lambda: not session.pending_patches, "it is decided")
        assert bool(session.get_background_results()) == (kind is SteeringEventType.APPROVE)


async def test_a_group_is_one_for_two_sessions_and_ended_by_one(host: Any, elsewhere: Any) -> None:
    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        group = await here.resolve_or_create_group(group_name="crew", turn_id="turn")
        other = await there.resolve_or_create_group(group_name="crew", turn_id="turn")
        assert other.group_id == group.group_id
        assert await here.add_task_to_group(group.group_id, "a")
        assert await there.add_task_to_group(group.group_id, "b")
        same = await there.resolve_or_create_group(group_id=group.group_id)
        assert same.task_ids == ["a", "b"]
        waiting = asyncio.create_task(there.wait_for_group_completion(group.group_id, timeout_s=20))
        assert await there.auto_seal_open_groups("turn") == 1
        assert await here.auto_seal_open_groups("turn") == 0
        with pytest.raises(RuntimeError, match="group_not_joinable"):
            await here.resolve_or_create_group(group_id=group.group_id)
        with pytest.raises(RuntimeError, match="group_not_found"):
            await here.resolve_or_create_group(group_id="grp_none")
        await there.mark_task_complete_in_group(group.group_id, "stranger", success=True)
        await there.mark_task_complete_in_group(group.group_id, "b", success=False)
        assert await there.wait_for_group_completion(group.group_id, timeout_s=0.01) == (same, True)
        await here.mark_task_complete_in_group(group.group_id, "a", success=True)
        ended, late = await waiting
        assert ended is not None
        assert (ended.status, late) == ("failed", False)
        assert group.status == "failed"
        assert not await here.cancel_group(group.group_id)
        assert await here.get_group_results(group.group_id) == []
        assert [each.status for each in await there.list_groups()] == ["failed"]
    async with open_session(host, "session") as later:
        found = await later.get_group(group_name="crew", turn_id="turn")
        assert found is not None
        assert found.group_id == group.group_id


@pytest.mark.parametrize("action", ["apply", "reject"])
async def test_the_patches_of_a_group_are_decided_on_after_a_restart(
    host: Any, action: Any
) -> None:
    async with open_session(host, "session") as session:
        group = await session.resolve_or_create_group(group_name="crew", merge_strategy=GATED)
        for name in ("a", "b"):
            await session.add_task_to_group(group.group_id, name)
            patch_id = await session.apply_context_patch(patch=patch(name), strategy=GATED)
            await session.mark_task_complete_in_group(
                group.group_id, name, success=True, patch_id=patch_id
            )
    async with open_session(host, "session") as session:
        assert await session.apply_group_patches(group.group_id, action=action)
        assert not await session.apply_group_patches("grp_none")
        assert session.pending_patches == {}
        expected = ["a", "b"] if action == "apply" else []
        assert list(session.get_background_results()) == expected
        assert await session.cancel_group(group.group_id)


async def test_a_task_that_ended_before_its_session_closes_stays_complete_with_its_patch(
    host: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    applying = asyncio.Semaphore(0)

    async def work(runtime: TaskRuntime) -> TaskResult:
        return TaskResult(payload="done", context_patch=patch(runtime.state.task_id))

    names = [f"task-{number}" for number in range(3)]
    async with open_session(host, "session") as session:
        apply = session.apply_context_patch

        async def tell_and_apply(**options: Any) -> Any:
            applying.release()
            return await apply(**options)

        monkeypatch.setattr(session, "apply_context_patch", tell_and_apply)
        group = await session.resolve_or_create_group(group_name="crew")
        for name in names:
            await session.add_task_to_group(group.group_id, name)
            await session.spawn_task(work, task_id=name, group_id=group.group_id)
        await session.seal_group(group.group_id)
        async with asyncio.timeout(60):
            for _ in names:
                await applying.acquire()
    stored = {task.task_id: task for task in await elsewhere.list_tasks("session")}
    assert [stored[name].status for name in names] == [TaskStatus.COMPLETE] * 3
    assert {stored[name].result for name in names} == {"done"}
    context = await elsewhere.contexts.load("session")
    assert sorted(context.background_results) == names
    (ended_group,) = await elsewhere.groups.list("session")
    assert ended_group.status == "complete"
    kinds = [each.update_type.value for each in await elsewhere.list_updates("session")]
    assert kinds.count("RESULT") == 3


async def test_a_task_that_ends_while_its_session_closes_has_one_end(
    host: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = asyncio.Event()
    ends: list[tuple[str, TaskStatus]] = []
    save = host.tasks.save

    async def note_and_save(state: TaskState, **options: Any) -> None:
        if state.status is not TaskStatus.RUNNING and state.status is not TaskStatus.PENDING:
            ends.append((state.task_id, state.status))
        await save(state, **options)

    async def work(runtime: TaskRuntime) -> TaskResult:
        await finish.wait()
        return TaskResult(payload=runtime.state.task_id)

    names = ["first", "second", "third"]
    monkeypatch.setattr(host.tasks, "save", note_and_save)
    async with open_session(host, "session") as session:
        for name in names:
            await session.spawn_task(work, task_id=name)

        async def run() -> bool:
            return all(task.status is TaskStatus.RUNNING for task in await session.list_tasks())

        await eventually(run, "all run")
        finish.set()
    assert sorted(name for name, _ in ends) == sorted(names)
    stored = {task.task_id: task.status for task in await elsewhere.list_tasks("session")}
    assert stored == dict(ends)
    updates = await elsewhere.list_updates("session")
    complete = {name for name in names if stored[name] is TaskStatus.COMPLETE}
    assert {each.task_id for each in updates if each.update_type.value == "RESULT"} == complete


async def test_a_session_closes_in_time_though_its_ended_task_cannot_be_saved(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("redis_state.integrations.penguiflow.durable.shared_session._FINISH_S", 0.3)
    store: Any = make_store(settings)
    hold = asyncio.Event()

    async def work(runtime: TaskRuntime) -> TaskResult:
        return TaskResult(payload=runtime.state.task_id, context_patch=patch())

    async with store, open_session(store, "session") as session:
        apply = session.apply_context_patch

        async def apply_late(**options: Any) -> Any:
            await hold.wait()
            return await apply(**options)

        monkeypatch.setattr(session, "apply_context_patch", apply_late)
        await session.spawn_task(work, task_id="task")

        async def complete() -> bool:
            return [task.status for task in await store.list_tasks("session")] == [
                TaskStatus.COMPLETE
            ]

        await eventually(complete, "the task has ended")
        async with asyncio.timeout(5):
            await session.close()
        assert "not saved to their end yet" in caplog.text
        hold.set()

        async def applied() -> bool:
            context = await store.contexts.load("session")
            return context is not None and list(context.background_results) == ["task"]

        await eventually(applied, "its patch is applied all the same")
        assert await complete()


async def test_an_update_of_the_context_waits_for_the_server(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        store: Any = make_store(settings, url=proxy.url, call_timeout_s=2.0)
        async with store, open_session(store, "session") as session:
            session.update_context(llm_context={"n": 1})
            await session.save_context()
            proxy.refuse()
            proxy.cut()
            session.update_context(llm_context={"n": 2})
            with pytest.raises(BackendUnavailable):
                await session.save_context()
            proxy.refuse(refusing=False)
            session.update_context(tool_context={"n": 3})
            await session.save_context()
            context = await store.contexts.load("session")
            assert (context.llm_context, context.tool_context) == ({"n": 2}, {"n": 3})
