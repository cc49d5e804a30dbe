"""The mailbox of a run: messages are taken in order, each at one place of the handler.

A receive is an entry of the journal, found by its name and its order, like a step. The message
moves from its box to that entry in one step. So it is delivered once, and a later run finds it at
the same place. That none came in time is recorded likewise.

A handler that waits keeps its worker for a moment. Then the task is PAUSED and its slot is free,
until a message comes or the timeout expires. The check for a message and the pause are one step.
So are a message and the end of the pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, Self, TypeAlias

from redis_state import limits
from redis_state.errors import InvalidField, ReceiveTimeout, RedisStateError
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import listening
from redis_state.scripts import LaneState, ReplyCode, raw
from redis_state.serialization import codec
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.stores.sessions.task_fields import move_fields
from redis_state.transport.subscriber import Subscription
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.messaging.messages import mail_channel, reply_entry
from redis_state.worker.tasks.messaging.payloads import write_payload
from redis_state.worker.tasks.move_parts import announcement, raise_refused, status_update
from redis_state.worker.tasks.recorded.journal import state_of
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

HOLD_S: Final = 2.0

_CHECK_EVERY_S = 5.0
_AGAIN_S = 1.0
_BETWEEN = "\0"

# Calls what pauses the task, while no step begins, and returns whether it has.
Ending: TypeAlias = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A message that a task received: its id, who sent it, the server's time in ms."""

    name: str
    message_id: str
    sender: str
    at_ms: int
    payload: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Receiving:
    """What a handler waits for: the box, for how long, and how long the worker is kept.

    ``lane`` is that of the caller, ``place`` counts what the handler did before, 0 where that
    is unknown. Without a ``hold_s`` the caller decides when it waits.
    """

    entry: str
    box: str
    timeout_ms: int
    hold_s: float | None
    lane: Lane
    place: int

    @classmethod
    def read(
        cls,
        settings: Settings,
        entry: str,
        box: str,
        *,
        lane: Lane,
        place: int,
        timeout: timedelta | None,
        hold_s: float | None,
    ) -> Receiving:
        """Check what a handler asks for. Errors: InvalidField."""
        longest = settings.active_task_ttl
        if timeout is None:
            timeout = min(settings.task_pause_ttl, longest)
        if not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("timeout", f"a timedelta is needed, not {type(timeout).__name__}")
        if not timedelta() <= timeout <= longest:
            raise InvalidField("timeout", "needs to be from 0 to active_task_ttl")
        if hold_s is not None:
            limits.patience("hold_s", hold_s)
        return cls(entry, box, ms(timeout), hold_s, lane, place)


