"""One connection that carries every short command of an event loop, many in each write.

What callers queue in one turn of the loop leaves in one write; a call that finds nothing on its way
leaves at once. Replies resolve the futures in order while further writes are on their way. Commands
take effect in the order of the calls, even when nobody awaits them.

A call is in one of three places, and the order within them is the order of the calls:

    again     sent before, not known to have happened, and safe to send once more
    queue     not sent yet
    inflight  sent, its reply outstanding

When the connection breaks, what is in flight goes back to ``again`` if it may be repeated and
fails as *outcome unknown* if not. What was not sent stays queued until its deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, cast

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from redis_state.errors import (
    BackendUnavailable,
    CallerError,
    ConfigError,
    OutcomeUnknown,
    RedisStateError,
)
from redis_state.transport.address import Address
from redis_state.transport.failures import Rejected, reply_error
from redis_state.transport.line import Line
from redis_state.transport.link import Link
from redis_state.transport.lua import Script

log: logging.Logger = logging.getLogger(__name__)

Argument = str | bytes | int
Command = tuple[Argument, ...]

_BATCH_COMMANDS = 128
_BATCH_BYTES = 1 << 18
_LONGEST_BACKOFF_S = 0.5
# How late a deadline may be noticed: looking at every call for each of them would be quadratic.
# Also how long a connection must be silent before an overdue reply ends it.
_GRAIN_S = 0.1

# In C: redis-py's own asks of every argument what it is, a third of a call's cost.
_pack: Callable[[Command], bytes] = cast("Any", hiredis).pack_command


class _Call:
    """A command on its way, and whoever waits for its reply."""

    __slots__ = (
        "command",
        "deadline",
        "future",
        "lasting",
        "lost",
        "number",
        "repeatable",
        "script",
        "sent",
    )

    def __init__(
        self, number: int, command: Command, future: asyncio.Future[Any], deadline: float
    ) -> None:
        self.number = number
        self.command = command
        self.future = future
        self.deadline = deadline
        self.repeatable = False
        self.lasting = False
        self.script: Script | None = None
        # It may have happened: a reply is outstanding, or one was lost with its connection.
        self.sent = False
        self.lost = False

    @property
    def wanted(self) -> bool:
        """Whether it has no outcome yet, and somebody waits for it or it lasts all the same."""
        return not self.future.done() or (self.lasting and self.future.cancelled())

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Unawaited calls are part of the contract: nobody may be there to look.
            self.future.exception()


class Sender:
    """Send commands over one connection of the running event loop, connecting at first use."""

    def __init__(
        self,
        locate: Callable[[], Awaitable[Address]],
        *,
        shown_as: str,
        call_timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        self._shown_as = shown_as
        self._call_timeout_s = call_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._line = Line(
            self,
            locate,
            name="redis_state sender",
            connect_timeout_s=connect_timeout_s,
            longest_backoff_s=_LONGEST_BACKOFF_S,
        )
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._again: deque[_Call] = deque()
        self._queue: deque[_Call] = deque()
        self._inflight: deque[_Call] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether what is queued will be written at the end of this turn of the loop.
        self._flushing = False
        self._alarm: asyncio.TimerHandle | None = None
        self._trouble = "no connection within the deadline"
        self._closed = False
        # Digests that this connection has sent the text of.
        self._loaded: set[str] = set()
        # A script was forgotten: nothing is sent until it is known which calls must be repeated.
        self._holding = False
        self.batches: int = 0

    def send(
        self,
        *command: Argument,
        repeatable: bool,
        lasting: bool = False,
        script: Script | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a command at once and return its reply's future. Does not wait.

        ``repeatable`` promises that doing the command twice is doing it once, so that it may be
        sent again when a reply is lost. A ``lasting`` one is sent although its future is cancelled.
        ``script`` is the one that an EVALSHA names. A call whose reply is overdue ends the
        connection, unless other replies still come in.

        Errors, on the future: BackendUnavailable if the deadline passes unsent, OutcomeUnknown if
        it passes later, StoreFull, CommandRefused; CallerError for what cannot be sent;
        ConfigError if there is no server to start.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        timeout_s = self._call_timeout_s if timeout_s is None else timeout_s
        if not self._line.connections:
            # A server that was never there is told as soon as connecting has taken its time.
            timeout_s = min(timeout_s, self._connect_timeout_s)
        deadline = self._loop.time() + timeout_s
        call = _Call(next(self._numbers), command, future, deadline)
        call.repeatable, call.lasting, call.script = repeatable, lasting, script
        if self._closed:
            call.fail(BackendUnavailable(self._shown_as, "the store is closed"))
            return future
        self._queue.append(call)
        self._idle.clear()
        self._flush_soon()
        if self._alarm is None or deadline < self._alarm.when():
            self._arm(deadline)
        return future

    @property
    def connections(self) -> int:
        """Count the connections made so far."""
        return self._line.connections

    @property
    def pending(self) -> int:
        """Count the calls that have no outcome yet."""
        return len(self._again) + len(self._queue) + len(self._inflight)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every queued call has its outcome. Errors: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._idle.wait()

    async def aclose(self, *, drain_s: float = 5.0) -> None:
        """Let queued calls finish for at most ``drain_s``, then disconnect. Safe to repeat."""
        self._closed = True
        try:
            with suppress(TimeoutError):
                await self.drain(drain_s)
        finally:
            await self._line.aclose()
            self._abandon()

    def wanted(self) -> bool:
        """Tell whether a connection is needed now."""
        return bool(self._queue or self._again)

    async def use(self, link: Link) -> None:
        """Send what waits, and what comes, until the connection ends."""
        self._loaded.clear()
        link.on_writable = self._flush
        self._flush()
        self._trouble = await link.lost()

    def ended(self) -> None:
        """Put back what may be repeated, and fail the rest of what is in flight."""
        for call in self._inflight:
            if call.repeatable:
                call.lost = True
                self._again.append(call)
            else:
                call.fail(OutcomeUnknown(self._shown_as, f"sent, then {self._trouble}"))
        self._inflight.clear()
        self._resume()
        self._note_idle()

    def failed(self, error: Exception) -> None:
        """Keep the reason for whoever waits, or tell it at once if waiting is in vain."""
        if isinstance(error, ConfigError):
            self._fail_waiting(str(error), configuration=True)
        elif isinstance(error, Rejected):
            self._fail_waiting(error.reason)
        elif isinstance(error, BackendUnavailable):
            self._trouble = error.reason
        else:
            log.error("the sender failed; so do its calls", exc_info=error)
            self._fail_waiting(f"the sender failed: {type(error).__name__}")

    def _flush_soon(self) -> None:
        """Write what is queued at the end of this turn of the loop, together with what follows.

        A call alone is written now: waiting would cost it a tenth of its time.
        """
        if self._line.link is None:
            self._line.need()
        elif not self._inflight and len(self._queue) == 1:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        link = self._line.link
        while link is not None and link.writable and not self._holding:
            batch = self._next_batch()
            if not batch:
                return
            packed = self._pack(batch)
            self._inflight.extend(batch)
            self.batches += 1
            link.write(b"".join(packed))

    def _next_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        size = 0
        for source in (self._again, self._queue):
            while source and len(batch) < _BATCH_COMMANDS and size < _BATCH_BYTES:
                call = source.popleft()
                if not call.wanted:
                    continue
                batch.append(call)
                last = call.command[-1]
                if type(last) is bytes:
                    size += len(last)
        if not batch:
            self._note_idle()
        return batch

    def _pack(self, batch: list[_Call]) -> list[bytes]:
        """Write the batch as bytes. A call that cannot be written fails and leaves the batch."""
        packed: list[bytes] = []
        for call in list(batch):
            command = self._to_send(call)
            try:
                packed.append(_written(command))
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not harm the others
                batch.remove(call)
                call.fail(CallerError(f"{command[0]!s} cannot be sent: {error}"))
            call.sent = True
        return packed

    def _to_send(self, call: _Call) -> Command:
        """Name a script by its digest once this connection has sent its text.

        By the digest alone the first call after a restart would be refused, and be repeated
        after calls that were made later.
        """
        script = call.script
        if script is None or script.digest in self._loaded:
            return call.command
        self._loaded.add(script.digest)
        return ("EVAL", script.text, *call.command[2:])

    def hear(self, reply: Any) -> None:
        """Give a reply to whoever waits for it: the oldest call in flight."""
        inflight = self._inflight
        call = inflight.popleft()
        if isinstance(reply, ResponseError):
            self._refused(call, reply)
        elif not call.future.done():
            call.future.set_result(reply)
        if not inflight:
            if self._holding:
                self._resume()
            self._note_idle()

    def _refused(self, call: _Call, error: ResponseError) -> None:
        if isinstance(error, NoScriptError) and call.script is not None:
            # Somebody flushed the scripts. The calls behind this one may meet the same: all that
            # do are repeated in their order, with the text, before anything else is sent.
            self._loaded.clear()
            self._holding = True
            call.sent = call.lost
            self._again.append(call)
            return
        failure = reply_error(error, self._shown_as)
        if call.lost:
            failure = OutcomeUnknown(
                self._shown_as, f"sent, the reply lost, and refused when repeated: {failure}"
            )
        call.fail(failure)

    def _resume(self) -> None:
        self._holding = False
        self._again = deque(sorted(self._again, key=lambda call: call.number))
        if self._again or self._queue:
            self._flush_soon()

    def _note_idle(self) -> None:
        if not self.pending:
            self._idle.set()

    def _arm(self, deadline: float) -> None:
        """Keep one timer for all calls: it fires at the earliest deadline seen since it was set."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._alarm = None
        now = self._loop.time()
        for call in (*self._again, *self._queue, *self._inflight):
            if call.deadline <= now:
                reason = "sent, not answered by the deadline" if call.sent else self._trouble
                call.fail(self._outcome(call, reason))
        self._again = deque(call for call in self._again if call.deadline > now and call.wanted)
        self._queue = deque(call for call in self._queue if call.deadline > now and call.wanted)
        deadlines = [call.deadline for call in (*self._again, *self._queue, *self._inflight)]
        overdue = self._inflight and self._inflight[0].deadline <= now
        link = self._line.link
        if overdue and link is not None and now - link.heard_at > _GRAIN_S:
            # The oldest reply is overdue: nothing behind it can be heard on this connection.
            link.abort("a reply is overdue")
        if deadlines:
            self._arm(max(min(deadlines), now + _GRAIN_S))
        self._note_idle()

    def _outcome(self, call: _Call, reason: str) -> RedisStateError:
        kind = OutcomeUnknown if call.sent else BackendUnavailable
        return kind(self._shown_as, reason)

    def _fail_waiting(self, reason: str, *, configuration: bool = False) -> None:
        for call in (*self._again, *self._queue):
            if configuration and not call.sent:
                call.fail(ConfigError(reason))
            else:
                call.fail(self._outcome(call, reason))
        self._again.clear()
        self._queue.clear()
        self._note_idle()

    def _abandon(self) -> None:
        """Give every remaining call an outcome; the store or the loop is going away."""
        self._queue.extendleft(reversed(self._inflight))
        self._inflight.clear()
        self._fail_waiting("the connection was closed")
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _written(command: Command) -> bytes:
    """Write a command; its name may be two words."""
    name = command[0]
    if isinstance(name, str) and " " in name:
        command = (*name.split(), *command[1:])
    return _pack(command)
