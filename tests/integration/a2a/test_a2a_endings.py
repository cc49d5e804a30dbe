"""Ends that a server adds to others' tasks, and to its own: when, of what, and never at a cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import TaskVersion
from a2a.server.events import EventQueue
from a2a.server.events.event_queue import EventQueueLegacy
from a2a.types.a2a_pb2 import Task, TaskState

from redis_state import Settings
from redis_state.errors import BackendError, OutcomeUnknown
from redis_state.integrations.a2a import (
    A2ABackend,
    A2AOptions,
    connect,
    create_agent_executor,
    create_event_stream,
    create_task_store,
    create_versioned_task_store,
)
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import Scripts
from redis_state.stores.a2a import ownership
from redis_state.stores.a2a.task_model import Ref, VersionedTask
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS, Keys
from tests.support.a2a.tasks import FAILED, WAITING, WORKING, caller, server_on, task
from tests.support.scripts.replies import ask, clock_ms, clock_passes, outcome
from tests.support.servers.faults import Proxy

ME = caller()
LEASE_S = 0.3
MISSING = TaskVersion.MISSING


async def save(backend: A2ABackend, made: Task, version: TaskVersion = MISSING) -> TaskVersion:
    store = create_versioned_task_store(backend)
    return await store.save(made, event=made, prev=None, prev_version=version, context=ME)


async def found(backend: A2ABackend, task_id: str = "t") -> VersionedTask:
    """Read a task as it is kept, without a look at its owner."""
    snapshot = await backend.tasks.read(backend.ref(task_id, ME))
    assert snapshot is not None
    return snapshot


async def becomes(backend: A2ABackend, wanted: TaskState, task_id: str = "t") -> None:
    async def is_so() -> bool:
        return (await found(backend, task_id)).state == str(int(wanted))

    await eventually(is_so, f"{task_id} is {wanted}")


def hasty(settings: Settings, url: str, **options: Any) -> A2ABackend:
    """Make a server that waits for no answer for long."""
    hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0}
    return connect(url, A2AOptions(**options), namespace=settings.namespace, **hurry)


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


async def fail_to_save(backend: A2ABackend, proxy: Proxy, version: TaskVersion) -> None:
    """Have a save's answer lost, and the server reachable again."""
    proxy.silence()
    with pytest.raises(OutcomeUnknown):
        await save(backend, task(text="lost"), version)
    assert proxy.swallowed > 0
    proxy.silence(silent=False)
    proxy.cut()


async def test_a_run_whose_save_failed_is_not_kept_alive_by_its_server(
    settings: Settings, proxy: Proxy
) -> None:
    async with hasty(settings, proxy.url, lease_s=LEASE_S) as far, server_on(settings) as near:
        version = await save(far, task())
        stream = create_event_stream(near)
        heard: list[Any] = []

        async def listen() -> None:
            heard.extend([event.event async for event in stream.subscribe("t", after=version)])

        listening = asyncio.create_task(listen())
        await fail_to_save(far, proxy, version)
        async with asyncio.timeout(60):
            await listening
        assert heard[-1].status.state == FAILED


async def test_a_save_that_is_broken_off_is_not_kept_alive_either(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        version = await save(far, task())
        proxy.silence()
        saving = asyncio.create_task(save(far, task(text="1"), version))
        await asyncio.wait({saving}, timeout=0.05)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        proxy.silence(silent=False)
        proxy.cut()
        await becomes(near, FAILED)


async def test_a_run_that_goes_on_after_a_save_that_failed_is_kept_alive(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    async with hasty(settings, proxy.url, lease_s=2) as far:
        await fail_to_save(far, proxy, await save(far, task()))

        async def saved() -> bool:
            store = create_task_store(far, holds_lease=True)
            return await outcome(store.save(task(text="next"), ME), BackendError) is None

        await eventually(saved, "the next save arrives")
        # Not before: on a busy machine the save may arrive after the lease.
        async with server_on(settings, lease_s=2) as near:
            await clock_passes(scripts, await clock_ms(scripts) + 2_500)
            await near.owner.sweep()
            assert (await found(near)).state == str(int(WORKING))


async def test_a_task_that_cannot_be_read_costs_no_other_task(
    settings: Settings, proxy: Proxy, scripts: Scripts
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=LEASE_S) as near,
    ):
        for name in ("bad", "other"):
            await save(far, task(name))
        await save(near, task("good"))
        key = near.tasks.keys(near.ref("bad", ME)).task
        await ask(scripts, "HSET", key, "body", b"\xff\xff")
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED, "other")
        await becomes(near, FAILED, "bad")
        ended = await create_task_store(near).get("bad", ME)
        assert ended is not None
        assert (ended.id, ended.status.state) == ("bad", FAILED)
        # The server's heart beats on: its own task outlives its first lease.
        await clock_passes(scripts, await clock_ms(scripts) + int(2_000 * LEASE_S))
        good = await create_task_store(near).get("good", ME)
        assert good is not None
        assert good.status.state == WORKING
        proxy.refuse(refusing=False)


async def test_a_server_that_stops_ends_its_tasks_also_if_one_cannot_be_read(
    settings: Settings, scripts: Scripts
) -> None:
    async with server_on(settings, lease_s=600) as near:
        async with server_on(settings, lease_s=600) as far:
            for name in ("bad", "other"):
                await save(far, task(name))
            key = near.tasks.keys(near.ref("bad", ME)).task
            await ask(scripts, "HSET", key, "body", b"\xff\xff")
        assert {(await found(near, name)).state for name in ("bad", "other")} == {str(int(FAILED))}


