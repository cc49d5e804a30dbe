"""What an event of a task may be: every shape that A2A gave events, and no other."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from redis_state import (
    InvalidField,
    RedisStateStore,
    TaskUnknown,
)
from redis_state.integrations.embabel.task_state_manager import (
    A2AState,
    EventKind,
    TaskStateManager,
)
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.a2a.task_states import TASK, hear
from tests.support.scripts.replies import outcome


async def test_an_event_that_is_too_large_is_refused_and_not_recorded(
    store: RedisStateStore,
) -> None:
    tasks = TaskStateManager(store, max_event_bytes=1_000)
    await tasks.register_task("t", "c", "s")
    with pytest.raises(InvalidField, match=r"event: 1.* bytes, 1000 are allowed") as refused:
        await tasks.record_event("t", chunk("s3cr3t" * 200))
    assert "s3cr3t" not in str(refused.value)
    assert await tasks.get_task_events("t") == []
    await tasks.record_event("t", chunk("x" * 500))
    assert len(await tasks.get_task_events("t")) == 1


async def test_an_event_that_was_recorded_is_told_as_everybody_reads_it(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    event = chunk("a") | {"metadata": {"tags": {1}, "much": float("inf")}}
    reported = await tasks.record_event("t", event)
    assert reported.event == {**chunk("a"), "metadata": {"tags": [1], "much": "Infinity"}}
    assert [reported.event] == await tasks.get_task_events("t")
    reported.event["metadata"]["tags"].clear()
    assert event["metadata"]["tags"] == {1}


class Update(BaseModel):
    """An event as the models of an SDK write it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    status: dict[str, Any]
    metadata: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("event", "kind", "state"),
    [
        ({"statusUpdate": status("TASK_STATE_INPUT_REQUIRED")}, "status-update", "input-required"),
        ({"status_update": status("CANCELLED"), "task": None}, "status-update", "canceled"),
        ({"task": {**TASK, "status": {"state": "TASK_STATE_REJECTED"}}}, "task", "rejected"),
        ({"artifactUpdate": chunk("a")}, "artifact-update", None),
        ({"message": {"role": "ROLE_AGENT", "messageId": "m"}}, "message", None),
        (status("PENDING"), "status-update", "submitted"),
        (status("auth_required"), "status-update", "auth-required"),
        ({"status": {"state": A2AState.FAILED}}, "status-update", "failed"),
        (Update(task_id="t", status={"state": "completed"}), "status-update", "completed"),
    ],
)
async def test_every_shape_that_a2a_gave_events_is_understood(
    tasks: TaskStateManager, event: Any, kind: str, state: str | None
) -> None:
    await tasks.register_task("t", "c", "s")
    recorded = await tasks.record_event("t", event)
    assert (recorded.kind, recorded.state) == (kind, state)
    if isinstance(event, dict):
        assert await tasks.get_task_events("t") == [event]
    else:
        assert await tasks.get_task_events("t") == [{"taskId": "t", "status": event.status}]
    if recorded.ends_task:
        assert await hear(tasks) == [recorded]


@pytest.mark.parametrize("name", ["", "a{b}:*?[c] \ud800", "é" * 300, "\0\n"])
async def test_ids_may_be_any_text_and_events_any_size(tasks: TaskStateManager, name: str) -> None:
    await tasks.register_task(name, name, name)
    big = chunk(name + "x" * 2_000_000)
    await tasks.record_event(name, big, event_id=name or None)
    await tasks.record_event(name, status("completed", name, task_id=name))
    info = await tasks.get_task_info(name)
    assert info is not None
    assert (info.task_id, info.context_id, info.stream_id) == (name, name, name)
    assert name_of(info.events[0]) == name_of(big)
    assert await tasks.get_stream_id(name) == name
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 1
    assert not await tasks.task_exists(name)


