"""Messages to a task, from clients and from other tasks: signals, and requests with their replies.

A message stands in the mailbox of its task, which is part of the task's journal. So a later task of
the id does not get it, and it lives as long as the task. A *box* is a kind and a name. Messages of
a box are taken in the order in which they were sent, each once, by
`redis_state.worker.tasks.messaging.mailbox`.

    send     the message, and the move of a task that waits for one of its box, are one step
    take     the message and its record in the journal are one step, under the run's lease
    reply    the reply and its update are one step, once per request

A sender that does not know whether its call happened repeats it under the same id. A sender that
dies after it made a task PENDING leaves the queue to a sweeper: the watch list has the task before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from redis_state import limits
from redis_state.errors import (
    BackendError,
    InvalidTransition,
    LimitReached,
    NoReceiver,
    RequestRefused,
    RequestTimeout,
    RequestUnanswered,
    TaskUnknown,
)
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.models.tasks import new_id
from redis_state.primitives.record import new_write_id
from redis_state.primitives.sent import UNNAMED, SentContent
from redis_state.scripts import Reply, ReplyCode, TaskKeys, raw
from redis_state.serialization import codec
from redis_state.store import RedisStateStore, process_name
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.transport.key_groups import live_channel
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.messaging.payloads import check_name, read_payload
from redis_state.worker.tasks.messaging.values import until_found
from redis_state.worker.tasks.move_parts import announcement, status_update

log: logging.Logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 30.0

MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024

Kind = Literal["signal", "request"]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a task."""

    session_id: str
    task_id: str
    kind: Kind
    name: str

    @property
    def key(self) -> str:
        """Return the name of the box in the journal."""
        return f"{self.kind}:{check_name('name', self.name)}"


