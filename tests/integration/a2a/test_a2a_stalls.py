"""A Redis server that does not reply for longer than a call may take: A2A runs outlast it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import TaskVersion
from a2a.server.events import EventQueue
from a2a.server.events.event_queue import EventQueueLegacy
from a2a.server.request_handlers import RequestHandler
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import (
    Message,
    Part,
    Role,
    SendMessageRequest,
    TaskPushNotificationConfig,
)

from examples.a2a_server.server import make_card, make_handler
from redis_state import Settings
from redis_state.errors import AuthenticationFailed, BackendUnavailable, OutcomeUnknown
from redis_state.integrations.a2a import (
    A2ABackend,
    A2AOptions,
    connect,
    create_agent_executor,
    create_push_config_store,
    create_queue_manager,
    create_task_store,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.queues import RedisQueueManager
from redis_state.scripts import Scripts
from redis_state.stores.a2a.retry import repeated
from redis_state.stores.a2a.task_model import Phase, VersionedTask
from redis_state.testing import eventually
from tests.support.a2a.tasks import (
    COMPLETED,
    FAILED,
    SUBMITTED,
    WAITING,
    WORKING,
    caller,
    moved,
    piece,
    server_on,
    task,
)
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.faults import Proxy, run_server, sender_to, short_directory

ME = caller()
CALL_S = 0.3
MISSING = TaskVersion.MISSING


def hasty(settings: Settings, url: str, *, lease_s: float) -> A2ABackend:
    """Make a server whose calls have a short deadline."""
    hurry = {"call_timeout_s": CALL_S, "connect_timeout_s": CALL_S}
    return connect(url, A2AOptions(lease_s=lease_s), namespace=settings.namespace, **hurry)


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


async def found(backend: A2ABackend) -> VersionedTask:
    """Read a task as it is kept, without a look at its owner."""
    snapshot = await backend.tasks.read(backend.ref("t", ME))
    assert snapshot is not None
    return snapshot


async def answers(backend: A2ABackend) -> bool:
    """Return whether the server is reached."""
    with suppress(BackendUnavailable):
        return await backend.tasks.read(backend.ref("t", ME)) is not None
    return False


async def stalls(proxy: Proxy, scripts: Scripts, seconds: float, fault: str = "silent") -> None:
    """Have the server's replies, or the calls, lost for a while, and then the server back."""
    lost = proxy.swallowed
    proxy.silence(silent=fault == "silent")
    proxy.deafen(deaf=fault == "deaf")
    await eventually(lambda: proxy.swallowed > lost, "something is lost")
    await clock_passes(scripts, await clock_ms(scripts) + int(1000 * seconds))
    proxy.silence(silent=False)
    proxy.deafen(deaf=False)
    proxy.cut()


class Gated(AgentExecutor):
    """An agent that writes one piece and completes when its gate is open."""

    def __init__(self) -> None:
        self.task_id = ""
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work."""
        self.task_id = context.task_id or ""
        says = TaskUpdater(event_queue, self.task_id, context.context_id or "")
        first = task(self.task_id, SUBMITTED, context=context.context_id or "")
        await event_queue.enqueue_event(first)
        await says.start_work()
        self.started.set()
        await self.gate.wait()
        await says.add_artifact([Part(text="piece")], "piece")
        await says.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing."""


async def begun(backend: A2ABackend, handler: RequestHandler, agent: Gated) -> asyncio.Task[Any]:
    """Begin a run on a server whose connection is there, and wait until the agent has started."""

    async def reads() -> bool:
        try:
            return await create_task_store(backend).get("none", ME) is None
        except BackendUnavailable:  # a busy machine is slower than a short deadline
            return False

    await eventually(reads, "the server is connected")
    running = asyncio.create_task(streamed(handler))
    await eventually(lambda: agent.started.is_set() or running.done(), "the agent has started")
    if running.done():
        await running
    return running