class Mailbox:
    """The messages of one run."""

    def __init__(self, store: RedisStateStore, started: StartedRun, inbox: Inbox) -> None:
        self._store = store
        self._started = started
        self._inbox = inbox
        self._scripts = store.base.scripts
        self._books = TaskBookkeeping(store)
        self._keys = store.tasks.keys(started.state.session_id, started.state.task_id)
        self._waiting: Counter[str] = Counter()
        self._replied = {entry for entry in started.journal if entry.startswith("reply:")}

    async def receive(
        self,
        wanted: Receiving,
        *,
        hold_s: float,
        is_busy: Callable[[], bool],
        ending: Ending,
    ) -> TaskMessage | None:
        """Return the next message of a box; None if the task was paused to wait for it.

        It is not paused before ``hold_s``, nor while another part of the handler works.

        Errors: ReceiveTimeout; LeaseLost, JournalRewound; TaskCancelled.
        """
        if wanted.entry in self._started.journal:
            return _read(wanted, self._started.journal[wanted.entry])
        if self._started.replay.rehearsal is not None:
            await self._started.replay.rehearsal.end(wanted.entry)
        self._waiting[wanted.box] += 1
        try:
            return await self._receive(wanted, hold_s, is_busy, ending)
        finally:
            self._waiting[wanted.box] -= 1

    async def reply(self, box: str, message: TaskMessage, *, answered: bool, value: Any) -> None:
        """Reply to a request, once: what an earlier run, or an earlier call, has replied stands.

        One step with its update. Errors: InvalidField; LeaseLost, JournalRewound.
        """
        entry = reply_entry(box, message.message_id)
        if entry in self._replied or self._started.replay.rehearsal is not None:
            return
        state, run = self._started.state, self._started.held.epoch
        payloads, value = self._store.base.payloads, codec.decode(write_payload("value", value))
        update = StateUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_id=codec.fingerprint("reply", self._started.secret, entry),
            update_type=UpdateType.NOTIFICATION,
            content={"notice": "reply", "name": message.name, "request": message.message_id},
        )
        reply = await self._scripts.emit_update(
            self._keys,
            announcement(self._store, update, run=run),
            mark=self._started.replay.mark,
            lane=LaneState(entry, payloads.row([answered, value], 1, field="value")),
        )
        what = f"task {state.task_id!r}"
        self._started.replay.learn(reply, 0, entry, what=what)
        self._replied.add(entry)

    async def _receive(
        self,
        wanted: Receiving,
        hold_s: float,
        is_busy: Callable[[], bool],
        ending: Ending,
    ) -> TaskMessage | None:
        hold_ends = monotonic() + hold_s
        async with AsyncExitStack() as stack:
            waiter: _Waiter | None = None
            while True:
                row, left_ms = await self._take(wanted)
                if left_ms <= 0:
                    return _read(wanted, row)
                held_s = hold_ends - monotonic()
                if held_s <= 0 and not is_busy():
                    if await ending(partial(self._pause, left_ms)):
                        return None
                    continue
                if waiter is None:
                    channel = self._channel()
                    heard = await stack.enter_async_context(
                        listening(self._store.transport, channel)
                    )
                    waiter = await stack.enter_async_context(_Waiter(heard, self._inbox))
                held_s = held_s if held_s > 0 else _AGAIN_S
                await waiter.wait(min(held_s, left_ms / 1000, _CHECK_EVERY_S))

    async def _take(self, wanted: Receiving) -> tuple[Any, int]:
        """Take a message; return it, and 0; or None, and for how long it is still waited for."""
        reply = await self._scripts.take_message(
            self._keys,
            mark=self._started.replay.mark,
            entry=wanted.entry,
            box=wanted.box,
            timeout_ms=wanted.timeout_ms,
            place=wanted.place,
            lane=state_of(wanted.lane),
        )
        if reply.word is ReplyCode.HELD:
            return None, int(reply.facts[0])
        self._started.replay.learn(reply, 1, wanted.entry, what=self._started.state.task_id)
        payloads, of = self._store.base.payloads, f"task {self._keys.task_id!r}"
        payloads.need_all(reply.facts[0], of=of, field=wanted.entry)
        return payloads.decode(reply.facts[0]), 0

    async def _pause(self, left_ms: int) -> bool:
        """Pause the task until a message of a box comes for which this run waits.

        Return False if one is there. The watch list has the task before.
        """
        state, started = self._started.state, self._started
        boxes = [box for box, count in self._waiting.items() if count > 0]
        names = [box.partition(":")[2] for box in boxes]
        await self._books.inspect_soon(state.session_id, state.task_id)
        reply = await self._scripts.await_message(
            self._keys,
            move_fields(TaskStatus.PAUSED) | started.waiting_fields(),
            mark=started.replay.mark,
            left_ms=left_ms,
            boxes=raw(_BETWEEN + _BETWEEN.join(boxes) + _BETWEEN),
            write=new_write_id(),
            ttl_ms=self._store.tasks.ttl_ms(TaskStatus.PAUSED.value),
            announcement=announcement(
                self._store,
                status_update(state, TaskStatus.PAUSED, waits_for_messages=names),
                run=started.held.epoch,
            ),
        )
        if reply.word is ReplyCode.AGAIN:
            return False
        raise_refused(reply, state, run=started.replay, wanted="PAUSED")
        self._books.pack_updates(state.session_id)
        return True

    def _channel(self) -> str:
        state = self._started.state
        return mail_channel(self._store, state.session_id, state.task_id)


class _Waiter:
    """Wait for news of the mailbox, or for the end of the run."""

    def __init__(self, subscription: Subscription, inbox: Inbox) -> None:
        self._subscription = subscription
        self._inbox = inbox
        self._over: asyncio.Task[Any] | None = None
        self._heard: asyncio.Task[Any] | None = None
        self._deaf = False

    async def __aenter__(self) -> Self:
        self._over = asyncio.ensure_future(self._inbox.until_over())
        return self

    async def __aexit__(self, *_: object) -> None:
        waiting = [task for task in (self._over, self._heard) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def wait(self, timeout_s: float) -> None:
        """Wait until there may be something new. Errors: TaskCancelled, LeaseLost."""
        if self._heard is None and not self._deaf:
            self._heard = asyncio.ensure_future(self._next())
        waiting = [task for task in (self._over, self._heard) if task is not None]
        patience_s = min(timeout_s, _AGAIN_S) if self._deaf else timeout_s
        await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        self._inbox.raise_if_over()
        if self._heard is not None and self._heard.done():
            heard, self._heard = self._heard, None
            error = heard.exception()
            if isinstance(error, RedisStateError):
                # Without the right to listen, for example. Then the mailbox is read now and then.
                log.warning("messages are not heard, and looked for: %s", error)
                self._deaf = True
            elif error is not None:
                raise error

    async def _next(self) -> None:
        await self._subscription.next(within_s=_CHECK_EVERY_S)


def _read(wanted: Receiving, row: Any) -> TaskMessage:
    """Read what the journal holds. Errors: ReceiveTimeout."""
    name = wanted.box.partition(":")[2]
    if row is None:
        raise ReceiveTimeout(name)
    _, at_ms, message_id, sender, payload = row
    return TaskMessage(name, message_id, sender, int(at_ms), payload)
