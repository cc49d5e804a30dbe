"""The task state manager of streaming A2A servers, shared by all their processes.

Names and shapes are those of Embabel's `TaskStateManager`. Needs no package of A2A: an event is a
mapping as A2A's JSON has it, a pydantic model or a protobuf message of any of its SDKs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, cast

from pydantic import BaseModel

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.integrations.embabel.task_events import TaskEvents
from redis_state.models.hosts.a2a import (
    A2AState,
    Document,
    EventKind,
    Registration,
    TaskCounts,
    TaskEvent,
    TaskInfo,
    classify_event,
)
from redis_state.serialization.fields import mapping, text
from redis_state.store import RedisStateStore

__all__ = [
    "A2AState",
    "EventKind",
    "Registration",
    "TaskCounts",
    "TaskEvent",
    "TaskInfo",
    "TaskStateManager",
]


class TaskStateManager:
    """Tasks, their states and events, from registration to clean-up.

    Any process may register, record, read and subscribe. Every change is one atomic step. Tasks
    of one ``owner`` are never seen by another. An active task is kept `active_task_ttl` after its
    last event, a completed one `finished_task_ttl`; of its events the newest
    `max_updates_per_a2a_task`. Reads of an unknown task give None, False or nothing.

    An event may have ``max_event_bytes`` as JSON. Errors: InvalidField for less than 1.
    """

    def __init__(
        self, store: RedisStateStore, *, owner: str = "", max_event_bytes: int = 8 << 20
    ) -> None:
        self._store = store
        self._owner = text("owner", owner)
        most = limits.count("max_event_bytes", max_event_bytes)
        self._tasks = TaskEvents(store.base, owner=owner, max_event_bytes=most)

    def __repr__(self) -> str:
        return f"<TaskStateManager owner={self._owner!r} {self._store!r}>"

    async def register_task(self, task_id: str, context_id: str, stream_id: str) -> Registration:
        """Register a task as working, unless there is one of its id.

        Of many callers one creates it; the others get what is there, untouched: its state, its
        events, its stream.
        """
        return await self._tasks.register(
            text("task_id", task_id),
            context_id=text("context_id", context_id),
            stream_id=text("stream_id", stream_id),
        )

    async def record_event(
        self, task_id: str, event: Any, *, event_id: str | None = None
    ) -> TaskEvent:
        """Record an event, move the task to the event's state, and publish the event.

        Needs no subscriber. Artifacts and messages leave the state as it is. A terminal state
        ends the task, whatever the event's ``final`` says. Once per ``event_id``: a caller that
        does not know whether its call happened repeats it with the same one, and gets the first
        one's cursor. An id is recognised as long as its event is kept: among the newest
        `max_updates_per_a2a_task` of its task. Errors: TaskUnknown; InvalidTransition if the task
        has ended, and nothing is recorded then; InvalidField for what is no event, one of another
        task, or one above ``max_event_bytes``.
        """
        document = _document(event)
        reported = classify_event(document)
        if reported.task_id not in ("", text("task_id", task_id)):
            raise InvalidField("event", "it is of another task")
        if event_id is not None and not text("event_id", event_id):
            raise InvalidField("event_id", "must not be empty")
        return await self._tasks.record(task_id, document, reported, event_id=event_id)

    async def get_task_info(self, task_id: str, *, events: bool = True) -> TaskInfo | None:
        """Return a task as it stands at one moment, with its events by default."""
        return await self._tasks.load(text("task_id", task_id), events=events)

    async def get_stream_id(self, task_id: str) -> str | None:
        """Return the stream that was last named as the task's."""
        found = await self._tasks.field(text("task_id", task_id), "stream")
        return None if found is None else found.decode("utf-8", "surrogatepass")

    async def get_task_events(self, task_id: str) -> list[Document]:
        """Return a task's events that are kept, in order. None of an unknown task."""
        info = await self.get_task_info(task_id)
        return [] if info is None else list(info.events)

    async def is_task_active(self, task_id: str) -> bool:
        """Return whether a task is there and has not ended."""
        info = await self.get_task_info(task_id, events=False)
        return info is not None and info.completed_at is None

    async def task_exists(self, task_id: str) -> bool:
        """Return whether a task is there, active or completed."""
        return await self._tasks.field(text("task_id", task_id), "state") is not None

    async def update_stream_id(self, task_id: str, new_stream_id: str) -> bool:
        """Set the task's stream; return False if there is no such task.

        Changes nothing for any subscriber: streams are names, and do not carry the events.
        """
        return await self._tasks.set_stream(
            text("task_id", task_id), text("new_stream_id", new_stream_id)
        )

    async def subscribe(
        self, task_id: str, *, after: str | None = None, reconnect_timeout_s: float = 300.0
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield a task's events from the first, or after a cursor, and continue live until it ends.

        Each once and in order, from any process, through lost connections and
        restarts of the server; any number may subscribe, also to a completed task. Close it
        (``contextlib.aclosing``) when done early. Errors: TaskUnknown, also when the task is
        dropped meanwhile; CursorGap instead of a silent skip, whose ``resume_after`` reads what
        is kept; BackendUnavailable when the server stays away for ``reconnect_timeout_s``.
        """
        events = self._tasks.follow(
            text("task_id", task_id),
            after=None if after is None else text("after", after),
            reconnect_timeout_s=limits.patience(
                "reconnect_timeout_s", reconnect_timeout_s, least=limits.SHORTEST_S
            ),
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def cleanup_old_tasks(self, older_than: datetime | timedelta) -> int:
        """Drop the tasks that ended before a moment, or longer ago than that by the server's clock.

        Returns how many were dropped by this call. Active tasks stay. Safe while others record,
        register and clean up: each task is dropped whole, and once. Errors: InvalidField for a
        moment without an offset, or a negative length of time.
        """
        if isinstance(older_than, datetime):
            if older_than.utcoffset() is None:
                raise InvalidField("older_than", "needs an offset from UTC")
        elif not isinstance(cast("object", older_than), timedelta):
            needed = f"a datetime or a timedelta is needed, not {type(older_than).__name__}"
            raise InvalidField("older_than", needed)
        elif older_than < timedelta(0):
            raise InvalidField("older_than", "must not be less than 0")
        return await self._tasks.drop_before(older_than)

    async def count_tasks(self) -> TaskCounts:
        """Count active and completed tasks at one moment, however many there are."""
        return await self._tasks.counts()

    async def count_active_tasks(self) -> int:
        """Count the tasks that have not ended."""
        return (await self.count_tasks()).active

    async def count_completed_tasks(self) -> int:
        """Count the tasks that have ended and are kept."""
        return (await self.count_tasks()).completed


def _document(event: object) -> Document:
    """Write an event as A2A's JSON has it."""
    if isinstance(event, BaseModel):
        event = event.model_dump(by_alias=True, exclude_none=True)
    elif hasattr(event, "DESCRIPTOR"):
        # Only who has such a message has the package.
        event = import_module("google.protobuf.json_format").MessageToDict(event)
    if not isinstance(event, Mapping):
        raise InvalidField("event", f"an event of A2A is needed, not {type(event).__name__}")
    return mapping("event", cast("object", event))
