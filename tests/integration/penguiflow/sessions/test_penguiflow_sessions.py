"""Steering reaches the session that runs the task, once, whatever process saved it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.sessions import (
    ContextPatch,
    MergeStrategy,
    SessionLimits,
    SessionManager,
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

from redis_state import InvalidField, OutcomeUnknown, Settings
from redis_state.integrations.penguiflow.sessions import WatchedStore, following, open_session
from redis_state.testing import eventually
from tests.support.penguiflow.sessions import make_store
from tests.support.servers.faults import Proxy
from tests.support.servers.proxies.command_proxy import CommandProxy

NUMBERS = itertools.count()


def stated(text: str, task_id: str = "task", **more: Any) -> SteeringEvent:
    return steer(SteeringEventType.USER_MESSAGE, task_id, text=text, **more)


def steer(kind: SteeringEventType, task_id: str = "task", **payload: Any) -> SteeringEvent:
    return SteeringEvent(
        session_id="session",
        task_id=task_id,
        event_id=f"event-{next(NUMBERS)}",
        event_type=kind,
        payload=payload,
        source="user",
    )


class Listener:
    """A pipeline that takes what it is told, until it is told to stop."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, runtime: TaskRuntime) -> TaskResult:
        while "stop" not in self.heard:
            await self.gate.wait()
            event = await runtime.steering.next()
            self.heard.append(str(event.payload.get("text", event.event_type.value)))
        return TaskResult(payload=list(self.heard))


async def ended(session: StreamingSession, task_id: str = "task") -> Any:
    async def over() -> Any:
        task = await session.get_task(task_id)
        return task if task is not None and task.status.value in {"COMPLETE", "CANCELLED"} else None

    return await eventually(over, f"{task_id} is over")


async def runs_here(session: StreamingSession, task_id: str = "task") -> None:
    async def running() -> bool:
        task = await session.get_task(task_id)
        return task is not None and task.status is TaskStatus.RUNNING

    await eventually(running, f"{task_id} runs")


