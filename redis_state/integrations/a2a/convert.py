"""Between the SDK's protobuf messages and what the stores keep as opaque bytes."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from a2a.server.events.event_queue import Event
from a2a.types.a2a_pb2 import (
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from redis_state.errors import CursorGap, InvalidField, InvalidTransition
from redis_state.models.hosts.a2a import read_state
from redis_state.stores.a2a.task_model import Draft, Listing, Phase

P = TypeVar("P", Task, TaskStatusUpdateEvent)

# A list's page token holds one.
_LONGEST_ID = 2048


def draft_of(task: Task, event: Event | None) -> Draft:
    """Make a task ready to be written. One that stops without an event of its own is its event.

    Errors: InvalidParamsError for a task without an id or with one of more than 2048 bytes, or in
    no state that this SDK knows. Also for a timestamp that cannot be.
    """
    if not task.id:
        raise InvalidParamsError("task: an id is needed")
    if len(task.id.encode()) > _LONGEST_ID:
        raise InvalidParamsError("task: its id is too long")
    if task.status.state not in TaskState.values():
        raise InvalidParamsError(f"task: no state has the number {int(task.status.state)}")
    phase = phase_of(task)
    if event is None and phase is not Phase.OPEN:
        event = task
    state = str(int(task.status.state))
    timed = task.HasField("status") and task.status.HasField("timestamp")
    when_ns = nanoseconds("task: its timestamp", task.status.timestamp) if timed else None
    return Draft(
        state=state,
        phase=phase,
        listing=Listing.at(task.context_id, state, when_ns),
        event=b"" if event is None else event_bytes(event),
        fields={"body": task.SerializeToString()},
    )


def nanoseconds(name: str, moment: Timestamp) -> int:
    """Read a time. Errors: InvalidParamsError for one that no clock shows."""
    try:
        return moment.ToNanoseconds()
    except ValueError as error:
        raise InvalidParamsError(f"{name}: {error}") from None


def phase_of(task: Task) -> Phase:
    """Return what a task's state means for its subscribers."""
    return _PHASES.get(task.status.state, Phase.OPEN)


def _phase_of_state(name: str) -> Phase:
    try:
        state = read_state(name)
    except InvalidField:
        return Phase.OPEN  # unspecified
    if state.is_terminal:
        return Phase.ENDED
    return Phase.WAITING if state.phase.is_waiting else Phase.OPEN


_PHASES = {number: _phase_of_state(name) for name, number in TaskState.items()}


def task_of(body: bytes) -> Task:
    """Read a task. Errors: InternalError if it is none."""
    try:
        return Task.FromString(body)
    except DecodeError:
        raise InternalError("the stored task cannot be read") from None


def event_bytes(event: Event) -> bytes:
    """Write an event as the protocol streams it."""
    return to_stream_response(event).SerializeToString()


def event_of(data: bytes) -> Event:
    """Read an event. Errors: InternalError if it is none that this version of the SDK knows."""
    try:
        response = StreamResponse.FromString(data)
    except DecodeError:
        response = StreamResponse()
    match response.WhichOneof("payload"):
        case "task":
            return response.task
        case "message":
            return response.message
        case "status_update":
            return response.status_update
        case "artifact_update":
            return response.artifact_update
        case _:
            raise InternalError("a stored event cannot be read")


def status_of(task: Task) -> TaskStatusUpdateEvent:
    """Make the event of a task's status."""
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def failed(task_id: str, body: bytes, reason: str) -> Draft:
    """Make the draft that ends a task that nobody works on; a new task if it cannot be read."""
    try:
        task = Task.FromString(body)
    except DecodeError:
        task = Task()
    task.id = task_id
    if task.status.HasField("message"):
        task.history.append(task.status.message)
    status = TaskStatus(state=TaskState.TASK_STATE_FAILED, message=_stated(task, reason))
    status.timestamp.FromDatetime(datetime.now(UTC))
    task.status.CopyFrom(status)
    return draft_of(task, status_of(task))


def canceled(body: bytes, task: Task, event: Event | None) -> tuple[Task, Event | None]:
    """Put a cancel on the task as it was written since, unless that cannot be read."""
    try:
        current = Task.FromString(body)
    except DecodeError:
        return task, event
    # As the SDK does: the message of a status that is replaced goes to the history.
    spoken = current.status.message
    if current.status.HasField("message") and spoken != task.status.message:
        current.history.append(spoken)
    current.status.CopyFrom(task.status)
    changed = event if isinstance(event, TaskStatusUpdateEvent) else task
    if changed.HasField("metadata"):
        current.metadata.MergeFrom(changed.metadata)
    return current, current if isinstance(event, Task) else event


def explained(task: Task, event: Event | None, reason: str) -> tuple[Task, Event | None]:
    """Add a reason to a failure that says none: the SDK writes such a one after a failed save."""
    silent = task.status.state == TaskState.TASK_STATE_FAILED and not task.status.HasField(
        "message"
    )
    if not (reason and silent):
        return task, event
    task = _copy(task)
    task.status.message.CopyFrom(_stated(task, reason))
    if isinstance(event, TaskStatusUpdateEvent):
        event = _copy(event)
        event.status.message.CopyFrom(task.status.message)
    return task, task if isinstance(event, Task) else event


def _stated(task: Task, text: str) -> Message:
    return Message(
        message_id=str(uuid.uuid4()),
        task_id=task.id,
        context_id=task.context_id,
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
    )


def _copy(message: P) -> P:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


@contextmanager
def protocol_errors() -> Generator[None, None, None]:
    """Raise the protocol's own errors for what a caller did wrong or came too late for.

    Trouble with the server stays what it is: the SDK answers it as an internal error.
    """
    try:
        yield
    except InvalidField as error:
        raise InvalidParamsError(str(error)) from error
    except InvalidTransition as error:
        if error.current == "-":
            raise TaskNotFoundError("Task was deleted") from error
        number = int(error.current)
        # A later SDK may have written a state that this one has no name for.
        state = TaskState.Name(number) if number in TaskState.values() else number
        raise UnsupportedOperationError(f"Task is in terminal state: {state}") from error
    except CursorGap as error:
        raise UnsupportedOperationError(
            "Events that were asked for are no longer kept: read the task and subscribe again",
            {"reason": error.reason, "missed": error.missed},
        ) from error
