"""Who works on an A2A task: leases, servers that are cut off, agents that are stopped from afar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion
from a2a.server.events import EventQueue
from a2a.server.events.event_queue import EventQueueLegacy
from a2a.server.tasks import PushNotificationSender
from a2a.types.a2a_pb2 import Task, TaskState
from a2a.utils.errors import TaskNotFoundError

from redis_state import Settings
from redis_state.integrations.a2a import (
    A2ABackend,
    create_agent_executor,
    create_event_stream,
    create_push_sender,
    create_task_store,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.executor import InterruptibleExecutor
from redis_state.primitives.log import follower as log_follower
from redis_state.scripts import Scripts
from redis_state.stores.a2a import ends
from redis_state.testing import eventually
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    WAITING,
    WORKING,
    caller,
    moved,
    piece,
    server_on,
    task,
)
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.faults import Proxy

ME = caller()
LEASE_S = 0.3
MISSING = TaskVersion.MISSING


async def save(backend: A2ABackend, made: Task, version: TaskVersion = MISSING) -> TaskVersion:
    store = create_versioned_task_store(backend)
    return await store.save(made, event=made, prev=None, prev_version=version, context=ME)


async def state(backend: A2ABackend, task_id: str = "t") -> TaskState:
    """Read a task's state as it is kept, without a look at its owner."""
    found = await backend.tasks.read(backend.ref(task_id, ME))
    assert found is not None
    return Task.FromString(found.body).status.state


async def becomes(backend: A2ABackend, wanted: TaskState, task_id: str = "t") -> None:
    async def is_so() -> bool:
        return await state(backend, task_id) == wanted

    await eventually(is_so, f"{task_id} is {wanted}")


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


# Leases


async def test_a_server_that_is_cut_off_loses_its_tasks_and_cannot_write_them(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        version = await save(far, task())
        for _ in range(3):
            assert await create_versioned_task_store(near).get("t", ME) is not None
        assert await state(near) == WORKING
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED)
        ended = await create_versioned_task_store(near).get("t", ME)
        proxy.refuse(refusing=False)
        assert proxy.cuts == 1
        assert proxy.refused > 0
        for late in (WORKING, COMPLETED, CANCELED):
            with pytest.raises(ConcurrentTaskModificationError):
                await save(far, task(state=late), version)
        assert await create_versioned_task_store(near).get("t", ME) == ended
        assert ended is not None
        assert "did not renew its lease" in ended.task.status.message.parts[0].text


async def test_a_server_that_lives_keeps_its_idle_task(
    settings: Settings, scripts: Scripts
) -> None:
    async with server_on(settings, lease_s=2) as far, server_on(settings, lease_s=2) as near:
        version = await save(far, task())
        runs_out_ms = await clock_ms(scripts) + 2_000
        events = create_event_stream(near).subscribe("t", after=version)
        reported = asyncio.ensure_future(anext(events))
        # Longer than the lease that came with the write: somebody has renewed it.
        while await clock_ms(scripts) < runs_out_ms + 500:
            await near.owner.sweep()
            found = await create_versioned_task_store(near).get("t", ME)
            assert found is not None
            assert found.task.status.state == WORKING
            await asyncio.wait({reported}, timeout=0.1)
        assert not reported.done()
        reported.cancel()
        await asyncio.wait({reported})


async def test_an_orphan_is_ended_once_and_told_by_one(settings: Settings, proxy: Proxy) -> None:
    reported: list[tuple[str, Any]] = []

    async def report(task_id: str, event: Any) -> None:
        reported.append((task_id, event))

    async with server_on(settings, url=proxy.url, lease_s=LEASE_S) as far:
        first = await save(far, task())
        others = [server_on(settings, lease_s=LEASE_S, on_orphan=report) for _ in range(5)]
        proxy.refuse()
        proxy.cut()
        streams = [create_event_stream(one) for one in others]

        async def listen(stream: Any) -> list[Any]:
            return [event.event async for event in stream.subscribe("t", after=first)]

        async with asyncio.timeout(60):
            heard = await asyncio.gather(*map(listen, streams))
        assert [len(events) for events in heard] == [1] * 5
        assert all(events == heard[0] for events in heard)
        assert heard[0][0].status.state == FAILED
        proxy.refuse(refusing=False)
        for one in others:
            await one.aclose()
        assert reported == [("t", heard[0][0])]


