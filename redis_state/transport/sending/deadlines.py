"""The deadlines of calls: one timer for all of them, and connections that seem dead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from math import inf
from time import monotonic

from redis_state.errors import BackendUnavailable, OutcomeUnknown, RedisStateError
from redis_state.transport.connections.protocol import RespProtocol
from redis_state.transport.connections.reconnecting import ReconnectingConnection
from redis_state.transport.sending.batch import Call
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.sending.confirming import Confirming, Mark
from redis_state.transport.sending.guarantee import MARK, Guarantee, packed_mark

# How late a deadline may be noticed: looking at every call for each of them would be quadratic.
# Also how long a connection must be silent before an overdue reply ends it.
_GRAIN_S = 0.1
# A loop that counts in whole milliseconds rings up to two of them early.
_EARLY_S = 0.002
# A connection on which nothing was heard for this part of a call's time is given up, but not
# after less than so long: repeatable calls are sent again on a new one, before their deadline.
_SILENT_PART = 1 / 3
_SILENT_S = 0.5


class TimedCalls(CallSender):
    """Calls that are not over, each with its deadline."""

    _connection: ReconnectingConnection

    def __init__(
        self,
        *,
        shown_as: str,
        call_timeout_s: float,
        guarantee: Guarantee | None,
        numbers: Iterator[int] | None,
    ) -> None:
        super().__init__(numbers)
        self._shown_as = shown_as
        self._call_timeout_s = call_timeout_s
        self._confirming = Confirming(guarantee, call_timeout_s, self._mark)
        self._again: deque[Call] = deque()
        self._queue: deque[Call] = deque()
        self._inflight: deque[Call] = deque()
        # Set when nothing is left to wait for; made by the first waiter.
        self._idle: asyncio.Event | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        # Why no connection is of use, if one is not, and since when.
        self._trouble = "no connection within the deadline"
        self._trouble_at = -inf

    @property
    def pending(self) -> int:
        """Count the calls that have no outcome yet."""
        return len(self._again) + len(self._queue) + len(self._in_flight())

    def _mark(self, call: Call, another: bool) -> Mark:  # noqa: FBT001
        """Write a mark after a call; with ``another`` key than before, whose slot is not here.

        PLACELESS if there is no other.
        """
        del call, another
        return packed_mark(f"{self._confirming.namespace}:mark"), (MARK,)

    def _in_flight(self) -> list[Call]:
        """List what was sent and is not over, in order: not answered, or not confirmed."""
        return [*self._confirming.calls(), *self._inflight]

    def _in_trouble(self, reason: str) -> None:
        """Keep why calls wait: it is part of the error of one that has no other outcome."""
        self._trouble, self._trouble_at = reason, monotonic()

    def _record_idle(self) -> None:
        if self._idle is not None and not self.pending:
            self._idle.set()
            self._idle = None

    def _watch(self, call: Call) -> None:
        """Look at a call when it may be in trouble."""
        look_at = call.deadline - call.timeout * (1 - _SILENT_PART)
        if look_at < self._alarm_at:
            self._arm(look_at)

    def _arm(self, at: float) -> None:
        """Keep one timer for all calls: it fires at the earliest requested moment."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        delay_s = max(0, at - monotonic()) + _EARLY_S
        self._alarm = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._alarm_at = inf
        now = monotonic()
        for call in self._confirming.expire(now):
            call.fail(self._outcome(call, f"answered, but {self._confirming.reason}"))
        for call in self._inflight:
            if call.deadline <= now:
                before = "sent, the reply lost; then: " if call.lost else ""
                if call.lost or self._trouble_at > call.deadline - call.timeout:
                    before += f"{self._trouble}; "
                call.fail(self._outcome(call, before + "sent, not answered by the deadline"))
        for call in (*self._again, *self._queue):
            if call.deadline <= now:
                before = "sent, the reply lost; then: " if call.sent else ""
                call.fail(self._outcome(call, before + self._trouble))
        self._again = deque(call for call in self._again if call.deadline > now and call.wanted())
        self._queue = deque(call for call in self._queue if call.deadline > now and call.wanted())
        moments = [call.deadline for call in (*self._again, *self._queue, *self._in_flight())]
        protocol = self._connection.protocol
        if protocol is not None and (self._inflight or self._confirming.outstanding):
            moments.append(self._look_at(protocol, now))
        if moments:
            self._arm(max(min(moments), now + _GRAIN_S))
        self._record_idle()

    def _look_at(self, protocol: RespProtocol, now: float) -> float:
        """Give up a connection that seems dead; return when to check again.

        A server that is busy for so long gets the calls again under the same ids. This is rare: a
        new connection is in use once the server has replied on it.
        """
        if not self._inflight:
            return self._look_at_confirmation(protocol, now)
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
        return self._end_if_silent(protocol, silent_at, now)

    def _look_at_confirmation(self, protocol: RespProtocol, now: float) -> float:
        """Give up a connection on which a confirmation is not even late, as `_look_at` does."""
        patience_s = max(_SILENT_S, self._call_timeout_s * _SILENT_PART)
        since = max(protocol.heard_at, self._confirming.requested_at)
        return self._end_if_silent(protocol, since + patience_s, now)

    def _end_if_silent(self, protocol: RespProtocol, silent_at: float, now: float) -> float:
        if silent_at <= now:
            protocol.abort(f"nothing was heard for {now - protocol.heard_at:.1f} s")
        return silent_at

    def _outcome(self, call: Call, reason: str) -> RedisStateError:
        kind = OutcomeUnknown if call.sent else BackendUnavailable
        return kind(self._shown_as, reason)
