"""Changes of a task that leave its status as it is: its priority and its attributes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from redis_state.models import TaskState, TaskStatus
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.primitives.record import new_write_id
from redis_state.scripts import ReplyCode, TaskKeys
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import raise_refused
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun


class TaskChanges:
    """Change tasks that wait or run."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)

    async def prioritize(
        self, session_id: str, task_id: str, priority: int
    ) -> TaskStatusView | None:
        """Change the priority of a task that waits; return what it is, or None if none waits.

        Its job is to be placed next. The watch list has the task before: a crash in between leaves
        the place to the sweeper.
        """
        keys = self._store.tasks.keys(session_id, task_id)
        while True:
            record = await self._store.tasks.load_fields(session_id, task_id)
            if record is None:
                return None
            found = TaskStatusView.of(session_id, task_id, record.fields)
            if found.status not in (TaskStatus.PENDING, TaskStatus.PAUSED):
                return None
            await self._books.inspect_soon(session_id, task_id)
            reply = await self._scripts.prioritize_task(
                keys, priority=priority, write=new_write_id(), expected=record.version
            )
            if reply.word is ReplyCode.OK:
                return replace(found, priority=priority, version=int(reply.facts[0]))

    async def set_attributes(
        self,
        started: StartedRun,
        entry: str,
        changes: Attributes,
        gone: AbstractSet[str],
        lane: Lane,
    ) -> None:
        """Set attributes of a running task, once per entry of its journal; others are kept.

        Errors: InvalidField; LeaseLost, JournalRewound, InvalidTransition.
        """
        async with started.setting:
            kept = {name: value for name, value in started.attributes.items() if name not in gone}
            attributes = check_attributes("attributes", kept | dict(changes))
            # Before it is sent: a caller that is cancelled does not learn that it was set.
            started.attributes.clear()
            started.attributes.update(attributes)
            await self._set_all(started, entry, attributes, lane)

    async def _set_all(
        self, started: StartedRun, entry: str, attributes: Attributes, lane: Lane
    ) -> None:
        state, write = started.state, new_write_id()
        reply = await self._scripts.set_attributes(
            self._keys(state),
            mark=started.replay.mark,
            entry=entry,
            attributes=codec.canonical(attributes),
            write=write,
            lane=lane.state(),
        )
        raise_refused(reply, state, run=started.replay, wanted="attributes")
        started.replay.learn(reply, 1, entry, what=state.task_id)
        if reply.word is ReplyCode.OK:
            self._books.record_attributes(started, version=int(reply.facts[0]), write=write)

    async def set_priority(self, started: StartedRun, priority: int) -> None:
        """Change a running task's priority, for the next time it waits.

        Errors: LeaseLost; InvalidTransition if it is terminal.
        """
        mark = started.held.fence.mark
        reply = await self._scripts.prioritize_task(
            self._keys(started.state), priority=priority, write=new_write_id(), mark=mark
        )
        raise_refused(reply, started.state, run=started.replay, wanted="prioritized")

    def _keys(self, state: TaskState) -> TaskKeys:
        return self._store.tasks.keys(state.session_id, state.task_id)
