"""The twelve cases that the contract of the state store requires, with both sets of classes."""

from __future__ import annotations

from typing import Any

from tests.support.hosts import Host


async def test_1_a_saved_event_is_in_the_history(host: Host) -> None:
    event = host.types.StoredEvent(
        "a-trace", 1702857600.0, "node_success", "n", "n-1", {"latency_ms": 100}
    )
    await host.store.save_event(event)
    assert await host.store.load_history("a-trace") == [event]


async def test_2_the_history_of_an_unknown_trace_is_an_empty_list(host: Host) -> None:
    assert await host.store.load_history("nonexistent") == []


async def test_3_events_come_in_the_order_of_their_time(host: Host) -> None:
    for number, ts in enumerate([3.0, 1.0, 2.0]):
        await host.store.save_event(
            host.types.StoredEvent("order", ts, "test", f"node_{number}", None, {})
        )
    assert [event.ts for event in await host.store.load_history("order")] == [1.0, 2.0, 3.0]


async def test_4_an_event_saved_twice_stands_once(host: Host) -> None:
    event = host.types.StoredEvent("twice", 1.0, "test", "node", "id", {})
    await host.store.save_event(event)
    await host.store.save_event(event)
    assert await host.store.load_history("twice") == [event]


async def test_5_a_remote_binding_is_kept(host: Host) -> None:
    binding = host.types.RemoteBinding("bound", "ctx", "task-123", "http://worker:8080")
    await host.store.save_remote_binding(binding)
    assert await host.store.list_remote_bindings("bound") == [binding]


async def test_6_a_planner_state_comes_back_as_it_was_saved(host: Host) -> None:
    payload: dict[str, Any] = {
        "trajectory": {"version": 1, "steps": []},
        "reason": "await_input",
        "payload": {"example": True},
        "constraints": None,
        "tool_context": {"tenant_id": "test", "user_id": "test"},
    }
    await host.store.save_planner_state("a-token", payload)
    assert await host.store.load_planner_state("a-token") == payload


async def test_7_a_planner_state_is_consumed_by_its_load(host: Host) -> None:
    await host.store.save_planner_state("once", {"data": "value"})
    assert await host.store.load_planner_state("once") == {"data": "value"}
    assert await host.store.load_planner_state("once") is None


async def test_8_a_memory_state_comes_back_as_it_was_saved(host: Host) -> None:
    state = {"turn_history": [{"role": "user", "content": "hello"}]}
    await host.store.save_memory_state("tenant:user:session", state)
    assert await host.store.load_memory_state("tenant:user:session") == state


async def test_9_an_unknown_memory_key_gives_none(host: Host) -> None:
    assert await host.store.load_memory_state("nonexistent:key") is None


async def test_10_a_task_comes_back_as_it_was_saved(host: Host) -> None:
    task = host.types.TaskState(
        task_id="a-task",
        session_id="a-session",
        status=host.types.TaskStatus.PENDING,
        task_type=host.types.TaskType.BACKGROUND,
        priority=5,
        context_snapshot=host.types.TaskContextSnapshot(
            session_id="a-session", task_id="a-task", context_version=1, context_hash="abc123"
        ),
        description="A task",
    )
    await host.store.save_task(task)
    assert await host.store.list_tasks("a-session") == [task]


async def test_11_updates_after_a_cursor_are_those_behind_it(host: Host) -> None:
    updates = [
        host.types.StateUpdate(
            session_id="a-session",
            task_id="a-task",
            update_id=f"update-{step}",
            update_type=host.types.UpdateType.PROGRESS,
            content={"step": step},
        )
        for step in range(5)
    ]
    for update in updates:
        await host.store.save_update(update)
    assert await host.store.list_updates("a-session") == updates
    assert await host.store.list_updates("a-session", since_id="update-2") == updates[3:]


async def test_12_steering_comes_back_sanitised(host: Host) -> None:
    event = host.types.SteeringEvent(
        session_id="a-session",
        task_id="a-task",
        event_type=host.types.SteeringEventType.USER_MESSAGE,
        payload={"text": "x" * 5000},
        source="user",
    )
    await host.store.save_steering(event)
    cut = event.model_copy(update={"payload": {"text": "x" * 4096}})
    assert await host.store.list_steering("a-session") == [cut]
