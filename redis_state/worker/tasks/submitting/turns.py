"""Sessions whose tasks run in turn, and what becomes of those that are in a new one's way.

    enqueue      the new task waits for its turn
    reject       the new task is not written, if a task of the session is unfinished
    interrupt    what has begun and is unfinished is cancelled; the new task is next
    replace      what waits and has not begun is cancelled; the new task takes its place

A list in the session's slot names the tasks that may be unfinished. It only names candidates:
their records decide. So no move of a task writes it, and it cannot be wrong after a crash. A task
is put on it in the step that writes the task. Sweepers take off what has ended.

One script decides and writes the new task. What waits is cancelled in that step. What has begun is
cancelled cooperatively, after it: the new task's record names it until that is done, and a sweeper
does it for a client that died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from redis_state.errors import InvalidField, LimitReached, TaskInProgress
from redis_state.models import StateUpdate, SteeringEvent, SteeringEventType, TaskStatus, UpdateType
from redis_state.scripts import (
    Announcement,
    KnownTask,
    KnownTasks,
    Reply,
    ReplyCode,
    raw,
    topic_text,
)
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.stores.sessions.task_status import TaskStatusView, updated_us
from redis_state.stores.task_index import TaskIndex, indexed_move
from redis_state.worker.queue.jobs.job import Job, seniority_ms
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.children.cancelling import CancelCascade
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.move_parts import announcement, watch_entry
from redis_state.worker.tasks.new_tasks import NewTask

# More unfinished tasks than these are no line that one call could judge.
MOST_IN_LINE = 1_000
_AT_ONCE = 64


class OnBusy(StrEnum):
    """What happens to a new task while a task of its session is unfinished."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    REPLACE = "replace"

    @classmethod
    def read(cls, given: Any) -> OnBusy | None:
        """Read what a caller gave. Errors: InvalidField."""
        if given is None:
            return None
        try:
            return cls(given)
        except ValueError:
            raise InvalidField("on_busy", f"one of {', '.join(cls)} is needed") from None

    @classmethod
    def of(cls, given: Any, *, in_turn: bool) -> OnBusy | None:
        """Read a task's policy; None for one that is not in turn. Errors: InvalidField."""
        return cls.read(given) or (cls.ENQUEUE if in_turn else None)