BAD: list[tuple[str, Any]] = [
    ("event", None),
    ("event", "text"),
    ("event", {}),
    ("event", {"kind": "status-update", "status": "completed"}),
    ("event", {"task": {}, "message": {}}),
    ("event", status("working", task_id="secret")),
    ("event", {**TASK, "id": "secret"}),
    ("event.taskId", {**chunk("a"), "taskId": 5}),
    ("event.id", {**TASK, "id": ["t"]}),
    ("status.state", status("secret")),
    ("status.state", {"status": {}}),
    ("status.state", {"status": {"state": 3}}),
    ("status.state", status("TASK_STATE_UNSPECIFIED")),
]


@pytest.mark.parametrize(("field", "event"), BAD)
async def test_what_is_no_event_of_the_task_is_refused_by_name(
    tasks: TaskStateManager, field: str, event: Any
) -> None:
    await tasks.register_task("t", "c", "s")
    with pytest.raises(InvalidField) as refused:
        await tasks.record_event("t", event)
    assert refused.value.field == field
    assert "secret" not in str(refused.value)
    assert await tasks.get_task_events("t") == []


async def test_bad_input_is_named(tasks: TaskStateManager, store: RedisStateStore) -> None:
    nothing: Any = None
    moment: Any = "yesterday"
    for field, call in [
        ("task_id", tasks.register_task(nothing, "c", "s")),
        ("context_id", tasks.register_task("t", nothing, "s")),
        ("stream_id", tasks.register_task("t", "c", nothing)),
        ("task_id", tasks.record_event(nothing, chunk("a"))),
        ("event_id", tasks.record_event("t", chunk("a"), event_id="")),
        ("task_id", tasks.get_task_info(nothing)),
        ("task_id", tasks.task_exists(nothing)),
        ("new_stream_id", tasks.update_stream_id("t", nothing)),
        ("older_than", tasks.cleanup_old_tasks(moment)),
        ("older_than", tasks.cleanup_old_tasks(datetime(2026, 1, 1))),  # noqa: DTZ001 - that is it
    ]:
        error = await outcome(call, InvalidField)
        assert isinstance(error, InvalidField)
        assert error.field == field
    with pytest.raises(InvalidField, match="owner"):
        TaskStateManager(store, owner=nothing)


async def test_an_unknown_task_is_told_as_such(tasks: TaskStateManager) -> None:
    for event in (chunk("a"), status("completed")):
        with pytest.raises(TaskUnknown) as unknown:
            await tasks.record_event("t", event)
        assert unknown.value.task_id == "t"
    with pytest.raises(TaskUnknown):
        await hear(tasks)
    assert not await tasks.task_exists("t")


async def test_events_of_the_a2a_sdk_are_understood(tasks: TaskStateManager) -> None:
    types = pytest.importorskip("a2a.types", reason="needs the A2A SDK")
    if not hasattr(types.Task, "DESCRIPTOR"):
        pytest.skip("a2a-sdk before 1.0 has models")
    working = types.TaskStatus(state=types.TaskState.TASK_STATE_WORKING)
    done = types.TaskStatus(state=types.TaskState.TASK_STATE_COMPLETED)
    artifact = types.Artifact(artifact_id="a", parts=[types.Part(text="x")])
    await tasks.register_task("t", "c", "s")
    for event, kind in [
        (types.Task(id="t", context_id="c", status=working), EventKind.TASK),
        (types.TaskStatusUpdateEvent(task_id="t", status=working), EventKind.STATUS),
        (types.TaskArtifactUpdateEvent(task_id="t", artifact=artifact), EventKind.ARTIFACT),
        (types.Message(message_id="m", role=types.Role.ROLE_AGENT), EventKind.MESSAGE),
        (
            types.StreamResponse(
                status_update=types.TaskStatusUpdateEvent(task_id="t", status=done)
            ),
            EventKind.STATUS,
        ),
    ]:
        assert (await tasks.record_event("t", event)).kind is kind
    heard = await hear(tasks)
    assert [one.state for one in heard] == ["working", "working", None, None, "completed"]
    unset = types.TaskStatusUpdateEvent(task_id="t", status=types.TaskStatus())
    with pytest.raises(InvalidField):
        await tasks.record_event("t", unset)
