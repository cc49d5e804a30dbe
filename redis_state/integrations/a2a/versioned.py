"""Versioned tasks and their events, for the handlers of SDK 1.2 and later (``a2a.server.cluster``).

A write is one step: compare-and-set, the task, its places in the lists, and the event at its
version. So nothing is published that was not written, and nothing written is lost to a subscriber.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskEventStream,
    TaskVersion,
    VersionedEvent,
    VersionedTaskStore,
)
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.types.a2a_pb2 import Message, Task, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from redis_state.errors import CursorGap, InvalidTransition, VersionConflict
from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import (
    draft_of,
    event_bytes,
    event_of,
    explained,
    protocol_errors,
    task_of,
)
from redis_state.integrations.a2a.scoped_tasks import ScopedTasks
from redis_state.stores.a2a.task_model import Phase, Ref, Rule, VersionStamp
from redis_state.stores.a2a.tasks import new_write


class RedisTaskVersion(TaskVersion):
    """A version that knows whose task it is of.

    The SDK subscribes by a task's id alone, and hands the version of its snapshot back: so the
    owner comes with the version, and nobody can subscribe to what they could not read.
    """

    __slots__ = ("place", "ref")

    def __init__(self, ref: Ref, place: VersionStamp) -> None:
        super().__init__(place.n)
        self.ref: Ref = ref
        self.place: VersionStamp = place

    def __eq__(self, other: object) -> bool:
        """Compare number and time: the number alone is given again after a rollback."""
        if isinstance(other, RedisTaskVersion):
            return (self.ref, self.place) == (other.ref, other.place)
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Hash as the SDK's version does."""
        return TaskVersion.__hash__(self)

    @property
    def cursor(self) -> str:
        """The version as text: what `create_event_stream` resumes from."""
        return self.place.cursor


class RedisVersionedTaskStore(ScopedTasks, VersionedTaskStore):
    """Tasks on Redis, each owner's of each tenant apart, written by compare-and-set.

    What is saved here is worked on in this process: when it dies, tasks in work are ended as
    failed within a lease.
    """

    async def save(
        self,
        task: Task,
        *,
        event: Event | None,
        prev: Task | None,  # noqa: ARG002 - the SDK's signature
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Write the version after ``prev_version``, with its event, and return it.

        A cancel needs no version, only a task that has not ended. It keeps what was written since
        the task was read. Errors:
        ConcurrentTaskModificationError for a stale version, a version of another owner's task, a
        task that has ended or was deleted; InvalidParamsError for what is too large.
        """
        ref = self.backend.ref(task.id, context)
        cancels = task.status.state == TaskState.TASK_STATE_CANCELED
        lost = ConcurrentTaskModificationError(task.id)
        place: VersionStamp | None = None
        if isinstance(prev_version, RedisTaskVersion):
            if prev_version.ref == ref:
                place = prev_version.place
            elif not cancels:
                raise lost
        task, event = explained(task, event, self.backend.owner.reason(ref))
        with protocol_errors():
            try:
                if cancels:
                    version = await self._cancel(ref, task, event, place)
                else:
                    rule = Rule.at(place or _place(prev_version))
                    version = await self.backend.owner.save(ref, draft_of(task, event), rule)
            except (VersionConflict, InvalidTransition) as error:
                raise lost from error
        if version is None:
            raise lost
        return RedisTaskVersion(ref, version)

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return a copy of the task with its version, or None.

        One whose server has died is ended first, so a task that is read in work is worked on.
        """
        ref = self.backend.ref(task_id, context)
        with protocol_errors():
            found = await self.backend.owner.look(ref)
        if found is None or found.phase is Phase.GONE:
            return None
        return StoredTask(task_of(found.body), RedisTaskVersion(ref, found.version))


class RedisTaskEventStream(TaskEventStream):
    """The events of tasks, on any server, from any version on.

    All subscriptions of a process share one connection. They survive its loss: what was missed is
    read from the task's log, or reported as gone.
    """

    def __init__(self, backend: A2ABackend) -> None:
        self.backend: A2ABackend = backend

    async def publish(self, task_id: str, event: VersionedEvent) -> None:  # noqa: ARG002
        """Publish a message; any other event was written with its task.

        A message that answers without a task has no subscribers.
        """
        version = event.version
        if not isinstance(event.event, Message) or not isinstance(version, RedisTaskVersion):
            return
        write = new_write(self.backend.owner.name)
        event_data = event_bytes(event.event)
        publish = partial(self.backend.tasks.publish, version.ref, event_data, write=write)
        with protocol_errors():
            await self.backend.owner.repeat(publish)

    async def subscribe(
        self, task_id: str, *, after: TaskVersion
    ) -> AsyncGenerator[VersionedEvent, None]:
        """Yield each event after a version once, in order, and continue live until the task ends.

        ``after`` is a version that a store gave for this task, or one of `version_at`. Ends also
        when the server that works on the task dies: the last event is then FAILED. Errors:
        InvalidParamsError for a version of no or another task; UnsupportedOperationError when
        events after it are no longer kept; TaskNotFoundError when the task is deleted.
        """
        if not isinstance(after, RedisTaskVersion) or after.ref.task_id != task_id:
            raise InvalidParamsError("after: a version of this task is needed, as a store gave it")
        ref, n = after.ref, after.place.n
        with protocol_errors():
            found = await self.backend.owner.look(ref)
        if found is None or found.phase is Phase.GONE:
            raise TaskNotFoundError
        try:
            async with aclosing(self.backend.owner.follow(ref, after.cursor)) as rows:
                async for row in rows:
                    phase, data = row.data[:1], row.data[1:]
                    if phase == Phase.GONE.encode():
                        raise TaskNotFoundError("Task was deleted")
                    # A write without an event has a version too.
                    if data and row.n > n:
                        place = VersionStamp(row.n, row.ms)
                        yield VersionedEvent(event_of(data), RedisTaskVersion(ref, place))
        except CursorGap as gap:
            found = await self.backend.tasks.read(ref)
            if found is None or found.phase is Phase.GONE:
                raise TaskNotFoundError("Task was deleted, or is no longer kept") from gap
            with protocol_errors():
                raise

    async def destroy(self, task_id: str) -> None:
        """Do nothing: events live as long as their task."""

    def version_at(
        self, task_id: str, context: ServerCallContext, cursor: str = "0-0"
    ) -> RedisTaskVersion:
        """Return the cursor of a version of a caller's task: by default before the first.

        ``cursor`` is `RedisTaskVersion.cursor`, such as a client's Last-Event-ID. Errors:
        InvalidParamsError if it is none.
        """
        n, dash, at_ms = cursor.partition("-")
        digits = cursor.isascii() and n.isdecimal() and at_ms.isdecimal()
        if not (dash and digits and len(cursor) <= _LONGEST_CURSOR):
            raise InvalidParamsError("cursor: not one of a task's events")
        return RedisTaskVersion(
            self.backend.ref(task_id, context), VersionStamp(int(n), int(at_ms))
        )

    async def aclose(self) -> None:
        """Close the backend."""
        await self.backend.aclose()


_LONGEST_CURSOR = 37


def _place(version: TaskVersion) -> VersionStamp:
    """Read a version that the SDK made itself: a number without a time."""
    number = version._value  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidParamsError("prev_version: a number is needed")
    return VersionStamp(number, 0)
