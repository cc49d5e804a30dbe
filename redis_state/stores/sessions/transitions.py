"""The status changes of stored tasks, for every protocol, with one winner."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from redis_state.errors import CorruptState, InvalidField, InvalidTransition, LeaseLost
from redis_state.models import StateUpdate, TaskState, UpdateType
from redis_state.models.lifecycle import CORE, TaskPhase, Vocabulary
from redis_state.primitives.record import Stored, new_write_id, stored
from redis_state.scripts import Announcement, Fence, Reply, ReplyCode
from redis_state.stores.base import Base
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.stores.sessions.updates import UpdateStore

_CHANGES = frozenset({"result", "error", "progress"})


class Transitions:
    """Move the tasks that no worker of ours runs. The server itself checks each move."""

    def __init__(self, base: Base, tasks: TaskStore, updates: UpdateStore) -> None:
        self._base = base
        self._tasks = tasks
        self._updates = updates

    async def move(
        self,
        session_id: str,
        task_id: str,
        wanted: str | Enum,
        *,
        words: Vocabulary = CORE,
        fence: Fence | None = None,
        **changes: Any,
    ) -> TaskState:
        """Move a task and return it as it is then. ``changes``: result, error, progress.

        One step: the status is checked, changed and published to the session's watchers. Of
        concurrent moves one wins. The others find the status that it left. Errors:
        InvalidTransition with the status in ``words``, ``missing`` for no task; LeaseLost if a
        worker runs the task, or under the ``fence`` of a lease that another claim has;
        InvalidField.
        """
        phase = words.phase(wanted)
        unknown = sorted(set(changes) - _CHANGES)
        if unknown:
            raise InvalidField(unknown[0], f"a move changes {', '.join(sorted(_CHANGES))}")
        fields = move_fields(phase.status, self._base.payloads, **changes)
        del fields["status"]  # the script writes it, with the phase
        keys = self._tasks.keys(session_id, task_id)
        write = new_write_id()

        async def move_it() -> Reply:
            return await self._base.scripts.transition_task(
                keys,
                fields,
                mark=fence.mark if fence else b"",
                from_phases=sorted(source.value for source in words.sources(phase)),
                status=phase.status.value,
                phase=phase.value,
                write=write,
                ttl_ms=self._tasks.ttl_ms(phase.status.value),
                hold_ms=self._tasks.hold_ms(phase.status.value),
                announcement=self._announce(session_id, task_id, phase),
            )

        ended = phase.status.is_terminal
        reply = await self._tasks.archiving(session_id, task_id, move_it, finished=ended)
        if reply.word is ReplyCode.OK:
            moved = self._read(session_id, task_id, stored(reply.facts[0]))
            return await self._tasks.whole(moved)
        raise _refusal(reply, task_id, words, phase, fence)

    async def phase(self, session_id: str, task_id: str) -> TaskPhase | None:
        """Return a task's phase, or None for no task."""
        record = await self._tasks.load_fields(session_id, task_id)
        fields: Mapping[str, bytes] = record.fields if record else {}
        if "status" not in fields:
            return None
        status = fields["status"].decode()
        of, _, phase = fields.get("phase", b"").decode().rpartition(":")
        run = fields.get("attempts", b"0").decode()
        return TaskPhase(phase if of == f"{status}:{run}" else status)

    def _announce(self, session_id: str, task_id: str, phase: TaskPhase) -> Announcement:
        content = {"status": phase.status.value}
        if phase.value != phase.status.value:
            content["phase"] = phase.value
        update = StateUpdate(
            session_id=session_id,
            task_id=task_id,
            update_type=UpdateType.STATUS_CHANGE,
            content=content,
        )
        bounds = self._updates.bounds
        rows = [self._updates.write(update)]
        return Announcement(self._updates.keys(session_id), bounds.max_rows, bounds.ttl_ms, rows)

    def _read(self, session_id: str, task_id: str, record: Stored | None) -> TaskState:
        try:
            if record is not None:
                return self._tasks.read(session_id, task_id, record)
        except (ValueError, TypeError, KeyError):
            pass
        key = self._tasks.keys(session_id, task_id).task
        raise CorruptState(key, "the task is moved and cannot be read")


def _refusal(
    reply: Reply, task_id: str, words: Vocabulary, wanted: TaskPhase, fence: Fence | None
) -> Exception:
    if reply.word is ReplyCode.LOST:
        epoch = fence.epoch if fence else 0
        return LeaseLost(f"task {task_id!r}", epoch=epoch, current=int(reply.facts[0]))
    current = "missing"
    if reply.word is ReplyCode.DENIED:
        known = reply.text(0)
        current = words.word(TaskPhase(known)) if known in set(TaskPhase) else known
    return InvalidTransition(task_id, current=current, wanted=words.word(wanted))