async def streamed(handler: RequestHandler) -> list[Any]:
    """Send a message and read all that comes of it."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="go")])
    request = SendMessageRequest(message=message)
    return [event async for event in handler.on_message_send_stream(request, ME)]


@pytest.mark.parametrize("fault", ["silent", "deaf"])
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_run_outlasts_a_stall_that_is_longer_than_a_call_and_shorter_than_a_lease(
    settings: Settings,
    proxy: Proxy,
    scripts: Scripts,
    fault: str,
    legacy: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    async with (
        hasty(settings, proxy.url, lease_s=3.0) as far,
        server_on(settings, lease_s=3.0) as near,
    ):
        agent = Gated()
        handler = make_handler(far, make_card("http://here/"), agent=agent, legacy=legacy)
        running = await begun(far, handler, agent)
        reader = create_versioned_task_store(near)

        async def working() -> bool:
            read = await reader.get(agent.task_id, ME)
            return read is not None and read.task.status.state == WORKING

        await eventually(working, "the task is in work")
        # Its heart's renewals are lost, and so are the saves of what it writes now.
        stalling = asyncio.create_task(stalls(proxy, scripts, 4 * CALL_S, fault))
        await eventually(lambda: proxy.swallowed > 0, "something is lost")
        agent.gate.set()
        await stalling
        async with asyncio.timeout(20):
            events = await running
        states = [event.status.state for event in events if hasattr(event, "status")]
        assert states[-1] == COMPLETED
        kept = await reader.get(agent.task_id, ME)
        assert kept is not None
        assert kept.task.status.state == states[-1]
        assert [artifact.artifact_id for artifact in kept.task.artifacts] == ["piece"]
        # Each was written once, however often it was sent: nobody saw a version twice.
        ref = far.ref(agent.task_id, ME)
        rows = await near.tasks.log(ref).read_all()
        assert len(rows) == len(events) == 4


async def test_a_stall_that_outlasts_the_lease_fails_no_task_of_a_server_that_lives(
    settings: Settings, scripts: Scripts
) -> None:
    url = settings.url.get_secret_value()
    lease_s = 1.2
    outside = server_on(settings)  # not begun: it looks at nobody
    async with (
        Proxy(url) as left,
        Proxy(url) as right,
        hasty(settings, left.url, lease_s=lease_s) as worker,
        hasty(settings, right.url, lease_s=lease_s) as other,
    ):
        await create_task_store(worker, holds_lease=True).save(task(), ME)
        other.owner.begin()
        await other.owner.sweep()
        for each in (left, right):
            each.silence()

        async def run_out() -> bool:
            lease = outside.tasks.keys(outside.ref("t", ME)).lease
            expires = await ask(scripts, "HGET", lease, "expires")
            return await clock_ms(scripts) - int(expires) > CALL_S * 1000

        await eventually(run_out, "the lease has run out")
        await eventually(lambda: right.swallowed > 0, "the other got no reply either")
        # The other is back first, and finds a lease that has run out.
        right.silence(silent=False)
        right.cut()
        read = create_task_store(other)

        async def looked() -> bool:
            try:
                return await read.get("t", ME) is not None
            except BackendUnavailable:
                return False

        await eventually(looked, "the other reads again")
        assert await other.owner.sweep() >= 0
        left.silence(silent=False)
        left.cut()

        async def renewed() -> bool:
            return (await found(outside)).left_ms > 0

        await eventually(renewed, "the worker renews")
        assert left.swallowed > 0
        assert right.swallowed > 0
        assert (await found(outside)).state == str(int(WORKING))
        # When it is really gone, the other ends its task.
        left.refuse()
        left.cut()

        async def ended() -> bool:
            return (await found(outside)).state == str(int(FAILED))

        await eventually(ended, "the task is ended")
        assert left.refused > 0
        left.refuse(refusing=False)
    await outside.aclose()


@pytest.mark.parametrize("fault", ["silent", "deaf"])
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_run_that_could_not_be_saved_for_a_lease_ends_with_that_reason(
    settings: Settings,
    proxy: Proxy,
    scripts: Scripts,
    fault: str,
    legacy: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    outside = server_on(settings)  # not begun: it looks at nobody
    async with hasty(settings, proxy.url, lease_s=0.5) as far:
        agent = Gated()
        handler = make_handler(far, make_card("http://here/"), agent=agent, legacy=legacy)
        running = await begun(far, handler, agent)

        async def state() -> str:
            kept = await outside.tasks.read(outside.ref(agent.task_id, ME))
            return "" if kept is None else kept.state

        async def is_working() -> bool:
            return await state() == str(int(WORKING))

        async def has_failed() -> bool:
            return await state() == str(int(FAILED))

        await eventually(is_working, "the task is in work")
        stalling = asyncio.create_task(stalls(proxy, scripts, 2.0, fault))
        await eventually(lambda: proxy.swallowed > 0, "something is lost")
        agent.gate.set()
        await stalling
        await eventually(has_failed, "the task is ended")
        kept = await create_task_store(outside).get(agent.task_id, ME)
        assert kept is not None
        (stated,) = kept.status.message.parts
        # The legacy handler's queue is told before the task is saved: both may be under way.
        possible = ["save it", *(["publish its events"] if legacy else [])]
        assert stated.text in [
            f"The server that worked on this task could not {what}: Redis did not reply for 0.5 s."
            for what in possible
        ]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await outside.aclose()


async def test_a_run_that_could_not_be_begun_for_a_lease_fails_with_that_reason(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    async with hasty(settings, proxy.url, lease_s=0.5) as far:
        store = create_versioned_task_store(far)
        version = await store.save(
            task(state=WAITING), event=None, prev=None, prev_version=MISSING, context=ME
        )
        queue, agent = EventQueueLegacy(), Gated()
        context = RequestContext(call_context=ME, task_id="t", context_id="c")
        executor = create_agent_executor(agent, far)
        proxy.silence()
        stalling = asyncio.create_task(stalls(proxy, scripts, 2.0))
        with pytest.raises(BackendUnavailable):
            await executor.execute(context, queue)
        assert not agent.started.is_set()
        await stalling
        await eventually(lambda: answers(far), "the server is back")
        # The SDK then writes the failure without a word.
        event = moved(FAILED)
        await store.save(
            task(state=FAILED), event=event, prev=None, prev_version=version, context=ME
        )
        kept = await store.get("t", ME)
        assert kept is not None
        (stated,) = kept.task.status.message.parts
        assert "could not read it: Redis did not reply for 0.5 s" in stated.text
        rows = await far.tasks.log(far.ref("t", ME)).read_all()
        assert b"could not read it" in rows[-1].data
        assert not event.status.HasField("message")


async def test_a_task_that_is_worked_on_here_is_read_after_a_stall(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    async with hasty(settings, proxy.url, lease_s=3.0) as far:
        store = create_task_store(far, holds_lease=True)
        await store.save(task(), ME)
        stalling = asyncio.create_task(stalls(proxy, scripts, 3 * CALL_S))
        await eventually(lambda: proxy.swallowed > 0, "something is lost")
        read = await store.get("t", ME)
        await stalling
        assert read == task()


async def test_who_is_to_be_pushed_an_event_is_looked_up_after_a_stall(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    async with hasty(settings, proxy.url, lease_s=3.0) as far:
        configs = create_push_config_store(far)
        config = TaskPushNotificationConfig(url="https://hook/", token="t")
        kept = await configs.set_info("t", config, ME)
        # The SDK's sender would send nothing, and so would an announcement that uses it.
        proxy.silence()
        stalling = asyncio.create_task(stalls(proxy, scripts, 3 * CALL_S))
        assert await configs.get_info_for_dispatch("t") == [kept]
        assert proxy.swallowed > 0
        await stalling


async def tapped(manager: RedisQueueManager, task: str) -> EventQueueLegacy:
    """Tap a queue, however long a busy machine takes to connect."""

    async def tap() -> list[EventQueueLegacy]:
        with suppress(BackendUnavailable):
            made = await manager.tap(task)
            return [] if made is None else [made]
        return []

    (made,) = await eventually(tap, "the queue is tapped")
    assert isinstance(made, EventQueueLegacy)
    return made


async def test_what_a_legacy_queue_was_given_in_a_stall_is_told_once_and_in_order(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    far = create_queue_manager(hasty(settings, proxy.url, lease_s=3.0))
    near = create_queue_manager(server_on(settings, lease_s=3.0))
    queue = await far.create_or_tap("t")
    tap = await tapped(near, "t")
    stalling = asyncio.create_task(stalls(proxy, scripts, 3 * CALL_S))
    giving = [asyncio.create_task(queue.enqueue_event(piece(str(n)))) for n in range(5)]
    await asyncio.gather(stalling, *giving)
    async with asyncio.timeout(20):
        heard: list[Any] = [await tap.dequeue_event() for _ in range(5)]
    assert [event.artifact.artifact_id for event in heard] == [str(n) for n in range(5)]
    assert tap.queue.empty()
    await queue.close(immediate=True)
    await far.aclose()
    await near.aclose()


async def test_a_tap_outlasts_a_stall_that_is_longer_than_its_feeders_lease(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    far = create_queue_manager(server_on(settings, lease_s=0.6))
    near = create_queue_manager(hasty(settings, proxy.url, lease_s=0.6))
    queue = await far.create_or_tap("t")
    tap = await tapped(near, "t")
    await stalls(proxy, scripts, 1.0)
    await queue.enqueue_event(piece("1"))
    async with asyncio.timeout(20):
        event: Any = await tap.dequeue_event()
    assert event.artifact.artifact_id == "1"
    await queue.close(immediate=True)
    await far.aclose()
    await near.aclose()


# What repeats a call


def outcomes(*errors: Exception) -> Callable[[], Any]:
    """Make a call that fails so, one after the other, and then succeeds."""
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


async def test_a_call_that_may_have_happened_is_never_said_not_to_have(scripts: Scripts) -> None:
    unknown, away = OutcomeUnknown("x", "sent"), BackendUnavailable("x", "unsent")
    transport = scripts.transport
    assert await repeated(outcomes(unknown, away), transport, 3.0) == "done"
    with pytest.raises(BackendUnavailable, match="unsent"):
        await repeated(outcomes(away), transport, 0.0)
    with pytest.raises(OutcomeUnknown):
        await repeated(outcomes(unknown, *[away] * 99), transport, 0.1)


async def test_a_store_that_is_closed_is_not_waited_for(settings: Settings) -> None:
    async with server_on(settings) as backend:
        await create_task_store(backend).save(task(), ME)
    async with asyncio.timeout(5):
        with pytest.raises(BackendUnavailable, match="closed"):
            await create_task_store(backend).save(task(text="late"), ME)


async def test_a_server_that_is_refused_for_a_while_judges_nobody_and_ends_no_tap(
    settings: Settings, proxy: Proxy
) -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with Proxy(url) as mine, sender_to(url) as admin:
            await admin.send(
                "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", repeatable=True
            )
            refused = mine.url.replace("redis://", "redis://u:p@")
            far = hasty(settings, url, lease_s=60)
            near = hasty(settings, refused, lease_s=1)
            async with far, near:
                store = create_versioned_task_store(far)
                await store.save(
                    task("t", WORKING), event=None, prev=None, prev_version=MISSING, context=ME
                )
                await create_queue_manager(far).create_or_tap("t")
                await create_versioned_task_store(near).get("t", ME)
                tap = await create_queue_manager(near).tap("t")
                assert tap is not None
                assert near.owner.judges
                await admin.send("ACL", "SETUSER", "u", "resetpass", ">q", repeatable=True)
                assert mine.cut()
                await eventually(lambda: not near.owner.judges, "it knows that it is refused")
                assert not tap.is_closed()
                with pytest.raises(AuthenticationFailed):
                    await repeated(partial(found, near), near.tasks.base.scripts.transport, 0.5)
                await admin.send("ACL", "SETUSER", "u", "resetpass", ">p", repeatable=True)
                await eventually(lambda: near.owner.judges, "it is let in again")
                assert not tap.is_closed()
                assert (await found(near)).phase is Phase.OPEN
