"""One connection that carries every short command of an event loop, many in each write.

What callers queue in one turn of the loop leaves together, a full batch as soon as it is full; a
call that finds nothing on its way leaves at once. Replies resolve the futures in order while
further writes are on their way. Commands take effect in the order of the calls, even when nobody
awaits them.

Neighbours in a batch that call one script with as many keys and arguments share a command, if the
script runs `each` of several calls and the server takes keys of several sessions together: one of a
cluster does not, so it is asked before anything is shared. The calls of a shared command that a
user may not make for some of its keys are made again, each alone.

A call is in one of three places, and the order within them is the order of the calls:

    again     sent before, not known to have happened, and safe to send once more
    queue     not sent yet
    inflight  sent, its reply outstanding

When the connection breaks, what is in flight goes back to ``again`` if it may be repeated and
fails as *outcome unknown* if not. What was not sent stays queued until its deadline. A reply that
is nobody's breaks the connection too: the replies after it may be anybody's.

A server that is not the one to ask, or not yet (a replica after a failover, one that loads its
data), executes nothing. Its calls go back to ``again``, in order, and the connection is left for
where the address leads now. Calls behind one that was not executed, and about the same keys, are
repeated behind it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count, groupby
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, TypeAlias

from redis_state.errors import (
    BackendUnavailable,
    CallerError,
    CommandRefused,
    ConfigError,
    NoConnection,
    OutcomeUnknown,
    RedisStateError,
)
from redis_state.transport.address import Address
from redis_state.transport.connection import ReconnectingConnection
from redis_state.transport.future import EagerFuture
from redis_state.transport.keys import call_key
from redis_state.transport.protocol import ProtocolBroken, RespProtocol
from redis_state.transport.reply_errors import Refusal, again, not_now, reply_error
from redis_state.transport.resp import (
    Argument,
    PackedCommand,
    PreparedScript,
    bulks,
    head_of_digest,
    head_of_text,
    pack,
    unbulk,
    unbulk_command,
)
from redis_state.transport.script import Script

log: logging.Logger = logging.getLogger(__name__)

# A script, how many keys and arguments it is called with, and a number for a call that must have
# a command of its own; None if it may share one.
_Form: TypeAlias = tuple[Script | None, int, int, int | None]
_PLAIN: _Form = (None, 0, 0, None)

# Enough that a write costs little, and few enough that the server works on one batch while the next
# is being made: with all of 64 callers in one write each side would wait for the other.
_BATCH_COMMANDS = 24
_BATCH_BYTES = 1 << 18
# What is larger has a command of its own: it gains nothing, and the others would wait for it.
_SHARED_ARGUMENTS = 100
_SHARED_BYTES = 1 << 13
_LONGEST_BACKOFF_S = 0.2
# How late a deadline may be noticed: looking at every call for each of them would be quadratic.
# Also how long a connection must be silent before an overdue reply ends it.
_GRAIN_S = 0.1
# A loop that counts in whole milliseconds rings up to two of them early.
_EARLY_S = 0.002
# A connection on which nothing was heard for this part of a call's time is given up, but not
# after less than so long: what may be repeated is asked again on a new one, before its deadline.
_SILENT_PART = 1 / 3
_SILENT_S = 0.5

# Refusals that a shared command may get for keys that each of its calls may use.
_OF_KEYS = ("NOPERM", "CROSSSLOT")

_form_of = attrgetter("form")


class _Call(EagerFuture):
    """A command on its way, and the future of its reply."""

    __slots__ = (
        "arguments",
        "deadline",
        "form",
        "keys",
        "lasting",
        "lost",
        "number",
        "repeatable",
        "sent",
        "timeout",
    )

    number: int
    # Packed: a script's keys and arguments, or a whole command.
    keys: bytes
    arguments: bytes
    # Neighbours of equal forms share a command, if it is a script's.
    form: _Form
    deadline: float
    timeout: float
    repeatable: bool
    lasting: bool
    # It may have happened: a reply is outstanding, or one was lost with its connection.
    sent: bool
    lost: bool

    def wanted(self) -> bool:
        """Return whether it has no outcome yet, and is waited for or lasts all the same."""
        return not self.done() or (self.lasting and self.cancelled())

    def names(self) -> list[bytes]:
        """Return the keys that it is about. The key of its own reply is none of them."""
        script, count, _, _ = self.form
        if script is None:
            return unbulk_command(self.arguments)[1:2]
        keys = unbulk(self.keys, count)
        return keys[:1] + keys[2:] if script.idempotent else keys

    def fail(self, error: Exception) -> None:
        """Give it this outcome, if it has none."""
        if not self.done():
            self.set_exception(error)
            # Unawaited calls are part of the contract: nobody may be there to look.
            self.exception()

    def patient(self) -> bool:
        """Return whether it needs its connection until its deadline.

        What may not be repeated does; what is large may still be on its way to the server.
        """
        small = len(self.arguments) <= _BATCH_BYTES
        return not (self.done() or (self.repeatable and small))


class Sender:
    """Send commands over one connection of the running event loop, connecting at first use."""

    def __init__(
        self,
        locate: Callable[[], Awaitable[Address]],
        *,
        shown_as: str,
        call_timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
        busy_poll_s: float = 0.0,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        # Called when a server is left because it is not the one to ask.
        self._left = left
        self._shown_as = shown_as
        self._call_timeout_s = call_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._busy_poll_s = busy_poll_s
        self._connection = ReconnectingConnection(
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
        # How many of those in flight each outstanding reply answers.
        self._shares: deque[int] = deque()
        # Set when nothing is left to wait for; made by whoever waits for that.
        self._idle: asyncio.Event | None = None
        # Whether what is queued will be written at the end of this turn of the loop.
        self._flushing = False
        # Until when the loop is kept awake for a lone call's reply, and whether it is.
        self._awake_until = 0.0
        self._awake = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._trouble = "no connection within the deadline"
        self._closed = False
        # Digests that this connection has sent the text of.
        self._loaded: set[str] = set()
        # A call was not executed: nothing is sent until it is known which must be repeated.
        self._holding = False
        # The keys of the calls that must be repeated.
        self._held_keys: set[bytes] = set()
        # Why the connection is left as soon as that is known, if it is.
        self._leaving: str | None = None
        # Whether calls share commands; None until the server is asked.
        self._sharing: bool | None = None
        self.batches: int = 0

    def send(
        self,
        *command: Argument,
        repeatable: bool,
        lasting: bool = False,
        timeout_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a command at once and return its reply's future. Does not wait.

        ``repeatable`` promises that doing the command twice is doing it once, so that it may be
        sent again when a reply is lost. A ``lasting`` one is sent although its future is cancelled.
        A connection on which nothing is heard for a third of a call's time is given up, unless one
        of those in flight may not be repeated, or is large: then at the first deadline.

        Errors, on the future: BackendUnavailable if the deadline passes unsent, OutcomeUnknown if
        it passes later, AuthenticationFailed, StoreFull, CommandRefused; CallerError for what
        cannot be sent; ConfigError if there is no server to start. What another try cannot help is
        raised at once, such as a wrong password.
        """
        try:
            packed = pack(command)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to know
            return self._unsendable(command[0], error)
        return self._put(_PLAIN, b"", packed, repeatable, lasting, timeout_s)

    def ask(self, question: PackedCommand) -> asyncio.Future[Any]:
        """Queue a command that reads, as `send` does."""
        return self._put(_PLAIN, b"", question.packed, True, False, None)  # noqa: FBT003

    def run(
        self,
        prepared: PreparedScript,
        more: tuple[Argument, ...],
        *,
        repeatable: bool = True,
        lasting: bool = False,
        timeout_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """Queue the call of a script, with ``more`` arguments, as `send` does a command.

        Its text is sent when needed.
        """
        script, keys, arguments, packed_keys, packed_arguments = prepared
        if script.each and self._sharing is None:
            self._ask_sharing(keys[0])
        try:
            packed = packed_arguments + bulks(more)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to know
            return self._unsendable(script.name, error)
        count = len(arguments) + len(more)
        small = count <= _SHARED_ARGUMENTS and len(packed) <= _SHARED_BYTES
        alone = None if script.each and small else next(self._numbers)
        form = (script, len(keys), count, alone)
        return self._put(form, packed_keys, packed, repeatable, lasting, timeout_s)

    def _ask_sharing(self, key: str) -> None:
        """Ask whether the server takes a key together with one of another slot, by its tag."""
        self._sharing = False
        elsewhere = key.replace("{", "{elsewhere ", 1)
        asked = self.send("EVAL", "return 1", 2, key, elsewhere, repeatable=True)
        asked.add_done_callback(self._hear_sharing)

    def _hear_sharing(self, asked: asyncio.Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            self._sharing = True
        elif not isinstance(error, CommandRefused):
            # It says nothing about keys, as of a busy server: the next call asks again.
            self._sharing = None

    def _put(  # noqa: PLR0917 - all that a call is
        self,
        form: _Form,
        keys: bytes,
        arguments: bytes,
        repeatable: bool,  # noqa: FBT001
        lasting: bool,  # noqa: FBT001
        timeout_s: float | None,
    ) -> _Call:
        """Write a call at once if nothing is on its way, else queue it."""
        protocol = self._connection.protocol
        waiting = self._queue or self._inflight or self._again or self._holding
        at_once = False
        if protocol is not None and not (waiting or self._closed) and protocol.writable():
            # Before all else: the server works while the call is noted down.
            at_once = True
            script, key_count, argument_count, _ = form
            head = b"" if script is None else self._head(script, key_count, argument_count)
            protocol.write(head + keys + arguments)
        call = _Call(loop=self._loop)
        call.form, call.keys, call.arguments = form, keys, arguments
        call.number = next(self._numbers)
        call.repeatable, call.lasting = repeatable, lasting
        call.sent, call.lost = at_once, False
        call.waiter = None
        if timeout_s is None:
            timeout_s = self._call_timeout_s
        if protocol is None and not self._connection.connections:
            # A server that was never there is told as soon as connecting has taken its time.
            timeout_s = min(timeout_s, self._connect_timeout_s)
        call.timeout = timeout_s
        call.deadline = monotonic() + timeout_s
        if at_once:
            self._inflight.append(call)
            self._shares.append(1)
            self.batches += 1
            if self._busy_poll_s:
                self._awake_until = monotonic() + self._busy_poll_s
                self._stay_awake()
        elif self._closed:
            call.fail(BackendUnavailable(self._shown_as, "the store is closed"))
            return call
        else:
            self._queue.append(call)
            self._flush_soon()
        look_at = call.deadline - timeout_s * (1 - _SILENT_PART)
        if look_at < self._alarm_at:
            self._arm(look_at)
        return call

    def _unsendable(self, what: Argument, error: Exception) -> asyncio.Future[Any]:
        outcome: asyncio.Future[Any] = self._loop.create_future()
        outcome.set_exception(CallerError(f"{what!s} cannot be sent: {error}"))
        # Nobody may be there to look.
        outcome.exception()
        return outcome

    @property
    def connections(self) -> int:
        """Count the connections made so far."""
        return self._connection.connections

    @property
    def pending(self) -> int:
        """Count the calls that have no outcome yet."""
        return len(self._again) + len(self._queue) + len(self._inflight)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every queued call has its outcome. Errors: TimeoutError."""
        if self.pending:
            if self._idle is None:
                self._idle = asyncio.Event()
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    async def aclose(self, *, drain_s: float = 5.0) -> None:
        """Wait for queued calls for at most ``drain_s``, then disconnect. Safe to repeat."""
        self._closed = True
        try:
            with suppress(TimeoutError):
                await self.drain(drain_s)
        finally:
            await self._connection.aclose()
            self._abandon()

    def wanted(self) -> bool:
        """Return whether a connection is needed now."""
        return bool(self._queue or self._again)

    async def use(self, protocol: RespProtocol) -> None:
        """Send what waits, and what comes, until the connection ends."""
        self._loaded.clear()
        self._sharing = None
        self._leaving = None
        protocol.on_writable = self._flush
        self._flush()
        self._trouble = await protocol.lost()

    def ended(self) -> None:
        """Put back what may be repeated, and fail the rest of what is in flight."""
        for call in self._inflight:
            if call.repeatable:
                call.lost = True
                self._again.append(call)
            else:
                call.fail(OutcomeUnknown(self._shown_as, f"sent, then {self._trouble}"))
        self._inflight.clear()
        self._shares.clear()
        self._resume()
        self._note_idle()

    def failed(self, error: Exception) -> None:
        """Keep the reason for whoever waits, or tell it at once if waiting is in vain."""
        if isinstance(error, ConfigError):
            self._fail_waiting(str(error), error)
        elif isinstance(error, NoConnection) and error.final:
            self._fail_waiting(error.reason, error)
        elif isinstance(error, NoConnection):
            self._trouble = error.reason
        else:
            log.error("the sender failed; so do its calls", exc_info=error)
            self._fail_waiting(f"the sender failed: {type(error).__name__}")

    def _stay_awake(self) -> None:
        """Keep the loop awake for the reply, instead of sleeping until it comes."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._awake = False
        if self._inflight and monotonic() < self._awake_until:
            self._stay_awake()

    def _flush_soon(self) -> None:
        """Write what is queued at the end of this turn of the loop, together with what follows.

        A full batch is written now: the server can begin.
        """
        if self._connection.protocol is None:
            self._connection.need()
        elif len(self._queue) >= _BATCH_COMMANDS:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_at_end_of_turn)

    def _flush_at_end_of_turn(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        protocol = self._connection.protocol
        if protocol is not None and not self._holding:
            while (self._queue or self._again) and protocol.writable():
                batch = self._next_batch()
                if batch:
                    self.batches += 1
                    protocol.write(b"".join(self._packed(batch)))
        self._note_idle()

    def _next_batch(self) -> list[_Call]:
        """Take the next calls into flight."""
        batch: list[_Call] = []
        size = 0
        for source in (self._again, self._queue):
            while source and len(batch) < _BATCH_COMMANDS and size < _BATCH_BYTES:
                call = source.popleft()
                if call.wanted():
                    call.sent = True
                    batch.append(call)
                    size += len(call.keys) + len(call.arguments)
        self._inflight.extend(batch)
        return batch

    def _packed(self, batch: list[_Call]) -> list[bytes]:
        """Write the commands of a batch, and note how many calls each reply will answer."""
        parts: list[bytes] = []
        for form, neighbours in groupby(batch, _form_of):
            calls = list(neighbours)
            script, keys, arguments, _ = form
            if script is None:
                self._shares.extend([1] * len(calls))
                parts += [call.arguments for call in calls]
                continue
            share = len(calls) if self._sharing else 1
            for first in range(0, len(calls), share):
                together = calls[first : first + share]
                self._shares.append(share)
                parts.append(self._head(script, keys * share, arguments * share))
                parts += [call.keys for call in together]
                parts += [call.arguments for call in together]
        return parts

    def _head(self, script: Script, keys: int, arguments: int) -> bytes:
        """Return the head of a script's call: by digest once this connection has sent its text.

        By the digest alone the first call after a restart would be refused, and be repeated
        after calls that were made later.
        """
        if script.digest in self._loaded:
            return head_of_digest(script.digest, keys, arguments)
        self._loaded.add(script.digest)
        return head_of_text(script, keys, arguments)

    def hear(self, replies: list[Any]) -> None:
        """Give replies to the oldest calls in flight. All or none: see `_check`.

        A caller that gets its reply goes on at once, and may send: what was read before that
        is no reply to it.
        """
        self._check(replies)
        inflight, shares = self._inflight, self._shares
        for reply in replies:
            share = shares.popleft()
            if share > 1 and isinstance(reply, Refusal):
                self._refused_together(share, reply)
                continue
            for of_call in (reply,) if share == 1 else reply:
                call = inflight.popleft()
                if isinstance(of_call, Refusal):
                    self._refused(call, of_call)
                elif self._holding and call.repeatable and self._follows(call):
                    self._hold_behind(call)
                elif not call.done():
                    call.resolve(of_call)
        if not inflight:
            if self._holding:
                self._resume()
            self._note_idle()

    def _check(self, replies: list[Any]) -> None:
        """Raise ProtocolBroken if there are more replies, or other ones, than were waited for."""
        shares = self._shares
        if len(replies) > len(shares):
            raise ProtocolBroken(f"{len(replies)} replies to {len(shares)} commands")
        for share, reply in zip(shares, replies, strict=False):
            if share == 1 or isinstance(reply, Refusal):
                continue
            if reply.__class__ is not list or len(reply) != share:
                raise ProtocolBroken(f"no list of {share} replies to {share} calls")

    def _refused_together(self, share: int, error: Refusal) -> None:
        """Refuse each call of a shared command as it would have been refused alone."""
        for _ in range(share):
            call = self._inflight.popleft()
            if error.code in _OF_KEYS:
                # For some of the keys, or because there are several: nothing was done. From now on
                # each has its own command, those that wait in the queue too.
                self._sharing = False
                self._hold(call)
            else:
                self._refused(call, error)

    def _hold(self, call: _Call) -> None:
        """Repeat a call that did not begin, before anything else is sent.

        Those in flight behind it may meet the same: all that do are repeated in their order.
        """
        self._holding = True
        self._held_keys.update(call.names())
        call.sent = call.lost
        self._again.append(call)

    def _follows(self, call: _Call) -> bool:
        """Return whether a call must be repeated because an earlier one did not begin.

        Not if it has no key in common with it: its reply stands. On a connection that is left,
        where a replica may have answered, none does.
        """
        return self._leaving is not None or not self._held_keys.isdisjoint(call.names())

    def _hold_behind(self, call: _Call) -> None:
        """Repeat a call that took effect before one that was made earlier and did not begin."""
        script, count, _, _ = call.form
        if (
            script is not None
            and script.idempotent
            and not self._held_keys.isdisjoint(call.names())
        ):
            # As a new call: its repetition would do nothing, and the earlier one undoes it.
            target, _, *others = unbulk(call.keys, count)
            fresh = call_key(target.decode("utf-8", "surrogatepass"), os.urandom(9).hex())
            call.keys = bulks((target, fresh, *others))
        call.lost = True
        self._hold(call)

    def _refused(self, call: _Call, error: Refusal) -> None:
        if error.code == "NOSCRIPT" and call.form[0] is not None:
            # Somebody flushed the scripts: it is sent with its text.
            self._loaded.clear()
            self._hold(call)
            return
        reason = not_now(error)
        if reason is not None:
            self._leaving = self._trouble = reason
            self._hold(call)
            return
        script = call.form[0]
        command = "" if script is not None else _verb(call.arguments)
        failure = reply_error(error, self._shown_as, command=command, script=script)
        if call.lost:
            failure = OutcomeUnknown(
                self._shown_as, f"sent, the reply lost, and refused when repeated: {failure}"
            )
        call.fail(failure)

    def _resume(self) -> None:
        self._holding = False
        self._held_keys.clear()
        self._again = deque(sorted(self._again, key=lambda call: call.number))
        protocol = self._connection.protocol
        if self._leaving is not None and protocol is not None:
            protocol.leave(self._leaving)
            self._left()
        elif self._again or self._queue:
            self._flush_soon()

    def _note_idle(self) -> None:
        if self._idle is not None and not self.pending:
            self._idle.set()
            self._idle = None

    def _arm(self, at: float) -> None:
        """Keep one timer for all calls: it fires at the earliest moment asked for."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        delay_s = max(0, at - monotonic()) + _EARLY_S
        self._alarm = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._alarm_at = inf
        now = monotonic()
        for call in self._inflight:
            if call.deadline <= now:
                call.fail(self._outcome(call, "sent, not answered by the deadline"))
        for call in (*self._again, *self._queue):
            if call.deadline <= now:
                before = "sent, the reply lost; then: " if call.sent else ""
                call.fail(self._outcome(call, before + self._trouble))
        self._again = deque(call for call in self._again if call.deadline > now and call.wanted())
        self._queue = deque(call for call in self._queue if call.deadline > now and call.wanted())
        moments = [call.deadline for call in (*self._again, *self._queue, *self._inflight)]
        protocol = self._connection.protocol
        if self._inflight and protocol is not None:
            moments.append(self._look_at(protocol, now))
        if moments:
            self._arm(max(min(moments), now + _GRAIN_S))
        self._note_idle()

    def _look_at(self, protocol: RespProtocol, now: float) -> float:
        """Give a connection up that is dead for all that can be heard; return when to look again.

        A server that is busy for so long is asked again under the same ids. It is not asked often:
        a new connection is in use once the server has answered on it.
        """
        oldest = self._inflight[0]
        if oldest.deadline <= now and now - protocol.heard_at > _GRAIN_S:
            # The oldest reply is overdue: nothing behind it can be heard on this connection.
            protocol.abort("a reply is overdue")
        if any(call.patient() for call in self._inflight):
            return inf
        silent_at = min(
            max(protocol.heard_at, call.deadline - call.timeout)
            + max(_SILENT_S, call.timeout * _SILENT_PART)
            for call in self._inflight
        )
        if silent_at <= now:
            protocol.abort(f"nothing was heard for {now - protocol.heard_at:.1f} s")
        return silent_at

    def _outcome(self, call: _Call, reason: str) -> RedisStateError:
        kind = OutcomeUnknown if call.sent else BackendUnavailable
        return kind(self._shown_as, reason)

    def _fail_waiting(self, reason: str, error: ConfigError | NoConnection | None = None) -> None:
        """Give each call that waits an outcome: a copy of ``error``, if it was not sent."""
        for call in (*self._again, *self._queue):
            if error is None or call.sent:
                call.fail(self._outcome(call, reason))
            else:
                call.fail(again(error))
        self._again.clear()
        self._queue.clear()
        self._note_idle()

    def _abandon(self) -> None:
        """Give every remaining call an outcome; the store or the loop is going away."""
        self._queue.extendleft(reversed(self._inflight))
        self._inflight.clear()
        self._shares.clear()
        self._fail_waiting("the connection was closed")
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm_at = inf


def _verb(packed: bytes) -> str:
    """Return a packed command's verb."""
    return packed.split(b"\r\n", 3)[2].decode(errors="replace")