@dataclass(slots=True)
class InTurn:
    """A new task's place in its session's line; what was decided is known once it is written.

    ``came_ms`` stands for when it came, if it goes before others. ``interrupted`` are the tasks to
    be cancelled, each with its order; ``passed`` are the others that it may go before.
    """

    store: RedisStateStore
    policy: OnBusy = OnBusy.ENQUEUE
    priority: int = 0
    delay_ms: int = 0
    came_ms: int | None = None
    interrupted: Sequence[bytes] = field(default_factory=list[bytes])
    passed: Sequence[str] = ()

    async def check(self, session_id: str, task_id: str) -> None:
        """Refuse early, before anything is written. Errors: TaskInProgress."""
        if self.policy is not OnBusy.REJECT:
            return
        names = [name for name in await self._listed(session_id) if name != task_id]
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self.store.tasks.look(session_id, one) for one in some))
            for view in found:
                if view is not None and view.in_turn and not view.status.is_terminal:
                    raise TaskInProgress(session_id, view.task_id, status=view.status.value)

    async def __call__(self, new: NewTask, before_ms: int) -> Reply:
        """Write the task by the script that decides. Errors: LimitReached, TaskInProgress."""
        base = self.store.base
        session_id, task_id = new.session_id, new.keys.task_id
        while True:
            line = await self._line(session_id, task_id)
            replaced = self.policy is OnBusy.REPLACE
            changes: Mapping[str, bytes] = _cancelled(self.store, task_id) if replaced else {}
            reply = await base.scripts.create_turn_task(
                new.keys,
                new.fields,
                steering=self.store.steering.keys(session_id),
                announcement=new.announcement,
                children=base.keys.children(session_id, task_id),
                turn=base.keys.turn(session_id),
                line=KnownTasks(line),
                write=new.write,
                ttl_ms=new.ttl_ms,
                before=before_ms,
                policy=self.policy.value,
                delay_ms=self.delay_ms,
                earlier_ms=seniority_ms(self.priority),
                life_ms=line_life_ms(self.store, self.delay_ms),
                ended_ms=self.store.tasks.ttl_ms(TaskStatus.CANCELLED.value),
                hold_ms=self.store.tasks.hold_ms(TaskStatus.CANCELLED.value),
                cancelled=changes,
            )
            if reply.word is not ReplyCode.AGAIN:
                break
        if reply.word is ReplyCode.OK:
            _, came_ms, self.interrupted, *cancelled = reply.facts
            self.came_ms = int(came_ms) if came_ms and not self.delay_ms else None
            if self.policy is OnBusy.INTERRUPT:
                known = {topic_text(name) for name in self.interrupted[::2]}
                names = (one.keys.task_id for one in line)
                self.passed = [name for name in names if name not in known]
            self._record_cancelled(session_id, cancelled, new.write, updated_us(changes))
        return reply

    async def _line(self, session_id: str, task_id: str) -> list[KnownTask]:
        """Read the tasks that may be in the way, with their updates if they are cancelled."""
        if self.policy is OnBusy.ENQUEUE:
            return []
        names = [name for name in await self._listed(session_id) if name != task_id]
        while len(names) > MOST_IN_LINE:
            # Those that have ended stand on it until a sweeper comes by.
            await self._take_off_ended(session_id, names)
            listed = [name for name in await self._listed(session_id) if name != task_id]
            if len(listed) > MOST_IN_LINE and listed == names:
                raise LimitReached(
                    "tasks of the session", limit=MOST_IN_LINE, code="session_line_is_full"
                )
            names = listed
        return [
            KnownTask(
                self.store.tasks.keys(session_id, name),
                *self._cancelling(session_id, name, task_id),
            )
            for name in names
        ]

    async def _take_off_ended(self, session_id: str, names: Sequence[str]) -> None:
        keys, life_ms = self.store.base.keys, line_life_ms(self.store, self.delay_ms)
        for start in range(0, len(names), _AT_ONCE):
            kept = (
                self.store.base.scripts.keep_turn(
                    task=keys.task(session_id, name),
                    turn=keys.turn(session_id),
                    task_id=name,
                    place_ms=0,
                    life_ms=life_ms,
                )
                for name in names[start : start + _AT_ONCE]
            )
            await asyncio.gather(*kept)

    async def _listed(self, session_id: str) -> list[str]:
        key = self.store.base.keys.turn(session_id)
        found = await self.store.transport.commands.zrange(key, 0, MOST_IN_LINE + 1)
        return [topic_text(member) or "" for member in found]

    def _cancelling(self, session_id: str, task_id: str, by: str) -> tuple[bytes, bytes]:
        if self.policy is not OnBusy.REPLACE:
            return b"", b""
        update = StateUpdate(
            session_id=session_id,
            task_id=task_id,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": TaskStatus.CANCELLED.value, "reason": _replaced(by)},
        )
        announced: Announcement = announcement(self.store, update)
        return announced.row_id, announced.row

    def _record_cancelled(
        self, session_id: str, cancelled: Sequence[Any], write: str, ended_us: int | None
    ) -> None:
        """Write what was cancelled into the index. What fails here is repaired by a sweeper."""
        index = TaskIndex(self.store.base.scripts, self.store.base.keys)
        ttl_ms = self.store.tasks.listed_ms(TaskStatus.CANCELLED.value)
        for name, version in zip(cancelled[::2], cancelled[1::2], strict=True):
            entry = watch_entry(session_id, topic_text(name) or "")
            index.moved(
                indexed_move(
                    entry,
                    TaskStatus.CANCELLED,
                    version=int(version),
                    write=write,
                    ttl_ms=ttl_ms,
                    updated_us=ended_us,
                )
            )