async def test_a_task_as_large_as_may_be_can_be_ended_and_read(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S, max_bytes=1000) as far,
        server_on(settings, lease_s=LEASE_S, max_bytes=1000) as near,
    ):
        large = task(text="x")
        large = task(text="x" * (1000 - large.ByteSize() - 8))
        assert 980 < large.ByteSize() <= 1000
        await save(far, large)
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED)
        ended = await create_task_store(near).get("t", ME)
        assert ended is not None
        assert ended.artifacts == large.artifacts
        proxy.refuse(refusing=False)


class Idle(AgentExecutor):
    """An agent that waits for ever."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Wait."""
        del context, event_queue
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing."""


async def test_a_server_that_ends_a_task_itself_stops_its_own_agent(
    settings: Settings, proxy: Proxy
) -> None:
    async with hasty(settings, proxy.url, lease_s=LEASE_S) as alone:
        agent, queue = Idle(), EventQueueLegacy()
        version = await save(alone, task())
        context = RequestContext(call_context=ME, task_id="t", context_id="c")
        work = asyncio.create_task(create_agent_executor(agent, alone).execute(context, queue))
        await agent.started.wait()
        await fail_to_save(alone, proxy, version)
        async with asyncio.timeout(60):
            await work
        assert agent.stopped.is_set()
        reported: Any = await queue.dequeue_event()
        assert reported.status.state == FAILED


# What is looked at, and when


async def test_an_orphan_is_found_in_seconds_however_long_the_finders_own_lease_is(
    settings: Settings, proxy: Proxy
) -> None:
    async with (
        server_on(settings, url=proxy.url, lease_s=LEASE_S) as far,
        server_on(settings, lease_s=600) as near,
    ):
        await save(far, task())
        proxy.refuse()
        proxy.cut()
        await becomes(near, FAILED)
        proxy.refuse(refusing=False)


async def test_a_sweep_looks_at_everything_that_is_due_and_at_nothing_else(
    settings: Settings, scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own sweeps, which begin with what it looks at, would take some before this one.
    monkeypatch.setattr(ownership, "_SWEEP_MS", 600_000)
    async with server_on(settings, lease_s=1800) as near:
        assert await near.owner.sweep() == 0
        watch = WatchList(scripts, keys, key_of=keys.a2a_watch)
        entries = [near.ref(str(number), ME) for number in range(3_000)]
        await asyncio.gather(
            *(watch.put(f"{ref.scope}|{ref.task_id}".encode(), delay_ms=0) for ref in entries)
        )
        assert await near.owner.sweep() >= len(entries) > 100 * WATCH_SHARDS

        async def taken_out() -> bool:
            await near.owner.sweep()
            shards = [await ask(scripts, "ZCARD", keys.a2a_watch(n)) for n in range(WATCH_SHARDS)]
            return not any(shards)

        await eventually(taken_out, "a second look takes them out")


async def test_what_may_not_be_judged_yet_is_looked_at_by_the_next_sweep_and_not_all_the_time(
    settings: Settings,
    scripts: Scripts,
    keys: Keys,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server_on(settings, url=proxy.url, lease_s=LEASE_S) as far:
        await save(far, task())
        monkeypatch.setattr(ownership, "_SWEEP_MS", 600_000)
        async with server_on(settings, lease_s=600) as near:
            proxy.refuse()
            proxy.cut()
            ref = near.ref("t", ME)
            # It was out of touch itself.
            near.owner._judges_at = inf
            begun_ms = await clock_ms(scripts)

            async def put_off() -> bool:
                await near.owner.sweep()
                scores = [
                    await ask(scripts, "ZSCORE", keys.a2a_watch(n), f"{ref.scope}|t")
                    for n in range(WATCH_SHARDS)
                ]
                return any(score and float(score) >= begun_ms + 200_000 for score in scores)

            await eventually(put_off, "the orphan is looked at in a third of a lease")
            assert (await found(near)).state == str(int(WORKING))
        assert proxy.cuts


@pytest.mark.parametrize("before", [None, WAITING])
async def test_a_task_that_is_begun_while_it_is_looked_at_stays_looked_after(
    settings: Settings,
    scripts: Scripts,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    before: TaskState | None,
) -> None:
    async with server_on(settings, lease_s=60) as far, server_on(settings, lease_s=60) as near:
        version = MISSING if before is None else await save(far, task(state=before))
        ref = far.ref("t", ME)
        entry = f"{ref.scope}|{ref.task_id}".encode()
        watch = WatchList(scripts, keys, key_of=keys.a2a_watch)
        looks_as_ever = near.owner.look
        begun: list[TaskVersion] = []

        async def look(there: Ref) -> VersionedTask | None:
            seen = await looks_as_ever(there)
            if not begun:
                begun.append(await save(far, task(), version))
            return seen

        monkeypatch.setattr(near.owner, "look", look)

        async def crossed() -> bool:
            if not begun:
                await watch.put(entry, delay_ms=0, sooner=True)
                await near.owner.sweep()
            return bool(begun)

        await eventually(crossed, "a look crosses with a beginning")
        scores = [
            await ask(scripts, "ZSCORE", keys.a2a_watch(n), entry) for n in range(WATCH_SHARDS)
        ]
        (due_ms,) = [float(score) for score in scores if score is not None]
        # Within a lease, which the write has just given.
        assert 0 < due_ms - await clock_ms(scripts) < 61_000