async def test_what_another_process_saved_reaches_the_running_task_and_is_not_saved_again(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    log = far.base.keys.steering("session").rows
    with proxy.count("append_log", holding=log) as saves:
        async with open_session(far, "session") as session:
            await session.spawn_task(Listener(), task_id="task")
            events = [stated(text) for text in ("one", "two", "three", "four", "stop")]
            for event in events:
                await elsewhere.save_steering(event)
            assert (await ended(session)).result == ["one", "two", "three", "four", "stop"]
        assert saves.seen == 0
        await far.save_steering(stated("mine"))
        assert saves.seen == 1
    assert (await elsewhere.list_steering("session"))[:-1] == events


async def test_what_the_session_itself_was_given_is_saved_once_and_heard_once(
    host: Any, elsewhere: Any
) -> None:
    listener = Listener()
    async with open_session(host, "session") as session:
        await session.spawn_task(listener, task_id="task")
        mine = stated("mine")
        assert await session.steer(mine)
        assert not await session.steer(mine)
        await elsewhere.save_steering(stated("stop"))
        assert (await ended(session)).result == ["mine", "stop"]
    assert [event.payload["text"] for event in await host.list_steering("session")] == [
        "mine",
        "stop",
    ]


async def test_an_event_of_two_tasks_is_saved_for_one_while_the_other_is_given_it(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    given: list[asyncio.Task[bool]] = []
    async with open_session(far, "session") as session:
        for name in ("a", "b"):
            await session.spawn_task(Listener(), task_id=name)
            await runs_here(session, name)
        event = steer(SteeringEventType.PRIORITIZE, "a", priority=5)
        mine = event.model_copy(update={"task_id": "b"})

        async def steer_here() -> None:
            given.append(asyncio.create_task(session.steer(mine)))

        key = far.base.keys.task("session", "a")
        with proxy.meanwhile("put_record", steer_here, holding=key):
            await elsewhere.save_steering(event)

            async def was_given() -> bool:
                return bool(given)

            await eventually(was_given, "the session is given the event for b")
        assert await given[0]
        assert await elsewhere.list_steering("session", task_id="b") == [mine]


async def test_what_is_saved_before_the_task_starts_is_told_when_it_starts(
    host: Any, elsewhere: Any
) -> None:
    await elsewhere.save_steering(stated("before"))
    async with open_session(host, "session") as session:
        await elsewhere.save_steering(stated("still before"))
        await session.spawn_task(Listener(), task_id="task")
        await elsewhere.save_steering(stated("stop"))
        assert (await ended(session)).result == ["before", "still before", "stop"]


@pytest.mark.parametrize("retell", [False, True])
async def test_a_task_that_is_started_again_elsewhere_is_told_again_only_on_demand(
    host: Any, elsewhere: Any, *, retell: bool
) -> None:
    listener = Listener()
    async with open_session(host, "session") as session:
        await session.spawn_task(listener, task_id="task")
        await host.save_steering(stated("once"))
        await eventually(lambda: listener.heard == ["once"], "the first run has heard it")
    await host.save_steering(stated("meanwhile"))
    async with open_session(elsewhere, "session", retell=retell) as session:
        assert [task.task_id for task in await session.list_tasks()] == ["task"]
        await session.registry.remove_task("task")
        await session.spawn_task(Listener(), task_id="task")
        await host.save_steering(stated("stop"))
        first = ["once"] if retell else []
        assert (await ended(session)).result == [*first, "meanwhile", "stop"]


async def test_what_was_fed_and_not_noted_is_told_again(host: Any, elsewhere: Any) -> None:
    listener = Listener()
    async with open_session(host, "session") as session:
        await session.spawn_task(listener, task_id="task")
        await host.save_steering(stated("once"))
        await eventually(lambda: listener.heard == ["once"], "the first run has heard it")
    await host.memory.delete('["redis_state steering told", "session", "task"]')
    async with open_session(elsewhere, "session") as session:
        await session.spawn_task(Listener(), task_id="task")
        await host.save_steering(stated("stop"))
        assert (await ended(session)).result == ["once", "stop"]


async def test_the_inbox_lives_while_the_task_is_paused(host: Any, elsewhere: Any) -> None:
    heard: list[Any] = []

    async def work(runtime: TaskRuntime) -> TaskResult:
        while True:
            await runtime.steering.wait_if_paused()
            heard.extend(event.payload.get("text") for event in runtime.steering.drain())
            if "stop" in heard:
                return TaskResult(payload=[text for text in heard if text])
            await asyncio.sleep(0.01)

    async with open_session(host, "session") as session:
        await session.spawn_task(work, task_id="task")
        await elsewhere.save_steering(steer(SteeringEventType.PAUSE))

        async def paused() -> bool:
            (task,) = await elsewhere.list_tasks("session")
            return bool(task.status is TaskStatus.PAUSED)

        await eventually(paused, "the task is paused")
        for text in ("while paused", "stop"):
            await elsewhere.save_steering(stated(text))
        await elsewhere.save_steering(steer(SteeringEventType.RESUME))
        assert (await ended(session)).result == ["while paused", "stop"]


async def test_a_cancel_from_elsewhere_ends_the_task_and_no_late_resume_brings_it_back(
    host: Any, elsewhere: Any
) -> None:
    async with open_session(host, "session") as session:
        await session.spawn_task(Listener(), task_id="task")
        await session.spawn_task(Listener(), task_id="other")
        await runs_here(session)
        await elsewhere.save_steering(steer(SteeringEventType.CANCEL, reason="enough"))
        await ended(session)
        await elsewhere.save_steering(steer(SteeringEventType.RESUME))
        await elsewhere.save_steering(stated("stop", "other"))
        await ended(session, "other")
        task = await session.get_task("task")
        assert task is not None
        assert task.status is TaskStatus.CANCELLED


async def test_a_task_of_another_process_is_left_to_it(host: Any, elsewhere: Any) -> None:
    listener = Listener()
    async with open_session(host, "session") as runs:
        await runs.spawn_task(listener, task_id="task")
        await runs_here(runs)
        async with open_session(elsewhere, "session") as looks_on:
            await looks_on.spawn_task(Listener(), task_id="of its own")
            await elsewhere.save_steering(steer(SteeringEventType.PAUSE))
            await eventually(lambda: listener.heard == ["PAUSE"], "it is paused where it runs")
            await elsewhere.save_steering(stated("stop", "of its own"))
            await ended(looks_on, "of its own")

            async def seen() -> bool:
                task = await looks_on.get_task("task")
                return task is not None and task.status is TaskStatus.PAUSED

            await eventually(seen, "it is seen as it is where it runs")
        await host.save_steering(stated("stop"))
        await ended(runs)
    statuses = {task.task_id: task.status.value for task in await host.list_tasks("session")}
    assert statuses == {"task": "COMPLETE", "of its own": "COMPLETE"}


@pytest.mark.parametrize("owner", [False, True])
async def test_a_cancel_of_a_task_that_nobody_runs_acts_for_the_owner(
    host: Any, elsewhere: Any, *, owner: bool
) -> None:
    kept = WatchedStore(host)
    crashed = StreamingSession("session", state_store=kept)
    await crashed.spawn_task(Listener(), task_id="task")
    await runs_here(crashed)
    async with open_session(elsewhere, "session", owner=owner) as session:
        await host.save_steering(stated("for later"))
        await host.save_steering(steer(SteeringEventType.CANCEL))
        await session.spawn_task(Listener(), task_id="other")
        await host.save_steering(stated("stop", "other"))
        await ended(session, "other")
        if owner:
            await ended(session)
        left = await session.get_task("task")
        assert left is not None
        assert (left.status is TaskStatus.CANCELLED) == owner
    await crashed.close()


async def test_messages_wait_for_room_and_a_cancel_does_not_wait_behind_them(
    host: Any, elsewhere: Any
) -> None:
    listener = Listener()
    async with open_session(host, "session") as session:
        listener.gate.clear()
        await session.spawn_task(listener, task_id="task")
        await runs_here(session)
        for number in range(20):
            await elsewhere.save_steering(stated(str(number)))
        listener.gate.set()
        await eventually(lambda: len(listener.heard) == 20, "all messages have arrived")
        assert listener.heard == [str(number) for number in range(20)]
        listener.gate.clear()
        for number in range(20):
            await elsewhere.save_steering(stated(str(number)))
        await elsewhere.save_steering(steer(SteeringEventType.CANCEL))
        task = await ended(session)
        assert task.status is TaskStatus.CANCELLED
        assert len(listener.heard) < 40


async def test_a_patch_of_an_ended_task_is_approved_from_elsewhere(
    host: Any, elsewhere: Any
) -> None:
    async def work(runtime: TaskRuntime) -> TaskResult:
        patch = ContextPatch(task_id="task", facts={"found": 1}, digest=["found"])
        return TaskResult(payload="done", context_patch=patch)

    async with open_session(host, "session") as session:
        await session.spawn_task(
            work,
            task_id="task",
            task_type=TaskType.BACKGROUND,
            merge_strategy=MergeStrategy.HUMAN_GATED,
        )
        await eventually(lambda: session.pending_patches, "the patch waits")
        (patch_id,) = session.pending_patches
        await elsewhere.save_steering(steer(SteeringEventType.APPROVE, patch_id="another"))
        await elsewhere.save_steering(steer(SteeringEventType.APPROVE, patch_id=patch_id))
        await eventually(session.get_background_results, "the patch is applied")
        assert not session.pending_patches


async def test_an_invalid_event_stops_nothing(host: Any, elsewhere: Any) -> None:
    async with open_session(host, "session") as session:
        await session.spawn_task(Listener(), task_id="task")
        await elsewhere.save_steering(steer(SteeringEventType.USER_MESSAGE))
        await elsewhere.save_steering(steer(SteeringEventType.PRIORITIZE, priority="high"))
        await elsewhere.save_steering(steer(SteeringEventType.PRIORITIZE, priority=7))
        await elsewhere.save_steering(stated("stop"))
        task = await ended(session)
        assert (task.result, task.priority) == (["stop"], 7)


async def test_steering_arrives_after_an_outage(
    settings: Settings, elsewhere: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        options = {"call_timeout_s": 0.5, "connect_timeout_s": 0.5}
        host: Any = make_store(settings, proxy.url, **options)
        listener = Listener()
        async with open_session(host, "session") as session:
            await session.spawn_task(listener, task_id="task")
            await elsewhere.save_steering(stated("before"))
            await eventually(lambda: listener.heard == ["before"], "it hears")
            proxy.refuse()
            assert proxy.cut()
            await elsewhere.save_steering(steer(SteeringEventType.PRIORITIZE, priority=3))
            await elsewhere.save_steering(stated("during"))
            await eventually(lambda: proxy.refused, "the server was missed")
            proxy.refuse(refusing=False)
            await elsewhere.save_steering(stated("stop"))
            task = await ended(session)
            assert (task.result, task.priority) == (["before", "during", "stop"], 3)
        await host.aclose()


async def test_an_own_event_whose_save_has_no_outcome_is_fed_if_it_stands_in_the_log(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        host: Any = make_store(settings, proxy.url, call_timeout_s=3.0, connect_timeout_s=0.5)
        listener = Listener()
        async with open_session(host, "session") as session:
            await session.spawn_task(listener, task_id="task")
            await host.save_steering(stated("before"))
            await eventually(lambda: listener.heard == ["before"], "it hears")
            proxy.silence()
            unsure = stated("unsure")
            with pytest.raises(OutcomeUnknown):
                await session.steer(unsure)
            assert proxy.swallowed
            proxy.silence(silent=False)
            proxy.cut()
            await eventually(lambda: "unsure" in listener.heard, "it was told", timeout_s=30)
            assert not await session.steer(unsure)
            await host.save_steering(stated("stop"))
            assert (await ended(session)).result == ["before", "unsure", "stop"]
        await host.aclose()


async def test_context_waits_for_room_in_a_full_inbox(host: Any, elsewhere: Any) -> None:
    listener = Listener()
    limits = SessionLimits(steering_queue_size=3)
    async with open_session(host, "session", limits=limits) as session:
        listener.gate.clear()
        await session.spawn_task(listener, task_id="task")
        texts = [str(number) for number in range(10)]
        for text in texts:
            await elsewhere.save_steering(steer(SteeringEventType.INJECT_CONTEXT, text=text))
        await elsewhere.save_steering(stated("stop"))
        listener.gate.set()
        assert (await ended(session)).result == [*texts, "stop"]


async def test_what_a_session_cannot_take_now_is_fed_again(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    async with open_session(far, "session") as session:
        await session.spawn_task(Listener(), task_id="task")
        # The session looks whether there is such a patch.
        with proxy.answer("HGETALL", holding=far.base.keys.context("session")):
            await elsewhere.save_steering(stated("fed twice", patch_id="none"))
            await elsewhere.save_steering(stated("stop"))
            assert (await ended(session)).result == ["fed twice", "stop"]


async def test_what_a_session_breaks_on_is_not_fed_again(
    host: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_session(host, "session") as session:
        real = session.steer
        troubles = [ValueError("s3cr3t")]

        async def steer_badly(event: SteeringEvent) -> bool:
            if troubles:
                raise troubles.pop(0)
            accepted: bool = await real(event)
            return accepted

        await session.spawn_task(Listener(), task_id="task")
        monkeypatch.setattr(session, "steer", steer_badly)
        for text in ("broken", "next", "stop"):
            await elsewhere.save_steering(stated(text))
        assert (await ended(session)).result == ["next", "stop"]
    assert not troubles
    assert "ValueError" in caplog.text
    assert "s3cr3t" not in caplog.text


async def test_a_task_that_missed_dropped_events_is_told_those_that_are_kept(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    host: Any = make_store(settings, max_steering_events_per_session=3)
    listener = Listener()
    async with open_session(host, "session") as session:
        await session.spawn_task(listener, task_id="task")
        await host.save_steering(stated("once"))
        await eventually(lambda: listener.heard == ["once"], "the first run has heard it")
    for text in ("dropped", "dropped too", "kept", "kept too", "stop"):
        await host.save_steering(stated(text))
    async with open_session(host, "session") as session:
        await session.spawn_task(Listener(), task_id="task")
        assert (await ended(session)).result == ["kept", "kept too", "stop"]
    assert "was dropped" in caplog.text
    await host.aclose()


async def test_a_reader_that_cannot_begin_begins_later(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    async with open_session(far, "session") as session:
        # Where an earlier reader had come to.
        with proxy.answer("HGETALL", holding="}:memory") as fault:
            await session.spawn_task(Listener(), task_id="task")
            await elsewhere.save_steering(stated("stop"))
            assert (await ended(session)).result == ["stop"]
        assert fault.seen == 2


async def test_a_session_without_a_bridge_has_the_store_itself(host: Any) -> None:
    kept = WatchedStore(host)
    session = StreamingSession("session", state_store=kept)
    await session.spawn_task(Listener(), task_id="task")
    event = stated("stop")
    assert await session.steer(event)
    await ended(session)
    await host.drain()
    assert await kept.list_steering("session") == [event]
    assert await session.list_updates() == await host.list_updates("session")


async def test_an_owner_finds_running_and_left_tasks_when_it_begins(
    host: Any, elsewhere: Any
) -> None:
    for name in ("left", "over"):
        status = TaskStatus.RUNNING if name == "left" else TaskStatus.COMPLETE
        snapshot = TaskContextSnapshot(session_id="session", task_id=name)
        await host.save_task(TaskState(name, "session", status, TaskType.BACKGROUND, 0, snapshot))
    kept = WatchedStore(host)
    session = StreamingSession("session", state_store=kept)
    await session.hydrate()
    await session.spawn_task(Listener(), task_id="task")
    async with following(kept, session, owner=True):
        for name in ("left", "over"):
            await elsewhere.save_steering(steer(SteeringEventType.CANCEL, name))
        await elsewhere.save_steering(stated("stop"))
        assert (await ended(session, "left")).status is TaskStatus.CANCELLED
        assert (await ended(session)).result == ["stop"]
        assert (await ended(session, "over")).status is TaskStatus.COMPLETE
    await session.close()


async def test_a_managed_session_is_followed_and_only_once(host: Any, elsewhere: Any) -> None:
    kept = WatchedStore(host)
    sessions = SessionManager(state_store=kept)
    session = await sessions.get_or_create("session")
    await session.spawn_task(Listener(), task_id="task")
    async with following(kept, session) as bridge:
        with pytest.raises(InvalidField, match="followed already"):
            async with following(kept, session):
                pass
        await elsewhere.save_steering(stated("stop"))
        assert (await ended(session)).result == ["stop"]
        assert bridge.delivered == 1
    with pytest.raises(InvalidField, match="not made with this store"):
        async with following(WatchedStore(host), session):
            pass
    await sessions.drop("session")


async def test_the_updates_of_a_session_are_in_the_store_when_it_is_closed(
    host: Any, elsewhere: Any
) -> None:
    async def work(runtime: TaskRuntime) -> TaskResult:
        for number in range(50):
            runtime.emit_update(UpdateType.PROGRESS, number)
        return TaskResult(payload=0)

    async with open_session(host, "session") as session:
        await session.run_task(work, task_id="task")
    reported = [each.content for each in await elsewhere.list_updates("session", task_id="task")]
    assert [content for content in reported if isinstance(content, int)] == list(range(50))
    (task,) = await elsewhere.list_tasks("session")
    assert task.result == 0


async def test_what_a_bridge_leaves_the_next_one_feeds(host: Any, elsewhere: Any) -> None:
    kept = WatchedStore(host)
    session = StreamingSession("session", state_store=kept)
    listener = Listener()
    async with following(kept, session) as bridge:
        await session.spawn_task(listener, task_id="task")
        assert not await session.steer(stated("nobody's", "unknown"))
        await elsewhere.save_steering(stated("one"))
        await eventually(lambda: listener.heard == ["one"], "the bridge feeds")
        # What ended before its reader began has none.
        await bridge._turn("unknown", frozenset(SteeringEventType))
    assert bridge.delivered == 1
    await elsewhere.save_steering(stated("stop"))
    async with following(kept, session) as bridge:
        assert (await ended(session)).result == ["one", "stop"]
        assert bridge.delivered == 1
    assert len(await host.list_steering("session")) == 3
