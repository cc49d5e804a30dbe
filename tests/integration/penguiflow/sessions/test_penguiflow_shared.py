"""A session's tasks are one for all processes: seen, steered, counted, and settled when left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.sessions import (
    SessionLimits,
    StreamingSession,
    TaskResult,
    TaskRuntime,
)
from penguiflow.state import (
    SteeringEvent,
    SteeringEventType,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)

from redis_state import BackendError, BackendUnavailable, LostRace, Settings
from redis_state.integrations.penguiflow.durable.registry import LEFT
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.scripts import ReplyCode
from redis_state.testing import eventually
from tests.support.penguiflow.sessions import make_store
from tests.support.processes import children
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.faults import Proxy, start_process
from tests.support.servers.proxies.command_proxy import CommandProxy

LEASE_S = 0.6
CREW = [f"task-{number}" for number in range(8)]


@asynccontextmanager
async def running(settings: Settings, *tasks: str, **more: Any) -> AsyncGenerator[Any]:
    """Have another process run tasks; give it, once they run, with the id of their group."""
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    process = await start_process("share_session", {**argument, "tasks": list(tasks), **more})
    try:
        yield process, (await line(process))["group"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: children.Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        read = await process.stdout.readline()
    assert read, "the process has ended"
    return json.loads(read)


async def hang(runtime: TaskRuntime) -> TaskResult:
    await asyncio.Event().wait()
    raise AssertionError(runtime)


async def nothing(_: TaskRuntime) -> None:
    """Be done at once."""


def stated(text: str, task_id: str = "task-0", **more: Any) -> SteeringEvent:
    kind = SteeringEventType.USER_MESSAGE
    return SteeringEvent(
        session_id="session", task_id=task_id, event_type=kind, payload={"text": text}, **more
    )


async def statuses(session: StreamingSession) -> dict[str, str]:
    return {task.task_id: task.status.value for task in await session.list_tasks()}


async def all_run(session: StreamingSession, names: list[str]) -> None:
    async def run() -> bool:
        found = await statuses(session)
        active = [name for name in names if found.get(name) in {"RUNNING", "PENDING"}]
        return active == names

    await eventually(run, f"{names} run")


async def test_tasks_of_a_killed_process_count_no_more_once_their_leases_have_run_out(
    settings: Settings, host: Any
) -> None:
    async with open_session(host, "session") as session:
        async with running(settings, *CREW, lease_s=LEASE_S) as (process, group_id):
            await all_run(session, CREW)
            with pytest.raises(RuntimeError, match="task_limit_exceeded"):
                await session.spawn_task(hang)
            process.kill()
            await process.wait()

        async def spawned() -> bool:
            try:
                await session.spawn_task(hang, task_id="next")
            except RuntimeError:
                return False
            return True

        await eventually(spawned, "there is room for another")

        async def settled() -> bool:
            await session.settle()
            return list((await statuses(session)).values()).count("FAILED") == len(CREW)

        await eventually(settled, "all are settled")
        assert await statuses(session) == dict.fromkeys(CREW, "FAILED") | {"next": "RUNNING"}
        left = await session.get_task("task-0")
        assert left is not None
        assert left.error == LEFT
        group = await session.get_group(group_id)
        assert group is not None
        assert (group.status, sorted(group.failed_task_ids)) == ("failed", CREW)
    reasons = [update.content.get("reason") for update in await host.list_updates("session")]
    assert reasons.count("left") == len(CREW)


async def test_the_owner_of_a_session_settles_what_was_left_at_once(
    settings: Settings, host: Any
) -> None:
    async with running(settings, *CREW) as (process, _):
        plain = StreamingSession("session", state_store=host)
        await plain.hydrate()
        process.kill()
        await process.wait()
    # PenguiFlow itself counts them for ever.
    with pytest.raises(RuntimeError, match="task_limit_exceeded"):
        await plain.spawn_task(hang)
    async with open_session(host, "session", owner=True) as session:
        assert await statuses(session) == dict.fromkeys(CREW, "FAILED")
        await session.spawn_task(hang)


async def test_a_task_whose_process_renews_its_lease_is_not_settled(
    settings: Settings, host: Any
) -> None:
    async with running(settings, "task-0", lease_s=LEASE_S), open_session(host, "session") as here:
        await all_run(here, ["task-0"])
        scripts = host.base.scripts
        await clock_passes(scripts, await clock_ms(scripts) + int(2000 * LEASE_S))
        assert await here.settle() == []
        assert await statuses(here) == {"task-0": "RUNNING"}


async def test_a_stopped_process_that_wakes_up_does_not_change_what_was_settled(
    settings: Settings, host: Any
) -> None:
    async with (
        running(settings, "task-0", "task-1", lease_s=LEASE_S) as (process, _),
        open_session(host, "session") as session,
    ):
        await all_run(session, ["task-0", "task-1"])
        os.kill(process.pid, signal.SIGSTOP)
        settled: list[str] = []

        async def settle() -> bool:
            settled.extend(await session.settle())
            return len(settled) == 2

        await eventually(settle, "both are settled")
        # One is started again here, under its id.
        await session.registry.remove_task("task-1")
        await session.spawn_task(hang, task_id="task-1")
        for name in ("task-0", "task-1"):
            await host.save_steering(stated("stop", name))
        os.kill(process.pid, signal.SIGCONT)
        assert (await line(process))["statuses"]["task-0"] == "FAILED"
        assert await statuses(session) == {"task-0": "FAILED", "task-1": "RUNNING"}
        (task, _) = await host.list_tasks("session")
        assert (task.status, task.error) == (TaskStatus.FAILED, LEFT)


async def test_a_task_that_is_started_again_elsewhere_is_stopped_where_it_ran(
    settings: Settings, host: Any
) -> None:
    finish = asyncio.Event()

    async def work(runtime: TaskRuntime) -> TaskResult:
        await finish.wait()
        return TaskResult(payload={"digest": runtime.state.task_id})

    async with open_session(host, "session") as session:
        # It hears that it lost its lease when it renews it, or saves.
        async with running(settings, "task-0", lease_s=LEASE_S) as (process, group_id):
            await all_run(session, ["task-0"])
            await session.registry.remove_task("task-0")
            await session.spawn_task(work, task_id="task-0", group_id=group_id)
            assert (await line(process))["statuses"] == {"task-0": "RUNNING"}
            finish.set()
            group, late = await session.wait_for_group_completion(group_id, timeout_s=60)
        assert group is not None
        assert (group.status, late) == ("complete", False)
        assert [each["digest"] for each in await session.get_group_results(group_id)] == ["task-0"]


async def test_who_runs_a_task_learns_that_it_was_taken_over(host: Any, elsewhere: Any) -> None:
    go_on = asyncio.Event()

    async def work(runtime: TaskRuntime) -> TaskResult:
        await go_on.wait()
        await runtime.session.registry.update_task("task", progress={"stale": True})
        return await hang(runtime)

    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        run = asyncio.create_task(here.run_task(work, task_id="task"))
        await all_run(there, ["task"])
        await there.spawn_task(hang, task_id="task")
        await runs(there, "task")
        go_on.set()
        with pytest.raises(LostRace, match="'task' was taken over"):
            await run
        assert not run.cancelling()
        (task,) = await elsewhere.list_tasks("session")
        assert (task.status, task.progress) == (TaskStatus.RUNNING, None)


async def test_a_task_that_is_taken_over_before_it_begins_does_not_begin(
    far: Any, proxy: CommandProxy, elsewhere: Any
) -> None:
    began: list[str] = []

    async def work(runtime: TaskRuntime) -> TaskResult:
        began.append("here")
        return await hang(runtime)

    async with open_session(far, "session") as here, open_session(elsewhere, "session") as there:

        async def take_over() -> None:
            await there.spawn_task(hang, task_id="task")

        key = far.base.keys.task("session", "task")
        with proxy.meanwhile("put_record", take_over, holding=key):
            await here.spawn_task(work, task_id="task")
        await stops(here)
        assert began == []
        await runs(there, "task")


async def test_what_no_session_runs_is_not_settled(host: Any) -> None:
    """A task of the pool, and one that a plain session saved, which has no lease."""

    def pending(task_id: str) -> TaskState:
        snapshot = TaskContextSnapshot(session_id="session", task_id=task_id)
        return TaskState(
            task_id=task_id,
            session_id="session",
            status=TaskStatus.RUNNING,
            task_type=TaskType.BACKGROUND,
            priority=0,
            context_snapshot=snapshot,
        )

    for name in ("of a pool", "of a plain session"):
        await host.save_task(pending(name))
    keys = host.tasks.keys("session", "of a pool")
    await host.base.records.save(keys.task, {"job": b"1"}, ttl_ms=60_000)
    taken = await host.base.scripts.acquire_lease(
        keys.lease, owner="gone", duration_ms=1, keep_ms=60_000
    )
    assert taken.word is ReplyCode.OK
    async with open_session(host, "session", owner=True) as session:
        found = await statuses(session)
        assert found == {"of a pool": "RUNNING", "of a plain session": "RUNNING"}
        # The pool's is steered through the log, the other is changed here: nobody else does.
        for name in found:
            assert await session.cancel_task(name)
        left = await statuses(session)
        assert left == {"of a pool": "RUNNING", "of a plain session": "CANCELLED"}
    assert len(await host.list_steering("session")) == 2


async def test_another_process_is_seen_and_steered_through_the_session(
    settings: Settings, host: Any
) -> None:
    async with open_session(host, "session") as session:
        updates = await session.subscribe(update_types=[UpdateType.PROGRESS, UpdateType.RESULT])
        async with running(settings, "task-0", "task-1") as (process, group_id):
            await all_run(session, ["task-0", "task-1"])
            task = await session.get_task("task-0")
            assert task is not None
            word = stated("hello")
            assert await session.steer(word)
            assert not await session.steer(word)
            assert not await session.steer(stated("unheard", "of nobody"))
            assert not await session.steer(stated(""))
            async with asyncio.timeout(60):
                assert (await anext(updates)).content == {"heard": "hello"}

            async def progress() -> bool:
                return await session.get_task("task-0") is task and task.progress is not None

            await eventually(progress, "its progress is seen, in the object that was given")
            assert await session.broadcast_steer(event_type=SteeringEventType.PAUSE) == 2
            assert await session.cancel_task("task-1")
            assert await session.steer(stated("stop"))
            ended = (await line(process))["statuses"]
            assert ended == {"task-0": "COMPLETE", "task-1": "CANCELLED"}
            assert await statuses(session) == ended
            (result,) = await session.get_group_results(group_id)
            assert (result["task_id"], result["digest"]) == ("task-0", ["hello", "", "stop"])
            group = await session.get_group(group_id)
            assert group is not None
            assert group.status == "failed"
            assert not await session.cancel_task("task-1")
            assert not await session.steer(stated("late"))
        async with asyncio.timeout(60), aclosing(updates):
            while (update := await anext(updates)).update_type is not UpdateType.RESULT:
                assert update.update_type is UpdateType.PROGRESS
        assert update.task_id == "task-0"
    stored = [event.payload.get("text") for event in await host.list_steering("session")]
    assert stored.count("hello") == 1


async def test_a_subscriber_resumes_after_an_update_of_any_process(
    host: Any, elsewhere: Any
) -> None:
    async def work(runtime: TaskRuntime) -> TaskResult:
        for number in range(5):
            runtime.emit_update(UpdateType.PROGRESS, {"n": number, "of": runtime.state.task_id})
        return TaskResult(payload=None)

    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        await here.run_task(work, task_id="a")
        await host.drain()
        late = await there.subscribe()
        everything = await there.subscribe(since_id="unknown", task_ids=["a", "b"])
        first = await anext(everything)
        resumed = await there.subscribe(
            since_id=first.update_id, task_ids=["b"], update_types=[UpdateType.PROGRESS]
        )
        await here.run_task(work, task_id="b")
        async with asyncio.timeout(60):
            of_b = [(await anext(resumed)).content for _ in range(5)]
            assert (await anext(late)).task_id == "b"
            seen = [first.update_id]
            stored = [each.update_id for each in await there.list_updates()]
            while len(seen) < len(stored):
                seen.append((await anext(everything)).update_id)
        assert of_b == [{"n": number, "of": "b"} for number in range(5)]
        assert seen == stored


async def test_a_subscriber_goes_on_after_updates_that_are_dropped(settings: Settings) -> None:
    async with make_store(settings, max_updates_per_session=2) as store:
        host: Any = store
        async with open_session(host, "session") as session:
            heard = await session.subscribe(since_id="unknown")
            await session.run_task(nothing, task_id="a")
            await host.drain()
            after = (await session.list_updates())[0].update_id
            missed = await session.subscribe(since_id=after)
            for name in ("b", "c"):
                await session.run_task(nothing, task_id=name)
            await host.drain()
            kept = [each.update_id for each in await session.list_updates()]
            for updates in (heard, missed):
                async with asyncio.timeout(60):
                    assert (await anext(updates)).update_id == kept[0]


async def test_the_limits_of_a_session_hold_for_all_processes_and_for_spawns_at_once(
    host: Any, elsewhere: Any
) -> None:
    limits = SessionLimits(max_tasks_per_session=4, max_background_tasks=3)
    async with (
        open_session(host, "session", limits=limits) as here,
        open_session(elsewhere, "session", limits=limits) as there,
    ):
        running = asyncio.create_task(here.run_task(hang, task_id="first"))
        spawning = (here.spawn_task(hang, task_type=TaskType.BACKGROUND) for _ in range(9))
        found = await asyncio.gather(*spawning, return_exceptions=True)
        assert sum(isinstance(each, str) for each in found) == 3
        for kind, refusal in (("BACKGROUND", "task_limit"), ("FOREGROUND", "task_limit")):
            with pytest.raises(RuntimeError, match=refusal):
                await there.spawn_task(hang, task_type=TaskType(kind))
        running.cancel()
        await asyncio.wait({running})
        # PenguiFlow would leave it RUNNING.
        first = await there.get_task("first")
        assert first is not None
        assert first.status is TaskStatus.CANCELLED
        await there.spawn_task(hang)


async def test_a_cancelled_task_takes_its_children_of_other_processes_with_it(
    host: Any, elsewhere: Any
) -> None:
    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        await here.spawn_task(hang, task_id="parent")
        await there.spawn_task(hang, task_id="child", parent_task_id="parent")
        await all_run(here, ["parent", "child"])
        assert await here.cancel_task("parent")

        async def cancelled() -> bool:
            return await statuses(there) == {"parent": "CANCELLED", "child": "CANCELLED"}

        await eventually(cancelled, "both are cancelled")
        await stops(there)


async def runs(session: StreamingSession, name: str) -> None:
    async def run() -> bool:
        return (await statuses(session)).get(name) == "RUNNING"

    await eventually(run, f"{name} runs")


async def stops(session: StreamingSession) -> None:
    handles: dict[str, Any] = getattr(session, "_task_handles")  # noqa: B009
    await eventually(lambda: not handles, "it runs here no more")


@pytest.mark.parametrize("cleared", [False, True])
async def test_a_task_that_was_taken_over_or_cleared_is_saved_no_more_and_stops(
    host: Any, elsewhere: Any, *, cleared: bool
) -> None:
    go_on = asyncio.Event()

    async def work(runtime: TaskRuntime) -> TaskResult:
        await go_on.wait()
        runtime.emit_update(UpdateType.PROGRESS, {"stale": True})
        return await hang(runtime)

    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        await here.spawn_task(work, task_id="task")
        await all_run(there, ["task"])
        if cleared:
            await asyncio.to_thread(elsewhere.clear_session, "session")
        else:
            await there.spawn_task(hang, task_id="task")
            await runs(there, "task")
        go_on.set()
        await stops(here)
        stored = await elsewhere.list_tasks("session")
        assert [(task.status, task.progress) for task in stored] == (
            [] if cleared else [(TaskStatus.RUNNING, None)]
        )
        assert await statuses(here) == await statuses(there)
        for changed in (
            here.registry.update_task("task", status=TaskStatus.FAILED),
            here.registry.update_status("task", TaskStatus.PAUSED),
            here.registry.update_priority("task", 9),
        ):
            assert await changed is None
        assert await elsewhere.list_tasks("session") == stored


async def test_the_status_of_an_ended_task_is_final_and_the_rest_may_change(
    host: Any, elsewhere: Any
) -> None:
    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        await here.run_task(nothing, task_id="task")
        for session in (here, there):
            assert await session.registry.update_status("task", TaskStatus.RUNNING) is None
            assert await session.registry.update_priority("task", 7) is not None
        (task,) = await host.list_tasks("session")
        assert (task.status, task.priority) == (TaskStatus.COMPLETE, 7)
        assert not await there.registry.list_active("session")


async def test_a_task_whose_first_save_fails_is_not_there_and_not_held(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    async with open_session(far, "session") as here, open_session(elsewhere, "session") as there:
        with proxy.answer("put_record", holding="PENDING"), pytest.raises(BackendUnavailable):
            await here.spawn_task(hang, task_id="task")
        assert await statuses(here) == {}
        lease = elsewhere.base.keys.lease("session", "task")
        assert await elsewhere.base.fetch(lease, ("owner",)) == [b""]
        await there.spawn_task(hang, task_id="task")
        await runs(here, "task")


async def test_a_session_that_closes_in_the_middle_of_a_cancel_does_not_wait_for_the_task(
    proxy: CommandProxy, far: Any
) -> None:
    saving, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        saving.set()
        await go_on.wait()

    async with open_session(far, "session") as session:
        await session.spawn_task(hang, task_id="task")
        await runs(session, "task")
        with proxy.meanwhile("put_record", hold, holding="CANCELLED"):
            cancelling = asyncio.create_task(session.cancel_task("task"))
            async with asyncio.timeout(3):
                await saving.wait()
                closing = asyncio.create_task(session.close())
                go_on.set()
                assert await cancelling
                await closing
    (task,) = await far.list_tasks("session")
    assert task.status is TaskStatus.CANCELLED


async def test_a_cancelled_group_cancels_its_members_wherever_they_run(
    host: Any, elsewhere: Any
) -> None:
    async with open_session(host, "session") as here, open_session(elsewhere, "session") as there:
        group = await here.resolve_or_create_group(group_name="crew")
        for session, name in ((here, "a"), (there, "b")):
            await session.add_task_to_group(group.group_id, name)
            await session.spawn_task(hang, task_id=name, group_id=group.group_id)
        await all_run(here, ["a", "b"])
        assert await here.cancel_group(group.group_id)

        async def cancelled() -> bool:
            return await statuses(here) == {"a": "CANCELLED", "b": "CANCELLED"}

        await eventually(cancelled, "both are cancelled")


async def test_a_group_learns_of_its_left_member_though_who_settled_it_died(
    settings: Settings, host: Any
) -> None:
    async with running(settings, "task-0") as (process, group_id):
        process.kill()
        await process.wait()
    async with open_session(host, "session") as dies:
        registry: Any = dies.registry
        assert (await registry.settle("task-0", alone=True)).error == LEFT
        # Here it dies: it has told nobody.
    async with open_session(host, "session") as session:
        group = await session.get_group(group_id)
        assert group is not None
        assert (group.status, group.failed_task_ids) == ("failed", ["task-0"])


async def test_a_task_that_could_not_be_saved_takes_no_place(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        store: Any = make_store(settings, url=proxy.url, call_timeout_s=1.0, connect_timeout_s=1.0)
        limits = SessionLimits(max_tasks_per_session=1)
        async with store, open_session(store, "session", limits=limits) as session:
            proxy.refuse()
            assert proxy.cut()
            for number in range(2):
                with pytest.raises(BackendError):
                    await session.spawn_task(hang, task_id=f"task-{number}")
            assert proxy.refused
            proxy.refuse(refusing=False)

            async def spawned() -> bool:
                with suppress(BackendError):
                    await session.spawn_task(hang, task_id="task")
                    return True
                return False

            await eventually(spawned, "the server answers again")
            assert list(await statuses(session)) == ["task"]