@dataclass(frozen=True, slots=True)
class Turns:
    """What is to be done after the decision, by the client, else by a sweeper."""

    store: RedisStateStore
    queue: Queue

    async def keep(self, view: TaskStatusView) -> None:
        """Keep an unfinished task in its session's line, and interrupt what it has still to.

        An ended one is taken off. Errors: BackendError.
        """
        keys = self.store.base.keys
        reply = await self.store.base.scripts.keep_turn(
            task=keys.task(view.session_id, view.task_id),
            turn=keys.turn(view.session_id),
            task_id=view.task_id,
            place_ms=place_in_line(view),
            life_ms=line_life_ms(self.store),
        )
        order, interrupted = reply.facts
        if interrupted and int(order) == view.order:
            await self.interrupt(view, interrupted)

    async def interrupt(self, view: TaskStatusView, interrupted: Sequence[bytes]) -> None:
        """Cancel what a new task interrupts, once: the same events however often.

        What has something to undo, and waits, runs once more before the new task. Errors:
        BackendError. Then a sweeper does it.
        """
        session_id = view.session_id
        cancels = CancelCascade(self.store, ChildTasks(self.store))
        reason = f"interrupted by task {view.task_id!r}"
        for name, order in zip(interrupted[::2], interrupted[1::2], strict=True):
            task_id = topic_text(name) or ""
            found = await self.store.tasks.look(session_id, task_id)
            if found is None or found.order != int(order) or found.status.is_terminal:
                continue
            # Later tasks of these ids are others.
            both = (view.task_id, view.order, task_id)
            event = SteeringEvent(
                session_id=session_id,
                task_id=task_id,
                event_id=codec.fingerprint("interrupted by", session_id, *both, found.order),
                event_type=SteeringEventType.CANCEL,
                payload={"reason": reason, "hard": False},
                source=f"task:{view.task_id}",
            )
            await self.store.save_steering(event)
            await cancels.cancel_waiting(session_id, task_id, reason)
            await self._undo_first(session_id, task_id, before=place_in_line(view))
        await self.store.base.scripts.settle_turn(
            task=self.store.base.keys.task(session_id, view.task_id), order=view.order
        )

    async def interrupt_claimed(self, job: Job, passed: Sequence[str]) -> None:
        """Cancel what a worker claimed before the new task stood in the queue: it has begun too.

        Otherwise the new task, which is next, would wait for the whole of it. Errors: BackendError.
        """
        session_id = job.session_id
        claimed = await self.queue.claimed_of(job.queue, job.key) if passed else set[str]()
        ours = [name for name in passed if self.queue.claim_of(session_id, name) in claimed]
        # What was claimed after the new task had begun came later than it.
        view = await self.store.tasks.look(session_id, job.task_id) if ours else None
        if view is None or view.status is not TaskStatus.PENDING or view.attempts:
            return
        for name in ours:
            found = await self.store.tasks.look(session_id, name)
            if found is not None:
                await self.interrupt(view, [raw(name), b"%d" % found.order])

    async def _undo_first(self, session_id: str, task_id: str, *, before: int) -> None:
        """Queue a task that was made to run, to undo what it did, in front of the new one.

        One that waits for its turn already goes forward to there.
        """
        found = await self.store.tasks.look(session_id, task_id)
        if found is not None and found.status is TaskStatus.PENDING:
            await self.queue.put(Job.before(found, before + seniority_ms(found.priority)))


def line_life_ms(store: RedisStateStore, delay_ms: int = 0) -> int:
    """Return how long a session's line is kept after its last task."""
    return 2 * store.tasks.ttl_ms(TaskStatus.PENDING.value) + delay_ms


def place_in_line(view: TaskStatusView) -> int:
    """Return a task's place in the line, as the script that wrote it has chosen, in ms."""
    return (Job.of(view).since_ms or 0) - seniority_ms(view.priority)


def _replaced(by: str) -> str:
    return f"replaced by task {by!r}"


def _cancelled(store: RedisStateStore, by: str) -> Mapping[str, bytes]:
    return move_fields(TaskStatus.CANCELLED, store.base.payloads, error=_replaced(by))
