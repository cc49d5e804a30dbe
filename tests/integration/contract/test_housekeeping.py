"""Clearing, draining, closing, health, and one store in several loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import BackendUnavailable, CursorGap, LeaseLost, RedisStateStore, Settings
from redis_state.models import Trajectory
from redis_state.primitives.lease import Leases
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.samples import (
    admin,
    binding,
    changed,
    event,
    keys_of,
    planner_event,
    steering,
    task,
    update,
)
from tests.support.servers.faults import Proxy
from tests.support.tasks.runs import TASK, make


async def _fill(store: RedisStateStore, session: str, trace: str) -> None:
    await store.save_task(task("t1", session))
    await store.save_update(update("u1", 1, session_id=session, task_id="t1"))
    await store.save_update(update("u2", 2, session_id=session, task_id="task nobody saved"))
    await store.save_steering(steering("e1", session_id=session, task_id="another"))
    await store.save_trajectory(trace, session, Trajectory("q"))
    await store.save_event(event(trace_id=trace))
    await store.save_planner_event(trace, planner_event())
    await store.save_remote_binding(binding(trace_id=trace))
    for log in (store.base.keys.updates(session), store.base.keys.events(trace)):
        await Log(store.base.scripts, log, Bounds(100, 60_000)).append([(b"bad", b"garbage")])
    assert len(await store.list_updates(session)) == 2
    assert len(await store.load_history(trace)) == 1
    assert len(await store.unreadable(session_id=session)) == 1
    assert len(await store.unreadable(trace_id=trace)) == 1


async def test_a_cleared_session_leaves_nothing_but_its_numbers(store: RedisStateStore) -> None:
    await _fill(store, "cleared", "its trace")
    await store.clear_session("cleared")
    assert await store.list_tasks("cleared") == []
    assert await store.list_updates("cleared") == []
    assert await store.list_updates("cleared", task_id="task nobody saved") == []
    assert await store.list_steering("cleared") == []
    assert await store.list_traces("cleared") == []
    assert await store.get_trajectory("its trace", "cleared") is None
    assert await store.load_history("its trace") == []
    assert await store.list_planner_events("its trace") == []
    assert await store.list_remote_bindings("its trace") == []
    assert await store.unreadable(session_id="cleared") == []
    assert await store.unreadable(trace_id="its trace") == []
    left = await keys_of(store)
    assert {key.partition("}:")[2] for key in left} == {
        "updates:ids",
        "steering:ids",
        "events:ids",
        "planner-events:ids",
    }
    for key in left:
        assert await admin(store, "HKEYS", key) == [b""]
        assert await admin(store, "PTTL", key) > 0


async def test_clearing_one_session_leaves_the_others_alone(store: RedisStateStore) -> None:
    await _fill(store, "cleared", "one")
    await _fill(store, "kept", "two")
    await store.save_memory_state("cleared", {"n": 1})
    await store.save_planner_state("cleared", {"n": 1})
    await store.clear_session("cleared")
    await store.clear_session("never was")
    assert len(await store.list_updates("kept")) == 2
    assert len(await store.list_tasks("kept")) == 1
    assert len(await store.load_history("two")) == 1
    assert await store.get_trajectory("two", "kept") == Trajectory("q")
    assert await store.load_memory_state("cleared") == {"n": 1}
    assert await store.load_planner_state("cleared") == {"n": 1}


async def test_cursors_of_a_cleared_session_give_a_gap(store: RedisStateStore) -> None:
    for number in range(3):
        await store.save_update(update(f"u{number}"))
        await store.save_steering(steering(f"e{number}"))
    updates = await store.update_cursor("session", "u0")
    steered = await store.steering_cursor("session", "e0")
    await store.clear_session("session")
    await store.save_update(update("new", session_id="session"))
    with pytest.raises(CursorGap) as caught:
        await store.read_updates("session", after=updates)
    assert (caught.value.reason, caught.value.missed) == ("trimmed", 2)
    rest = await store.read_updates("session", after=caught.value.resume_after)
    assert [each.update_id for each in rest.values] == ["new"]
    with pytest.raises(CursorGap):
        await store.read_steering("session", after=steered)


async def test_clearing_again_changes_nothing(store: RedisStateStore) -> None:
    await store.save_update(update("u0"))
    cursor = await store.update_cursor("session", "u0")
    for _ in range(3):
        await store.clear_session("session")
        assert await store.update_cursor("session") == cursor
    await store.save_update(update("u1"))
    rest = await store.read_updates("session", after=cursor)
    assert [each.update_id for each in rest.values] == ["u1"]


async def test_ids_of_a_cleared_session_are_free_again(store: RedisStateStore) -> None:
    for content in (1, 2):
        await store.save_update(update("same", content))
        assert [each.content for each in await store.list_updates("session")] == [content]
        await store.clear_session("session")


async def test_a_session_of_thousands_of_tasks_is_cleared(
    store: RedisStateStore,
) -> None:
    saves = (store.save_update(update(str(n), task_id=str(n))) for n in range(3000))
    await asyncio.gather(*saves)
    await store.clear_session("session")
    assert [key.partition("}:")[2] for key in await keys_of(store)] == ["updates:ids"]


async def test_a_worker_of_a_cleared_session_can_write_no_more(store: RedisStateStore) -> None:
    await store.save_task(task())
    keys = store.tasks.keys("session", "task")
    leases = Leases(store.base.scripts, keep_ms=60_000)
    held = await leases.acquire(keys.lease, duration_ms=60_000)
    assert held is not None
    assert await store.updates.save(update("u1"), fence=held.fence) is True
    await store.clear_session("session")
    with pytest.raises(LeaseLost):
        await store.updates.save(update("u2"), fence=held.fence)
    with pytest.raises(LeaseLost):
        await leases.renew(held, duration_ms=60_000)
    assert await store.list_updates("session") == []
    # The task may be submitted and run anew at once, and no epoch is given twice.
    await store.save_task(task())
    anew = await leases.acquire(keys.lease, duration_ms=60_000)
    assert anew is not None
    assert anew.epoch > held.epoch
    assert await admin(store, "PTTL", keys.lease) > 0


async def test_no_start_slips_through_the_clearing_of_its_session(
    settings: Settings, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clearing = RedisStateStore(settings)
    calls = 0

    async def start_before(nth: int) -> list[Any]:
        """Clear the session, while a worker starts its task before the nth call of the clearing."""
        nonlocal calls
        calls, found = 0, list[Any]()

        def between(send: Any) -> Any:
            async def start_and_send(*given: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == nth:
                    life = TaskTransitions(store)
                    owner = f"run {nth}"
                    started = await life.start(
                        SESSION, TASK, owner=owner, lease_ms=60_000, worker="w"
                    )
                    found.append(started)
                return await send(*given, **options)

            return start_and_send

        with monkeypatch.context() as patched:
            scripts, sender = clearing.base.scripts, clearing.transport.sender
            patched.setattr(scripts, "_run_prepared", between(scripts._run_prepared))
            patched.setattr(sender, "send", between(sender.send))
            await clearing.clear_session(SESSION)
        return found

    nth = slipped = 0
    while nth == 0 or calls >= nth:
        nth += 1
        await make(store)
        for started in await start_before(nth):
            if isinstance(started, StartedRun):
                slipped += 1
                late = update("late", session_id=SESSION)
                with pytest.raises(LeaseLost):
                    await store.updates.save(late, fence=started.held.fence)
        assert await store.list_tasks(SESSION) == []
    await clearing.aclose()
    assert slipped > 0
    assert nth > slipped + 1


async def test_a_trace_stays_until_its_last_session_is_cleared(store: RedisStateStore) -> None:
    await _fill(store, "one", "shared")
    await store.save_trajectory("shared", "two", Trajectory("q"))
    for session in ("one", "two", "three"):
        await store.save_remote_binding(
            binding(
                f"task of {session}",
                trace_id="shared",
                router_session_id=session,
                remote_skill="skill",
            )
        )

    async def names() -> list[str]:
        return sorted(each.task_id for each in await store.list_remote_bindings("shared"))

    async def conversation(session: str) -> bool:
        wanted = {"router_session_id": session, "agent_url": "http://agent"}
        return await store.find_binding(**wanted, remote_skill="skill") is not None

    for cleared, left in (("one", {"two", "three"}), ("two", {"three"})):
        # Interrupted after any of its steps it is repeated.
        for _ in range(2):
            await store.clear_session(cleared)
        assert await store.list_traces(cleared) == []
        assert not await conversation(cleared)
        assert len(await store.load_history("shared")) == 1
        assert len(await store.list_planner_events("shared")) == 1
        assert len(await store.unreadable(trace_id="shared")) == 1
        assert await names() == sorted(["remote", *(f"task of {each}" for each in left)])
        for session in left:
            assert await conversation(session)
    # The third has no trajectory of the trace, only a conversation in it.
    await store.clear_session("three")
    assert await names() == []
    assert await store.load_history("shared") == []
    assert await store.list_planner_events("shared") == []
    assert await store.unreadable(trace_id="shared") == []


async def test_a_session_that_comes_to_a_trace_while_another_leaves_keeps_it(
    store: RedisStateStore,
) -> None:
    for number in range(20):
        trace = f"trace-{number}"
        await store.save_event(event(trace_id=trace))
        await store.save_trajectory(trace, "leaves", Trajectory("q"))

    async def come(number: int) -> list[Any]:
        trace = f"trace-{number}"
        await store.save_trajectory(trace, "comes", Trajectory("q"))
        await store.save_event(event(trace_id=trace, node_id="of who comes"))
        return [each.node_id for each in await store.load_history(trace)]

    leaving = asyncio.create_task(store.clear_session("leaves"))
    found = await asyncio.gather(*(come(number) for number in range(20)))
    await leaving
    assert all("of who comes" in each for each in found)
    for number in range(20):
        history = await store.load_history(f"trace-{number}")
        assert "of who comes" in [each.node_id for each in history]


async def test_drain_waits_for_calls_that_nobody_awaits(store: RedisStateStore) -> None:
    calls = [asyncio.create_task(store.save_update(update(str(n)))) for n in range(50)]
    bulk = [event(trace_id=f"t{n % 3}", node_id=str(n)) for n in range(1000)]
    calls.append(asyncio.create_task(store.save_events(bulk)))
    await store.drain()
    assert all(call.done() for call in calls)
    assert (await store.health()).pending_calls == 0


@pytest.mark.parametrize("layers", range(5))
async def test_drain_waits_for_saves_that_a_host_makes_one_after_the_other(
    store: RedisStateStore, layers: int
) -> None:
    async def save(number: int, deeper: int) -> None:
        if deeper:
            return await asyncio.create_task(save(number, deeper - 1))
        return await store.save_planner_event("trace", planner_event(float(number)))

    async def chain() -> None:
        for number in range(30):
            await save(number, layers)

    background = asyncio.create_task(chain())
    await store.drain()
    assert background.done()
    assert len(await store.list_planner_events("trace")) == 30


async def test_drain_gives_up_at_its_deadline(settings: Settings) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url), call_timeout_s=1.0) as store,
    ):
        proxy.silence()
        call = asyncio.create_task(store.save_update(update("u")))
        with pytest.raises(TimeoutError):
            await store.drain(0.05)
        assert not call.done()
        assert (await store.health()).ok is False
        with pytest.raises(BackendUnavailable):
            await call


async def test_closing_finishes_calls_that_nobody_awaits(
    settings: Settings, store: RedisStateStore
) -> None:
    closing = RedisStateStore(settings)
    calls = [asyncio.create_task(closing.save_update(update(str(n)))) for n in range(50)]
    await closing.aclose()
    assert all(call.done() and call.exception() is None for call in calls)
    assert len(await store.list_updates("session")) == 50


async def test_a_closed_store_says_so_and_closes_again(settings: Settings) -> None:
    async with RedisStateStore(settings) as store:
        await store.save_update(update("u"))
    for _ in range(2):
        await store.aclose()
        await store.drain()
        with pytest.raises(BackendUnavailable, match="the store is closed"):
            await store.save_update(update("v"))
        health = await store.health()
        assert not health.ok
        assert "the store is closed" in str(health.problem)


async def test_a_store_that_was_never_used_closes(settings: Settings) -> None:
    store = RedisStateStore(settings)
    await store.drain()
    await store.aclose()


async def test_health_tells_of_the_server(store: RedisStateStore) -> None:
    health = await store.health()
    assert health.ok
    assert health.problem is None
    assert health.round_trip_ms is not None
    assert health.round_trip_ms > 0
    assert health.address == str(store.transport.address)
    assert health.details["redis_version"]
    assert health.details["maxmemory_policy"]


def test_one_store_serves_two_loops_one_after_the_other(settings: Settings) -> None:
    store = RedisStateStore(settings)

    async def first() -> None:
        await store.save_update(update("u1", 1))

    async def second() -> list[Any]:
        await store.save_update(update("u2", 2))
        found = await store.list_updates("session")
        await store.aclose()
        return [each.content for each in found]

    asyncio.run(first())
    assert asyncio.run(second()) == [1, 2]


async def test_one_store_serves_two_loops_at_once(store: RedisStateStore) -> None:
    async def elsewhere() -> list[Any]:
        saves = (store.save_update(update(f"there{n}", n)) for n in range(100))
        await asyncio.gather(*saves)
        await Log(
            store.base.scripts, store.base.keys.updates("session"), Bounds(1000, 60_000)
        ).append([(b"bad", b"garbage")])
        await store.list_updates("session")
        await store.drain()
        return [
            each.place.partition(" ")[0] for each in await store.unreadable(session_id="session")
        ]

    there = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.gather(*(store.save_update(update(f"here{n}", n)) for n in range(100)))
    assert await there == ["update"]
    found = [each.update_id for each in await store.list_updates("session")]
    assert [name for name in found if name.startswith("here")] == [f"here{n}" for n in range(100)]
    assert [name for name in found if name.startswith("there")] == [f"there{n}" for n in range(100)]


async def test_the_embedded_address_starts_a_server_at_the_first_call() -> None:
    async with RedisStateStore.from_url("embedded://") as store:
        assert (await store.health()).ok
        await store.save_update(update("u", 1))
        assert len(await store.list_updates("session")) == 1
