"""What a session does while the server takes no writes: nothing is lost, and no lease is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.sessions import SessionLimits, TaskResult, TaskRuntime
from penguiflow.state import SteeringEvent, SteeringEventType, TaskStatus

from redis_state import Settings
from redis_state.errors import ConfigError
from redis_state.integrations.penguiflow.durable.registry import LEFT
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually
from tests.support.penguiflow.sessions import make_store
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

LEASE_S = 0.6


@pytest.fixture
def options() -> Mapping[str, Any]:
    return {"session_task_lease": timedelta(seconds=LEASE_S)}


class Work:
    """A pipeline that ends when it may."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: TaskRuntime) -> TaskResult:
        self.begun.set()
        await self.go_on.wait()
        return TaskResult(payload="done")


async def settled(session: Any, wanted: set[str]) -> None:
    """Have a session of another process fail what was left."""

    async def all_of_them() -> bool:
        await session.settle()
        found = {task.task_id for task in await session.list_tasks() if task.error == LEFT}
        return found == wanted

    await eventually(all_of_them, f"{wanted} are settled")


async def test_what_a_task_returned_while_the_server_was_full_is_saved_afterwards(
    proxy: CommandProxy, settings: Settings, elsewhere: Any, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    async with (
        make_store(settings, proxy.url) as far,
        open_session(far, "session") as here,
    ):
        registry: Any = here.registry
        await here.spawn_task(work, task_id="task")
        await work.begun.wait()
        with proxy.answer("put_record", OOM, times=None, holding="COMPLETE"):
            work.go_on.set()
            await eventually(lambda: caplog.text.count("not saved yet") >= 2, "it is tried again")

        async def complete() -> bool:
            (task,) = await elsewhere.list_tasks("session")
            return (task.status, task.result) == (TaskStatus.COMPLETE, "done")

        await eventually(complete, "the result is there")
        await eventually(lambda: "task" not in registry.leases, "the lease is given back")


async def test_a_task_whose_end_cannot_be_saved_is_settled_and_gives_its_place_back(
    proxy: CommandProxy, far: Any, elsewhere: Any
) -> None:
    work, limits = Work(), SessionLimits(max_concurrent_tasks=1)
    async with (
        open_session(far, "session", limits=limits) as here,
        open_session(elsewhere, "session") as there,
    ):
        registry: Any = here.registry
        await here.spawn_task(work, task_id="one")
        await work.begun.wait()
        await here.spawn_task(Work(), task_id="two")
        with (
            proxy.answer("put_record", OOM, times=None, holding="COMPLETE"),
            proxy.answer("put_record", OOM, holding="RUNNING"),
        ):
            work.go_on.set()
            # The second one begins once the first has ended, and its beginning is not saved.
            await eventually(lambda: not registry.leases.names(), "no lease is kept")
        await settled(there, {"one", "two"})
        assert {task.status for task in await here.list_tasks()} == {TaskStatus.FAILED}
        assert (await here.run_task(Done(), task_id="three")).payload == "done"


async def test_a_task_that_is_cancelled_while_its_start_is_saved_gives_its_place_back(
    proxy: CommandProxy, far: Any
) -> None:
    async def cancel() -> None:
        here._task_handles["one"].cancel()
        await asyncio.wait({here._task_handles["one"]})

    limits = SessionLimits(max_concurrent_tasks=1)
    async with open_session(far, "session", limits=limits) as here:
        with proxy.meanwhile("put_record", cancel, holding="RUNNING"):
            await here.spawn_task(Work(), task_id="one")
            await eventually(lambda: "one" not in here._task_handles, "it has ended")
        assert (await here.run_task(Done(), task_id="two")).payload == "done"


async def test_a_task_that_fails_after_it_was_resumed_gives_back_one_place(far: Any) -> None:
    async def resumed(runtime: TaskRuntime) -> TaskResult:
        # As PenguiFlow's planner does with a pause that is approved.
        for status in (TaskStatus.PAUSED, TaskStatus.RUNNING):
            await runtime.session.registry.update_status(runtime.state.task_id, status)
        raise RuntimeError("rejected")

    # Without a limit of time the pipeline runs in the asyncio task that began it, on each Python.
    limits = SessionLimits(max_concurrent_tasks=1, max_task_runtime_s=None)
    async with open_session(far, "session", limits=limits) as here:
        registry: Any = here.registry
        for number in range(3):
            with pytest.raises(RuntimeError, match="rejected"):
                await here.run_task(resumed, task_id=f"resumed-{number}")
        first, second = Work(), Work()
        await here.spawn_task(first, task_id="first")
        await first.begun.wait()
        await here.spawn_task(second, task_id="second")
        resume = SteeringEvent(
            session_id="session",
            task_id="first",
            event_type=SteeringEventType.RESUME,
            payload={},
            source="ann",
        )
        assert await asyncio.create_task(here.steer(resume))
        assert not second.begun.is_set()
        first.go_on.set()
        await second.begun.wait()
        second.go_on.set()
        await eventually(lambda: not registry.leases.names(), "both have ended")
        assert not registry.starting | registry.expected


class Done(Work):
    """A pipeline that ends at once."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on.set()


async def test_a_session_that_closes_while_the_server_is_away_keeps_no_lease(
    proxy: CommandProxy, settings: Settings, elsewhere: Any, options: Mapping[str, Any]
) -> None:
    async with make_store(settings, proxy.url, call_timeout_s=0.3, **options) as far:
        async with open_session(far, "session") as here:
            work = Work()
            registry: Any = here.registry
            await here.spawn_task(work, task_id="task")
            await work.begun.wait()
            proxy.refuse()
            assert proxy.cut()
        assert proxy.refused
        assert registry.leases.names() == []
        proxy.refuse(refusing=False)
        async with open_session(elsewhere, "session") as there:
            await settled(there, {"task"})


def message(text: str) -> SteeringEvent:
    kind = SteeringEventType.USER_MESSAGE
    return SteeringEvent(
        session_id="session", task_id="task", event_type=kind, payload={"text": text}
    )


async def test_a_reader_survives_what_it_does_not_expect(
    far: Any, elsewhere: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(runtime: TaskRuntime) -> None:
        while True:
            event = await runtime.steering.next()
            heard.put_nowait(event.payload["text"])

    watch, failures = far.watch_steering, [RuntimeError("secret"), ConfigError("not now")]

    def fail(*names: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return watch(*names, **options)

    monkeypatch.setattr(far, "watch_steering", fail)
    async with open_session(far, "session") as here:
        await here.spawn_task(listen, task_id="task")
        await elsewhere.save_steering(message("hello"))
        async with asyncio.timeout(30):
            assert await heard.get() == "hello"
    assert not failures
    assert caplog.text.count("is not heard") == 2
    assert "secret" not in caplog.text


async def test_what_a_session_was_given_itself_is_forgotten_with_its_task(far: Any) -> None:
    async with open_session(far, "session") as here:
        store: Any = here._state_store
        bridge = store.bridges["session"]
        for number in range(5):
            await here.spawn_task(Work(), task_id=f"task-{number}")
            assert await here.cancel_task(f"task-{number}")
        await eventually(lambda: not bridge._own, "nothing is remembered")