async def test_a_subscriber_of_a_task_that_the_server_lost_hears_of_it_within_a_lease(
    settings: Settings, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 600)
    async with (
        server_on(settings, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        version = await save(far, task())
        stream = create_event_stream(near)
        events = stream.subscribe("t", after=stream.version_at("t", ME))
        await anext(events)
        await save(far, task(), version)
        # It follows: this event was published, or read when the subscription was confirmed.
        await anext(events)
        log = far.tasks.log(far.ref("t", ME))
        await ask(scripts, "DEL", far.tasks.keys(far.ref("t", ME)).task, log.keys.rows)
        await ask(scripts, "DEL", log.keys.ids)
        with pytest.raises(TaskNotFoundError):
            await anext(events)
        await eventually(lambda: not far.owner.held, "its server holds no lease on it any more")


class Sender(PushNotificationSender):
    """Notes what it sends, and for whom."""

    def __init__(self, name: str, sent: list[tuple[str, str, TaskState]]) -> None:
        self._name, self._sent = name, sent

    async def send_notification(self, task_id: str, event: Any) -> None:
        self._sent.append((self._name, task_id, event.status.state))


async def test_an_end_whose_server_dies_before_its_push_is_pushed_by_another(
    settings: Settings, proxy: Proxy
) -> None:
    sent: list[tuple[str, str, TaskState]] = []
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        sender = create_push_sender(Sender("far", sent), far)
        create_push_sender(Sender("near", sent), near)
        begun = await save(far, task("begun"))
        await sender.send_notification("begun", task("begun"))
        await save(far, task("begun", COMPLETED), begun)
        for name in ("at once", "sent"):
            await save(far, task(name, COMPLETED))
        await sender.send_notification("sent", task("sent", COMPLETED))
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: len(sent) >= 4, "the other server sends what is left")

        async def announced() -> bool:
            names = ("begun", "at once", "sent")
            found = [await near.tasks.read(near.ref(name, ME)) for name in names]
            return not any(each is None or each.unannounced for each in found)

        await eventually(announced, "that is recorded")
        assert sent[:2] == [("far", "begun", WORKING), ("far", "sent", COMPLETED)]
        assert sorted(sent[2:]) == [("near", name, COMPLETED) for name in ("at once", "begun")]
        proxy.refuse(refusing=False)


async def test_telling_of_an_orphan_may_fail(
    settings: Settings, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def report(_: str, __: Any) -> None:
        raise RuntimeError("no network")

    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S, on_orphan=report) as near,
    ):
        await save(far, task())
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED)
        proxy.refuse(refusing=False)
    assert "reporting the end of task 't' failed" in caplog.text


async def test_an_end_whose_announcement_failed_is_announced_again_under_the_same_id(
    settings: Settings, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_PARKED_MS", 300)
    reported: list[str] = []

    async def report(_: str, event: Any) -> None:
        reported.append(event.status.message.message_id)
        if len(reported) == 1:
            raise RuntimeError("no network")
        if len(reported) == 2:
            await asyncio.Event().wait()

    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S, on_orphan=report) as near,
    ):
        await save(far, task())
        proxy.refuse()
        proxy.cut()

        async def announced() -> bool:
            found = await near.tasks.read(near.ref("t", ME))
            return found is not None and found.state == str(int(FAILED)) and not found.unannounced

        await eventually(announced, "the end is announced")
        # Once it raised, once it did not return in time; with what is announced it ends.
        assert len(reported) == 3
        assert len(set(reported)) == 1
        proxy.refuse(refusing=False)