class TaskMessages:
    """Send messages to tasks, and await replies.

    Without a ``queue``, a task that a message wakes is left to a sweeper, which queues it within
    seconds.
    """

    def __init__(self, store: RedisStateStore, queue: Queue | None = None) -> None:
        self._store = store
        self._scripts = store.base.scripts
        self._queue = queue
        self._books = TaskBookkeeping(store)

    async def send(
        self,
        to: Box,
        payload: bytes,
        *,
        message_id: str | None,
        sender: str | None,
        compares: bool = False,
    ) -> str:
        """Put a message into a box, once per id; return the id.

        ``compares`` an id that its caller has chosen: under it no other payload is sent. Errors:
        KeyReused then; TaskUnknown; InvalidTransition if the task is terminal; LimitReached.
        """
        sent = None
        if compares and message_id is not None:
            sent = SentContent.of(self._store.base.payloads, to.kind, codec.decode(payload))
        message_id = new_id() if message_id is None else check_name("idempotency_key", message_id)
        sealed = self._store.base.payloads.seal(payload)
        parts = (codec.encode(message_id), codec.encode(sender or process_name()), sealed)
        kept = UNNAMED if sent is None else sent.kept
        send = partial(self._send, to, message_id, b",".join(parts) + b"]", kept)
        reply = await send(covered=False)
        woken = reply.word is ReplyCode.HELD
        if woken:
            # It waits for this message: if this process dies, a sweeper finds it PENDING.
            await self._books.inspect_soon(to.session_id, to.task_id)
            state = await self._store.tasks.load(to.session_id, to.task_id)
            reply = await send(covered=True, trace_id=None if state is None else state.trace_id)
        if reply.word is ReplyCode.MISSING:
            raise TaskUnknown(to.task_id)
        if reply.word is ReplyCode.DENIED:
            raise InvalidTransition(to.task_id, current=reply.text(0), wanted="sent a message")
        if reply.word is ReplyCode.FULL:
            raise LimitReached(
                "messages of the task", limit=MAX_WAITING, code="the mailbox is full"
            )
        if sent is not None and not reply.facts[0]:
            sent.check_kept(reply.facts[2])
        if reply.text(1) == TaskStatus.PENDING.value:
            await self._queue_up(to.session_id, to.task_id)
        return message_id

    async def request(
        self,
        to: Box,
        payload: bytes,
        *,
        timeout_s: float,
        message_id: str | None,
        sender: str | None,
        expected: Any = None,
        compares: bool = False,
    ) -> Any:
        """Send a request and return its reply. See `TaskClient.request`."""
        limits.patience("timeout_s", timeout_s)
        # An id of our own is no key of a caller's.
        compares = compares and message_id is not None
        message_id = new_id() if message_id is None else check_name("idempotency_key", message_id)
        try:
            await self.send(to, payload, message_id=message_id, sender=sender, compares=compares)
        except InvalidTransition as denied:
            status = denied.current
            raise RequestUnanswered(to.task_id, to.name, status, request_id=message_id) from None
        find = partial(self._reply, to, message_id)
        notice = {"notice": "reply", "request": message_id}
        found = await until_found(
            self._store, to.session_id, to.task_id, find, notice=notice, wait_s=timeout_s
        )
        if found is None:
            raise await self._no_reply(to, message_id)
        answered, value = found
        if not answered:
            raise RequestRefused(to.task_id, to.name, str(value), request_id=message_id)
        return read_payload(to.name, value, expected)

    async def expire(self, session_id: str, task_id: str) -> int | None:
        """Wake a task that waits for messages, if one is there or the timeout has expired.

        Return the milliseconds that are left; None if it does not wait, or no longer. For sweepers:
        read the task again, it may be PENDING now and is not queued.
        """
        state = await self._store.tasks.load(session_id, task_id)
        if state is None:
            return None
        update = status_update(state, TaskStatus.PENDING, waited_for="messages")
        reply = await self._scripts.wake_receiver(
            self._keys(session_id, task_id),
            move_fields(TaskStatus.PENDING),
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PENDING.value),
            announcement=announcement(self._store, update),
        )
        return int(reply.facts[0]) if reply.word is ReplyCode.HELD else None

    async def _send(
        self,
        to: Box,
        message_id: str,
        message: bytes,
        kept: bytes,
        *,
        covered: bool,
        trace_id: str | None = None,
    ) -> Reply:
        woken = StateUpdate(
            session_id=to.session_id,
            task_id=to.task_id,
            trace_id=trace_id,
            update_type=UpdateType.STATUS_CHANGE,
            content={"status": TaskStatus.PENDING.value, to.kind: to.name},
        )
        return await self._scripts.send_message(
            self._keys(to.session_id, to.task_id),
            move_fields(TaskStatus.PENDING),
            live=mail_channel(self._store, to.session_id, to.task_id),
            covered=covered,
            box=to.key,
            message_id=message_id,
            message=message,
            sent=kept,
            most=MAX_WAITING,
            most_bytes=MAX_WAITING_BYTES,
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PENDING.value),
            announcement=announcement(self._store, woken),
        )

    async def _reply(self, to: Box, message_id: str) -> tuple[bool, Any] | None:
        journal = self._keys(to.session_id, to.task_id).journal
        entry = raw(reply_entry(to.key, message_id))
        found: bytes | None = await self._store.transport.commands.hget(journal, entry)
        if found is None:
            return None
        payloads = self._store.base.payloads
        answered, value = payloads.unpack(found, 2)
        of, field = f"task {to.task_id!r}", f"reply to {to.name}"
        return bool(answered), payloads.need(value, of=of, field=field)

    async def _no_reply(self, to: Box, message_id: str) -> Exception:
        state = await self._store.tasks.load(to.session_id, to.task_id)
        if state is None:
            return TaskUnknown(to.task_id)
        if state.status.is_terminal:
            status = state.status.value
            return RequestUnanswered(to.task_id, to.name, status, request_id=message_id)
        journal = self._keys(to.session_id, to.task_id).journal
        asks = await self._store.transport.commands.hget(journal, raw(f"asks:{to.key}"))
        return late_reply(to.task_id, to.name, message_id, received=bool(asks))

    async def _queue_up(self, session_id: str, task_id: str) -> None:
        """Queue a task that is PENDING. A sweeper stands in for a queue that is away."""
        found = await self._store.tasks.look(session_id, task_id)
        if found is None or found.status is not TaskStatus.PENDING or self._queue is None:
            return
        try:
            await self._queue.put(Job.ready(found))
        except BackendError as error:
            log.warning("task %r is left to a sweeper: %s", task_id, error)

    def _keys(self, session_id: str, task_id: str) -> TaskKeys:
        return self._store.tasks.keys(session_id, task_id)


def reply_entry(box: str, message_id: str) -> str:
    """Return the journal's entry of a reply. The length separates the box from the id."""
    return f"reply:{len(raw(box))}:{box}{message_id}"


def mail_channel(store: RedisStateStore, session_id: str, task_id: str) -> str:
    """Return the channel on which a running task hears of its mail."""
    return live_channel(store.tasks.keys(session_id, task_id).journal, store.base.keys.database)


def late_reply(task_id: str, name: str, request_id: str, *, received: bool) -> RequestTimeout:
    """Make the error of a late reply. ``received`` if the handler has called for its name."""
    problem = "no reply came in time"
    if received:
        return RequestTimeout(task_id, name, problem, request_id=request_id)
    problem += ", and the handler has not called for a request of this name"
    return NoReceiver(task_id, name, problem, request_id=request_id)
