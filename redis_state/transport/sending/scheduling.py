"""When a write leaves: at once, at the end of this turn of the loop, or a turn later.

Calls of one turn leave together, a full batch as soon as it is full. While nothing may be sent, or
the connection takes no more, they wait. What nobody waits for leaves with what follows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis_state.transport.sending.batch import BATCH_COMMANDS, LOGIN, Call, next_batch, packed
from redis_state.transport.sending.confirming import BATCH_COMMANDS as CONFIRMED_COMMANDS
from redis_state.transport.sending.order import OrderedCalls


class ScheduledCalls(OrderedCalls):
    """Calls that wait in a queue until it is time to write them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # How many calls are written at once.
        self._most = CONFIRMED_COMMANDS if self._confirming.needed else BATCH_COMMANDS
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

    @property
    def batches(self) -> int:
        """Count the writes so far: calls that are sent together are one."""
        return self._batches

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

    def _stay_awake(self) -> None:
        """Keep the loop awake for the reply, instead of sleeping until it comes."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._check_again)

    def _check_again(self) -> None:
        self._awake = False
        if self._inflight and monotonic() < self._awake_until:
            self._stay_awake()
