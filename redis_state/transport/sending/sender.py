"""One connection that carries every short command of an event loop, many in each write.

Calls of one turn of the loop leave together, a full batch as soon as it is full. A call that finds
nothing in flight leaves at once. Replies resolve the futures in order while further writes are in
transit. Commands take effect in the order of the calls, even when nobody awaits them.

Neighbours in a batch that call one script with as many keys and arguments share a command. The
script must run `each` of several calls, and the server must take keys of several sessions together.
A server of a cluster does not, so this is checked before anything is shared. If a user may not use
some of the keys, the calls are made again, each alone.

A call is in one of three places, and the order within them is the order of the calls:

    again     sent before, not known to have happened, and safe to send once more
    queue     not sent yet
    inflight  sent, its reply outstanding

A sender with a guarantee keeps replies until replicas have the writes before them: see `guarantee`.
Until then the calls are in flight.

When the connection breaks, a repeatable call in flight goes back to ``again``. Any other fails as
*outcome unknown*. Unsent calls stay queued until their deadline. A reply without a call breaks the
connection too: the replies after it could go to the wrong callers.

A wrong or unready server (a replica after a failover, one that loads its data) executes nothing.
Its calls go back to ``again``, in order, and the sender leaves the connection for where the address
leads now. Calls behind one that was not executed, and about the same keys, are repeated behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from redis_state.errors import (
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
    OutcomeUnknown,
)
from redis_state.timeouts import timeout
from redis_state.transport.connections.locator import Locator
from redis_state.transport.connections.protocol import RespProtocol
from redis_state.transport.connections.reconnecting import ReconnectingConnection
from redis_state.transport.sending.batch import (
    BATCH_COMMANDS,
    LOGIN,
    PROBE,
    Call,
    Form,
    check_replies,
    head_of,
    next_batch,
    packed,
)
from redis_state.transport.sending.confirming import BATCH_COMMANDS as CONFIRMED_COMMANDS
from redis_state.transport.sending.confirming import PLACELESS, Mark, NotConfirmed, take_reads
from redis_state.transport.sending.guarantee import PLACELESS_S, Guarantee, may_write
from redis_state.transport.sending.order import OrderedCalls
from redis_state.transport.wire.reply_errors import Refusal, again
from redis_state.transport.wire.resp import Argument, pack

log: logging.Logger = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 0.2


class Sender(OrderedCalls):
    """Send commands over one connection of the running event loop, connecting at first use."""

    # Whether neighbours share commands; None if each new connection has to be checked.
    shares: bool | None = None
    # Whether the first calls to a server that cannot be reached fail at the connect deadline.
    hasty = True
    # Why it takes no calls any more, once it is closed.
    closed_for = "the store is closed"

    def __init__(
        self,
        locator: Locator,
        *,
        shown_as: str,
        call_timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
        busy_poll_s: float = 0.0,
        guarantee: Guarantee | None = None,
        left: Callable[[], None] = lambda: None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        super().__init__(
            shown_as=shown_as,
            call_timeout_s=call_timeout_s,
            guarantee=guarantee,
            left=left,
            numbers=numbers,
        )
        # How many calls are written at once.
        self._most = CONFIRMED_COMMANDS if self._confirming.needed else BATCH_COMMANDS
        self._connect_timeout_s = connect_timeout_s
        self._busy_poll_s = busy_poll_s
        self._connection = ReconnectingConnection(
            self,
            locator,
            name="redis_state sender",
            connect_timeout_s=connect_timeout_s,
            longest_backoff_s=_LONGEST_BACKOFF_S,
            check=None if guarantee is None else guarantee.check,
        )
        self._batches = 0
        # How many of those in flight each outstanding reply answers.
        self._shares: deque[int] = deque()
        # Whether what is queued will be written at the end of this turn of the loop.
        self._flushing = False
        # Whether a call is put that nobody waits for, whether all that is queued are such calls,
        # and whether they will be written a turn later than others.
        self._unhurried = False
        self._queue_unhurried = False
        self._flushing_later = False
        # Until when the loop is kept awake for a lone call's reply, and whether it is.
        self._awake_until = 0.0
        self._awake = False
        self._closed = False

    def _ask_sharing(self, key: str) -> None:
        """Ask whether the server takes a key together with one of another slot, by its tag."""
        self._sharing = False
        elsewhere = key.replace("{", "{elsewhere ", 1)
        probe = pack(("EVAL", "return 1", 2, key, elsewhere))
        requested = self._put(PROBE, b"", probe, True, False, None)  # noqa: FBT003
        requested.add_done_callback(self._hear_sharing)

    def _hear_sharing(self, requested: asyncio.Future[Any]) -> None:
        error = requested.exception()
        if error is None:
            self._sharing = True
        elif not isinstance(error, CommandRefused):
            # It says nothing about keys, as of a busy server: the next call asks again.
            self._sharing = None

    def unhurried(self, put: Callable[[], asyncio.Future[Any]]) -> asyncio.Future[Any]:
        """Call ``put``, which queues a call that nobody waits for.

        A write of its own would hold up the next call by as much as a write takes.
        """
        self._unhurried = True
        try:
            return put()
        finally:
            self._unhurried = False

    def hurry(self) -> None:
        """Write now what `unhurried` holds back: what follows may not come for long."""
        if self._queue and self._queue_unhurried:
            self._flush()

    def _put(  # noqa: PLR0917 - all that a call is
        self,
        form: Form,
        keys: bytes,
        arguments: bytes,
        repeatable: bool,  # noqa: FBT001
        lasting: bool,  # noqa: FBT001
        timeout_s: float | None,
        key: Argument = "",
    ) -> Call:
        """Write a call at once if nothing is on its way, else queue it."""
        del key
        protocol = self._connection.protocol
        waiting = self._inflight or self._again or self._holding
        busy = waiting or self._closed or self._confirming.needed or self._is_busy()
        at_once = False
        waits = busy or self._queue or self._unhurried
        if not waits and protocol is not None and protocol.writable():
            # Before all else: the server works while the call is recorded.
            at_once = True
            script, key_count, argument_count, _ = form
            head = (
                b"" if script is None else head_of(script, key_count, argument_count, self._loaded)
            )
            protocol.write(head + keys + arguments)
        if timeout_s is None:
            timeout_s = self._call_timeout_s
        if self.hasty and protocol is None and not self._connection.connections:
            # A server that was never reached is reported after the connect deadline.
            timeout_s = min(timeout_s, self._connect_timeout_s)
        call = Call(self._loop, form, keys, arguments, repeatable, lasting, timeout_s)
        call.number = next(self._numbers)
        call.sent = at_once
        if at_once:
            self._inflight.append(call)
            self._shares.append(1)
            self._batches += 1
            if self._busy_poll_s:
                self._awake_until = monotonic() + self._busy_poll_s
                self._stay_awake()
        elif self._closed:
            call.fail(BackendUnavailable(self._shown_as, self.closed_for))
            return call
        else:
            self._enqueue(call, busy=bool(busy))
        self._watch(call)
        return call

    def _enqueue(self, call: Call, *, busy: bool) -> None:
        first, unhurried = not self._queue, self._queue_unhurried
        self._queue.append(call)
        self._queue_unhurried = self._unhurried and (first or unhurried)
        if self._queue_unhurried:
            self._flush_later()
        elif first or busy or not unhurried or self._connection.protocol is None:
            self._flush_soon()
        else:
            # It would have been written at once, were it not for those before it.
            self._flush()

    @property
    def batches(self) -> int:
        """Count the writes so far: calls that are sent together are one."""
        return self._batches

    @property
    def connections(self) -> int:
        """Count the connections made so far."""
        return self._connection.connections

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every queued call has its outcome. Errors: TimeoutError."""
        if self.pending:
            if self._idle is None:
                self._idle = asyncio.Event()
            async with timeout(timeout_s):
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
        self._sharing = self.shares
        self._leaving, self._doubted = None, False
        self._confirming.begin(protocol.checked)
        protocol.on_writable = self._flush
        protocol.renew_login(self._log_in)
        self._flush()
        self._in_trouble(await protocol.lost())

    async def _log_in(self, words: tuple[str, ...]) -> None:
        """Log in between two calls. Errors: BackendError."""
        login = pack(("AUTH", *words))
        await self._put(LOGIN, b"", login, True, False, None)  # noqa: FBT003

    def ended(self) -> None:
        """Put back what may be repeated, and fail the rest of what is in flight."""
        in_flight = self._in_flight()
        self._confirming.forget()
        for call in in_flight:
            if call.repeatable:
                call.lost = True
                self._again.append(call)
            else:
                call.fail(OutcomeUnknown(self._shown_as, f"sent, then {self._trouble}"))
        self._inflight.clear()
        self._shares.clear()
        self._resume()
        self._record_idle()

    def failed(self, error: Exception) -> None:
        """Keep the reason for the waiters, or raise it at once if waiting is useless."""
        if isinstance(error, ConfigError) and not self._was_reached():
            self._fail_waiting(str(error), error)
        elif isinstance(error, NoConnection) and error.final:
            self._fail_waiting(error.reason, error)
        elif isinstance(error, NoConnection):
            self._in_trouble(error.reason)
        elif isinstance(error, ConfigError):
            # The settings were right before. A failover may lead to a server that is not set up.
            if self._trouble != str(error):
                log.warning("calls wait: %s", error)
            self._in_trouble(str(error))
        else:
            log.error("the sender failed; so do its calls", exc_info=error)
            self._fail_waiting(f"the sender failed: {type(error).__name__}")

    def _was_reached(self) -> bool:
        """Return whether the address has led to a server that could be used."""
        return self._connection.connections > 0

    def _is_busy(self) -> bool:
        """Return whether a call waits for others, although nothing is in flight here."""
        return False

    def _stay_awake(self) -> None:
        """Keep the loop awake for the reply, instead of sleeping until it comes."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._check_again)

    def _check_again(self) -> None:
        self._awake = False
        if self._inflight and monotonic() < self._awake_until:
            self._stay_awake()

    def _flush_soon(self) -> None:
        """Write what is queued at the end of this turn of the loop, together with what follows.

        A full batch is written now: the server can begin.
        """
        if self._connection.protocol is None:
            self._connection.need()
        elif len(self._queue) >= self._most:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_at_end_of_turn)

    def _flush_later(self) -> None:
        """Write what is queued a turn later than at the end of this one, if nothing follows it."""
        if not (self._flushing or self._flushing_later):
            self._flushing_later = True
            self._loop.call_soon(self._flush_next_turn)

    def _flush_next_turn(self) -> None:
        self._flushing_later = False
        if self._queue:
            self._flush_soon()

    def _flush_at_end_of_turn(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        protocol, confirming = self._connection.protocol, self._confirming
        if protocol is not None and not self._holding:
            while (self._queue or self._again) and protocol.writable():
                if confirming.outstanding:
                    break
                if self._inflight:
                    following = (self._again or self._queue)[0]
                    if following.form is LOGIN or self._inflight[-1].form is LOGIN:
                        break
                batch = next_batch(self._again, self._queue, most=self._most)
                if batch:
                    parts = self._sent_now(batch)
                    covered = confirming.covers(batch)
                    if covered is not None:
                        request, of_request = confirming.request(covered)
                        parts.append(request)
                        self._shares.extend(of_request)
                    protocol.write(b"".join(parts))
        self._record_idle()

    def _sent_now(self, batch: list[Call]) -> list[bytes]:
        """Take note that calls are in flight; return their commands, packed."""
        self._batches += 1
        self._inflight.extend(batch)
        parts, shares = packed(batch, self._loaded, sharing=self._sharing is True)
        self._shares.extend(shares)
        return parts

    def hear(self, replies: list[Any]) -> None:
        """Assign replies to the oldest calls in flight. All or none: see `check_replies`.

        A caller that gets its reply continues at once, and may send: what was read before that is
        no reply to it.
        """
        check_replies(replies, self._shares)
        inflight, shares, confirming = self._inflight, self._shares, self._confirming
        for reply in replies:
            share = shares.popleft()
            if share <= 0:
                self._hear_beside(share, reply)
                continue
            if share > 1 and isinstance(reply, Refusal):
                self._refused_together(share, reply)
                continue
            for of_call in (reply,) if share == 1 else reply:
                call = inflight.popleft()
                if isinstance(of_call, Refusal):
                    self._refused(call, of_call)
                elif self._holding and call.repeatable and self._follows(call):
                    self._hold_behind(call)
                elif confirming.outstanding and may_write(call):
                    confirming.keep(call, of_call)
                elif not call.done():
                    call.resolve(of_call)
        if not (inflight or confirming.outstanding):
            self._all_over()

    def _all_over(self) -> None:
        """Send what waits: nothing is in flight."""
        if self._holding:
            self._resume()
        elif self._queue or self._again:
            # It waited for a login, or is one.
            self._flush_soon()
        self._record_idle()

    def _hear_beside(self, share: int, reply: Any) -> None:
        """Take a reply that is no call's. Answer the calls that are confirmed by it."""
        if share == 0:
            return
        protocol, confirming = self._connection.protocol, self._confirming
        try:
            more = confirming.hear(share, reply)
        except NotConfirmed as error:
            # The calls are repeated where the address leads now, and confirmed there.
            self._in_trouble(f"not confirmed: {error}")
            if protocol is not None:
                protocol.leave(self._trouble)
            self._left()
            return
        self._confirm(more)

    def _confirm_later(self, protocol: RespProtocol) -> None:
        if protocol is self._connection.protocol and self._confirming.outstanding:
            more = self._confirming.request_again()
            self._confirm(more)
            if more is None and not self._inflight:
                self._all_over()

    def _confirm(self, more: Mark | None) -> None:
        """Send what confirms the calls, or answer them."""
        protocol, confirming = self._connection.protocol, self._confirming
        if protocol is None:
            return
        if more is PLACELESS:
            self._loop.call_later(PLACELESS_S, self._confirm_later, protocol)
        elif more is not None:
            request, of_request = more
            # What only reads is not held up by what is not confirmed.
            reads = [] if self._holding or self._again else take_reads(self._queue)
            parts = self._sent_now(reads) if reads else []
            self._shares.extend(of_request)
            protocol.write(b"".join((*parts, request)))
        elif not confirming.outstanding:
            # What the callers call now leaves together, at the end of this turn.
            for call, of_call in confirming.take():
                if not call.done():
                    call.resolve(of_call)
            if self._queue or self._again:
                self._flush_soon()

    def _fail_waiting(self, reason: str, error: ConfigError | NoConnection | None = None) -> None:
        """Give each call that waits an outcome: a copy of ``error``, if it was not sent."""
        for call in (*self._again, *self._queue):
            if error is None or call.sent:
                call.fail(self._outcome(call, reason))
            else:
                call.fail(again(error))
        self._again.clear()
        self._queue.clear()
        self._record_idle()

    def _abandon(self) -> None:
        """Give every remaining call an outcome; the store or the loop is going away."""
        self._queue.extendleft(reversed(self._in_flight()))
        self._inflight.clear()
        self._confirming.forget()
        self._shares.clear()
        self._fail_waiting("the connection was closed")
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm_at = inf
