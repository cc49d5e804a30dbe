"""Queues of the SDK's legacy handler that can be tapped on any server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from functools import partial
from typing import Any

import pytest
from a2a.server.events.event_queue import EventQueueLegacy
from a2a.server.events.queue_manager import NoTaskQueue, TaskQueueExists

from redis_state import ConfigError, RedisStateStore, Settings
from redis_state.errors import BackendError
from redis_state.integrations.a2a import (
    A2AOptions,
    RedisQueueManager,
    connect,
    create_push_config_store,
    create_queue_manager,
    create_task_store,
)
from redis_state.primitives.lease import Leases
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.a2a.servers import (
    Listener,
    RpcError,
    ended_within,
    message,
    pieces,
    replica,
    state_of,
)
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    WAITING,
    WORKING,
    caller,
    piece,
    server_on,
    task,
)
from tests.support.scripts.replies import clock_ms, lives
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy

ME = caller()
legacy = partial(replica, options=("--legacy",))
LEASE_S = 0.3


@pytest.fixture
async def pair(settings: Settings) -> AsyncIterator[tuple[RedisQueueManager, RedisQueueManager]]:
    """Give the queues of two servers."""
    made = [create_queue_manager(server_on(settings)) for _ in range(2)]
    yield made[0], made[1]
    for one in made:
        await one.aclose()


async def read(queue: EventQueueLegacy | None) -> list[str]:
    """Read a queue to its end; give what the events brought."""
    assert queue is not None
    found: list[str] = []
    async with asyncio.timeout(60):
        while True:
            asking = asyncio.ensure_future(queue.dequeue_event())
            while not asking.done():
                await asyncio.wait({asking}, timeout=0.05)
                if queue.is_closed() and queue.queue.empty() and not asking.done():
                    asking.cancel()
            if asking.cancelled() or asking.exception() is not None:
                return found
            event: Any = asking.result()
            queue.task_done()
            found.append(event.artifact.artifact_id)


async def test_every_tap_on_every_server_gets_every_event(
    pair: tuple[RedisQueueManager, RedisQueueManager],
) -> None:
    here, there = pair
    queue = await here.create_or_tap("t")
    own = asyncio.create_task(read(queue))
    taps = [await one.tap("t") for one in (here, there, there, there)]
    reading = [asyncio.create_task(read(tap)) for tap in taps]
    for number in range(20):
        await queue.enqueue_event(piece(str(number)))
    late = asyncio.create_task(read(await there.tap("t")))
    await queue.enqueue_event(piece("20"))
    await queue.close()
    everything = [str(number) for number in range(21)]
    assert await own == everything
    for tap in reading:
        assert await tap == everything
    # A tap begins where it is made, as the SDK says.
    assert await late == ["20"]


@pytest.mark.parametrize("new", [1, 2, 3])
async def test_a_tap_gets_every_event_once_although_the_server_lost_some(
    settings: Settings, new: int
) -> None:
    async with rolling_back() as server:
        here, there = (create_queue_manager(server_on(settings, url=server.url)) for _ in "ab")
        queue = await here.create_or_tap("t")
        own = asyncio.create_task(read(queue))
        tap = await there.tap("t")
        assert tap is not None
        await queue.enqueue_event(piece("kept"))
        await eventually(lambda: tap.queue.qsize() == 1, "the tap has the first event")
        await server.mark()
        lost, since = ["lost 1", "lost 2"], [f"new {n}" for n in range(new)]
        for name in lost:
            await queue.enqueue_event(piece(name))
        await eventually(lambda: tap.queue.qsize() == 3, "the tap has all events")
        await server.go_back()
        for name in since:
            await queue.enqueue_event(piece(name))
        reading = asyncio.create_task(read(tap))
        await queue.close()
        assert await reading == await own == ["kept", *lost, *since]
        for one in (here, there):
            await one.aclose()


async def test_a_queue_that_nobody_feeds_cannot_be_tapped(
    pair: tuple[RedisQueueManager, RedisQueueManager],
) -> None:
    here, there = pair
    for one in pair:
        assert await one.tap("t") is None
        assert await one.get("t") is None
        with pytest.raises(NoTaskQueue):
            await one.close("t")
    queue = await here.create_or_tap("t")
    assert await here.get("t") is queue
    assert await there.get("t") is None
    with pytest.raises(TaskQueueExists):
        await here.add("t", EventQueueLegacy())
    await here.close("t")
    assert queue.is_closed()
    assert await there.tap("t") is None
    await queue.enqueue_event(piece("late"))
    again = await here.create_or_tap("t")
    assert again is not queue
    tap = await there.tap("t")
    await again.enqueue_event(piece("new"))
    again.task_done()
    await again.close(immediate=True)
    assert await read(tap) == ["new"]


async def test_a_queue_of_another_make_is_fed_too(
    pair: tuple[RedisQueueManager, RedisQueueManager],
) -> None:
    here, there = pair
    queue = EventQueueLegacy()
    await here.add("t", queue)
    tap = await there.tap("t")
    await queue.enqueue_event(piece("1"))
    reading = asyncio.create_task(read(queue))
    await here.close("t")
    assert await read(tap) == ["1"]
    assert await reading == ["1"]


async def test_taps_of_a_server_that_is_cut_off_end(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = create_queue_manager(server_on(settings, url=proxy.url, lease_s=LEASE_S))
        near = create_queue_manager(server_on(settings, lease_s=LEASE_S))
        queue = await far.create_or_tap("t")
        taps = [await near.tap("t") for _ in range(2)]
        await queue.enqueue_event(piece("1"))
        proxy.refuse()
        proxy.cut()
        for tap in taps:
            assert await read(tap) == ["1"]
        assert proxy.refused > 0
        assert await near.tap("t") is None
        proxy.refuse(refusing=False)
        await queue.close(immediate=True)
        await far.aclose()
        await near.aclose()


async def test_the_last_event_of_a_tap_whose_feeder_died_is_the_tasks_end(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = create_queue_manager(server_on(settings, url=proxy.url, lease_s=LEASE_S))
        near = create_queue_manager(server_on(settings, lease_s=LEASE_S))
        for name, state in (("dies", WORKING), ("waits", WAITING)):
            queue = await far.create_or_tap(name)
            await create_task_store(far.backend, holds_lease=True).save(task(name, state), ME)
            await queue.enqueue_event(piece("before", name))
        reader = create_task_store(near.backend)
        taps: dict[str, EventQueueLegacy | None] = {}
        for name in ("dies", "waits"):
            assert await reader.get(name, ME) is not None
            taps[name] = await near.tap(name)
        # Whose task it is was not read by whoever taps now: then nobody may be told of it.
        unknown = await asyncio.create_task(near.tap("dies"), context=Context())
        proxy.refuse()
        proxy.cut()
        for name, state in (("dies", FAILED), ("waits", WAITING)):
            tap = taps[name]
            assert tap is not None
            async with asyncio.timeout(20):
                reported: Any = await tap.dequeue_event()
            kept = await reader.get(name, ME)
            assert kept is not None
            assert reported.status == kept.status
            assert reported.status.state == state
            tap.task_done()
        assert await read(unknown) == []
        assert proxy.refused > 0
        proxy.refuse(refusing=False)
        await far.aclose()
        await near.aclose()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_queue_whose_end_cannot_be_told_is_closed_all_the_same(
    settings: Settings,
    hangs: bool,  # noqa: FBT001
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0}
        options = A2AOptions(lease_s=LEASE_S)
        backend = connect(proxy.url, options, namespace=settings.namespace, **hurry)
        far = create_queue_manager(backend)
        near = create_queue_manager(server_on(settings, lease_s=LEASE_S))
        queue = await far.create_or_tap("t")
        own, tap = await queue.tap(), await near.tap("t")
        proxy.silence(silent=hangs)
        if not hangs:
            proxy.refuse()
            proxy.cut()
        await far.close("t")
        assert queue.is_closed()
        assert await read(own) == []
        assert await far.get("t") is None
        assert proxy.swallowed + proxy.refused > 0
        # Nor was a queue made that nobody hears of.
        with pytest.raises(BackendError):
            await far.create_or_tap("u")
        with pytest.raises(BackendError):
            await far.add("v", EventQueueLegacy())
        assert await far.get("u") is await far.get("v") is None
        assert backend.fed == set()
        # Whoever listens elsewhere hears it from the lease, which nobody renews.
        assert await read(tap) == []
        proxy.silence(silent=False)
        proxy.refuse(refusing=False)
        proxy.cut()
        await far.aclose()
        await near.aclose()


async def test_a_queue_that_is_fed_again_soon_after_its_feeder_died_can_be_tapped(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        dead = create_queue_manager(server_on(settings, url=proxy.url, lease_s=LEASE_S))
        here, there = (create_queue_manager(server_on(settings, lease_s=LEASE_S)) for _ in range(2))
        feeders = Leases(here.backend.store.base.scripts, keep_ms=60_000)
        lease = here.backend.store.base.keys.a2a_queue_lease("t")

        async def epoch() -> int:
            sender = here.backend.store.base.scripts.transport.sender
            return int(await sender.send("HGET", lease, "epoch", repeatable=True) or 0)

        left = await dead.create_or_tap("t")
        first = await eventually(epoch, "the first feeder has the lease")
        proxy.refuse()
        proxy.cut()
        queue = await here.create_or_tap("t")

        async def fed_anew() -> bool:
            return await epoch() > first

        await eventually(fed_anew, "the lease is taken")
        assert await feeders.acquire(lease, duration_ms=1000) is None
        tap = await there.tap("t")
        await queue.enqueue_event(piece("1"))
        await queue.close(immediate=True)
        assert await read(tap) == ["1"]
        assert await there.tap("t") is None
        proxy.refuse(refusing=False)
        await left.close(immediate=True)
        for one in (dead, here, there):
            await one.aclose()


async def test_who_only_listens_writes_nothing_but_a_cancel(
    pair: tuple[RedisQueueManager, RedisQueueManager],
) -> None:
    here, there = pair
    ours, theirs = (create_task_store(one.backend, holds_lease=True) for one in pair)
    queue = await here.create_or_tap("t")
    await ours.save(task(text="newest"), ME)
    tap = await there.tap("t")
    # The legacy handler saves on each server what it hears: by then it is old.
    await theirs.save(task(text="older"), ME)
    assert await ours.get("t", ME) == task(text="newest")
    found = await here.backend.tasks.read(here.backend.ref("t", ME))
    assert found is not None
    assert found.owner == here.backend.owner.name
    await theirs.save(task(state=CANCELED), ME)
    assert await ours.get("t", ME) == task(state=CANCELED, text="newest")
    await queue.close(immediate=True)
    assert await read(tap) == []

    async def forgotten() -> bool:
        return not there.backend.only_listens("t")

    await eventually(forgotten, "the tap is forgotten")
    await theirs.save(task("other", WORKING), ME)
    assert await ours.get("other", ME) == task("other", WORKING)
    await theirs.save(task("other", COMPLETED), ME)


async def test_parts_that_are_made_for_one_address_are_of_one_server(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    there: dict[str, Any] = {"namespace": settings.namespace}
    far = create_queue_manager(server_on(settings))
    ours = create_task_store(url, holds_lease=True, **there)
    queues = create_queue_manager(url, **there)
    assert ours.backend is queues.backend is create_push_config_store(url, **there).backend
    # The handler saves what this server hears: older than what the other server has saved.
    theirs = create_task_store(far.backend, holds_lease=True)
    queue = await far.create_or_tap("t")
    await theirs.save(task(text="newest"), ME)
    tap = await queues.tap("t")
    await ours.save(task(text="older"), ME)
    assert await ours.get("t", ME) == task(text="newest")
    await theirs.save(task(state=COMPLETED), ME)
    await ours.save(task(text="older"), ME)
    await queue.close(immediate=True)
    assert await read(tap) == []
    with pytest.raises(ConfigError, match="other options"):
        create_task_store(url, A2AOptions(lease_s=1), **there)
    with pytest.raises(ConfigError, match="a queue manager"):
        create_queue_manager(url, **there)
    await queues.aclose()
    again = create_queue_manager(url, A2AOptions(lease_s=1), **there)
    assert again.backend is not queues.backend
    await again.aclose()
    await far.aclose()


async def test_parts_that_are_made_for_one_store_are_of_one_server(store: RedisStateStore) -> None:
    tasks = create_task_store(store)
    assert tasks.backend is create_queue_manager(store).backend
    with pytest.raises(ConfigError, match="no further settings"):
        create_task_store(store, namespace="x")
    await tasks.aclose()


async def test_what_is_told_does_not_stay(
    pair: tuple[RedisQueueManager, RedisQueueManager], scripts: Scripts
) -> None:
    here, _ = pair
    queue = await here.create_or_tap("t")
    await queue.enqueue_event(piece("1"))
    keys = here.backend.store.base.keys
    log = keys.a2a_queue("t")
    left = await lives(scripts, log.rows, log.ids, keys.a2a_queue_lease("t"))
    assert all(0 < one <= 2 * 3_600_000 for one in left)
    await queue.close(immediate=True)


# The legacy handler, as processes


async def test_a_legacy_stream_goes_on_at_another_server(settings: Settings) -> None:
    async with legacy(settings) as a, legacy(settings) as b:
        first = Listener(a.stream("SendStreamingMessage", message=message("count 25 0.05")))
        made = (await first.hears(lambda event: "task" in event))["task"]
        await first.hears_piece("3")
        second = Listener(b.stream("SubscribeToTask", id=made["id"]))
        heard = await second.ends()
        assert state_of(heard[-1]) == "COMPLETED"
        live = pieces(heard[1:])
        assert live == [str(number) for number in range(25 - len(live), 25)]
        assert pieces(await first.ends()) == [str(number) for number in range(25)]
        found = await b.call("GetTask", id=made["id"])
        kept = [artifact["parts"][0]["text"] for artifact in found["artifacts"]]
        assert kept == [str(number) for number in range(25)]
        assert found["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_legacy_cancel_stops_the_agent_of_another_server(settings: Settings) -> None:
    async with legacy(settings) as a, legacy(settings) as b:
        first = Listener(a.stream("SendStreamingMessage", message=message("wait")))
        made = (await first.hears(lambda event: "task" in event))["task"]
        await first.hears(lambda event: state_of(event) == "WORKING")
        cancelled = await b.call("CancelTask", id=made["id"])
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        await a.says(f"stopped: {made['id']}")
        assert state_of((await first.ends())[-1]) == "CANCELED"
        assert [await one.state(made["id"]) for one in (a, b)] == ["CANCELED"] * 2


async def test_legacy_subscribers_of_a_killed_server_end(
    settings: Settings, scripts: Scripts
) -> None:
    async with legacy(settings, lease_s=2) as b, legacy(settings, lease_s=2) as a:
        first = Listener(a.stream("SendStreamingMessage", message=message("wait")))
        made = (await first.hears(lambda event: "task" in event))["task"]
        await first.hears(lambda event: state_of(event) == "WORKING")
        second = Listener(b.stream("SubscribeToTask", id=made["id"]))
        await second.hears(lambda event: "task" in event)
        killed_ms = await clock_ms(scripts)
        await a.kill()
        # The last event is the end, and the task is read so as soon as the event is heard.
        assert state_of((await second.ends())[-1]) == "FAILED"
        assert await b.state(made["id"]) == "FAILED"
        await ended_within(settings, made["id"], killed_ms, 2 + 2)
        with pytest.raises(RpcError, match="terminal state"):
            await Listener(b.stream("SubscribeToTask", id=made["id"])).ends()
        await first.breaks()