async def test_an_end_that_a_server_died_over_is_announced_by_another(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    reported: list[tuple[str, str]] = []
    returns = asyncio.Event()

    async def slowly(_: str, event: Any) -> None:
        reported.append(("finder", event.status.message.message_id))
        await returns.wait()

    async def report(_: str, event: Any) -> None:
        reported.append(("other", event.status.message.message_id))

    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as dead,
        Proxy(settings.url.get_secret_value()) as line,
        server_on(settings, url=line.url, lease_s=LEASE_S, on_orphan=slowly),
    ):
        await save(dead, task())
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: reported, "the finder announces the end")
        async with server_on(settings, lease_s=LEASE_S, on_orphan=report) as other:
            # The finder lives: however long it takes, nobody else announces the end.
            await clock_passes(scripts, await clock_ms(scripts) + int(4_000 * LEASE_S))
            await other.owner.sweep()
            assert [who for who, _ in reported] == ["finder"]
            line.refuse()
            line.cut()
            await eventually(lambda: reported[1:], "the other announces the end")

            async def announced() -> bool:
                found = await other.tasks.read(other.ref("t", ME))
                return found is not None and not found.unannounced

            await eventually(announced, "it is announced")
            assert line.refused > 0
            line.refuse(refusing=False)
            returns.set()
            await other.owner.sweep()
        proxy.refuse(refusing=False)
    assert [who for who, _ in reported] == ["finder", "other"]
    assert len({message_id for _, message_id in reported}) == 1


async def test_a_task_that_waits_for_somebody_has_no_owner(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        version = await save(far, task())
        version = await save(far, task(state=WAITING), version)
        await save(far, task("other"))
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED, "other")
        await near.owner.sweep()
        assert await state(near) == WAITING
        # Whoever goes on with it is its owner from then on.
        await save(near, task(), version)
        found = await near.tasks.read(near.ref("t", ME))
        assert found is not None
        assert found.owner == near.owner.name
        proxy.refuse(refusing=False)


async def test_a_plain_store_takes_a_lease_only_when_it_is_told_to(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        await create_task_store(far).save(task("unheld"), ME)
        await create_task_store(far, holds_lease=True).save(task("held"), ME)
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED, "held")
        assert await state(near, "unheld") == WORKING
        proxy.refuse(refusing=False)


async def test_a_server_that_stops_ends_what_it_works_on(settings: Settings) -> None:
    async with server_on(settings, lease_s=600) as near:
        async with server_on(settings, lease_s=600) as far:
            await save(far, task())
            await save(far, task("done", COMPLETED))
            await save(far, task("waits", WAITING))
            version = await save(far, task("taken over"))
            await save(near, task("taken over", text="2"), version)
        states = [await state(near, name) for name in ("t", "done", "waits", "taken over")]
        assert states == [FAILED, COMPLETED, WAITING, WORKING]
        ended = await create_versioned_task_store(near).get("t", ME)
        assert ended is not None
        assert "was stopped" in ended.task.status.message.parts[0].text


# Agents


class Agent(AgentExecutor):
    """An agent that waits, and notes what happens to it."""

    def __init__(self, *, cancel: str = "") -> None:
        self.recorded: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self._cancel = cancel

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Wait for ever, or until told to go on."""
        assert context.task_id
        self.started.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.recorded.append("stopped")
            if self._cancel != "is deaf":
                raise
            await self.go_on.wait()
        await event_queue.enqueue_event(moved(COMPLETED))
        self.recorded.append("went on")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Note the state that the task was found in."""
        del event_queue
        assert context.current_task is not None
        self.recorded.append(f"asked {TaskState.Name(context.current_task.status.state)}")
        if self._cancel == "fails":
            raise RuntimeError("no")
        if self._cancel == "hangs":
            await asyncio.Event().wait()


def running(
    backend: A2ABackend, agent: Agent, queue: EventQueueLegacy, **options: Any
) -> asyncio.Task[None]:
    executor = create_agent_executor(agent, backend)
    if options:
        executor = InterruptibleExecutor(backend, agent, **options)
    context = RequestContext(call_context=ME, task_id="t", context_id="c")
    return asyncio.create_task(executor.execute(context, queue))


@pytest.mark.parametrize("cancel", ["", "fails", "hangs", "is deaf"])
async def test_a_cancel_from_afar_stops_an_agent_that_writes_nothing(
    settings: Settings, cancel: str
) -> None:
    async with server_on(settings) as here, server_on(settings) as there:
        queue, agent = EventQueueLegacy(), Agent(cancel=cancel)
        version = await save(here, task())
        work = running(here, agent, queue, stop_s=0.2)
        await agent.started.wait()
        await save(there, task(state=CANCELED), version)
        async with asyncio.timeout(60):
            await work
        assert agent.recorded == ["asked TASK_STATE_CANCELED", "stopped"]
        reported: Any = await queue.dequeue_event()
        assert reported.status.state == CANCELED
        agent.go_on.set()  # one that did not stop is left behind


async def test_an_agent_is_stopped_when_its_task_is_deleted(settings: Settings) -> None:
    async with server_on(settings) as here, server_on(settings) as there:
        queue, agent = EventQueueLegacy(), Agent()
        await save(here, task())
        work = running(here, agent, queue)
        await agent.started.wait()
        await create_versioned_task_store(there).delete("t", ME)
        with pytest.raises(TaskNotFoundError):
            async with asyncio.timeout(60):
                await work
        assert agent.recorded[-1:] == ["stopped"]
        with pytest.raises(TaskNotFoundError):
            await running(here, agent, queue)


async def test_an_agent_whose_task_has_ended_is_not_begun(settings: Settings) -> None:
    async with server_on(settings) as here:
        queue, agent = EventQueueLegacy(), Agent()
        await save(here, task(state=CANCELED), await save(here, task()))
        await running(here, agent, queue)
        assert not agent.started.is_set()
        reported: Any = await queue.dequeue_event()
        assert reported.status.state == CANCELED


async def test_an_agents_own_end_and_other_events_stop_nothing(settings: Settings) -> None:
    async with server_on(settings) as here, server_on(settings) as there:
        queue, agent = EventQueueLegacy(), Agent()
        version = await save(here, task())
        work = running(here, agent, queue)
        await agent.started.wait()
        version = await create_versioned_task_store(there).save(
            task(), event=piece("1"), prev=None, prev_version=version, context=ME
        )
        await save(here, task(state=COMPLETED), version)
        # What comes after those two is not heard of before they are.
        stream = create_event_stream(here)
        after = stream.version_at("t", ME)
        assert len([event async for event in stream.subscribe("t", after=after)]) == 3
        agent.go_on.set()
        async with asyncio.timeout(60):
            await work
        assert agent.recorded == ["went on"]


async def test_an_agent_stops_with_whoever_runs_it(settings: Settings) -> None:
    async with server_on(settings) as here:
        queue, agent = EventQueueLegacy(), Agent()
        await save(here, task())
        work = running(here, agent, queue)
        await agent.started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert agent.recorded == ["stopped"]
        waiting = [one for one in asyncio.all_tasks() if "follow" in str(one.get_coro())]
        assert waiting == []


async def test_an_agent_hears_of_a_cancel_after_events_it_missed_were_dropped(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, max_events=5) as here,
        server_on(settings, max_events=5) as there,
    ):
        queue, agent = EventQueueLegacy(), Agent()
        version = await save(here, task())
        work = running(here, agent, queue)
        await agent.started.wait()
        proxy.refuse()
        proxy.cut()
        for number in range(40):
            version = await save(there, task(text=str(number)), version)
        await save(there, task(state=CANCELED), version)
        proxy.refuse(refusing=False)
        async with asyncio.timeout(60):
            await work
        assert agent.recorded == ["asked TASK_STATE_CANCELED", "stopped"]


async def test_a_write_that_comes_late_leaves_its_task_on_the_watch_list(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        server_on(settings, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        tasks, ref = far.owner.tasks, far.ref("t", ME)
        write, entry, watch = tasks.write, ref.entry, far.owner._watch
        late: list[bool] = []
        assert await create_versioned_task_store(near).get("t", ME) is None

        async def is_out() -> bool:
            return not await watch.has(entry)

        async def held_up(*given: Any, **named: Any) -> Any:
            # A sweep finds no task behind the entry, twice.
            await eventually(is_out, "the entry is taken out")
            late.append(True)
            return await write(*given, **named)

        monkeypatch.setattr(tasks, "write", held_up)
        await save(far, task())
        assert late
        assert await watch.has(entry)
