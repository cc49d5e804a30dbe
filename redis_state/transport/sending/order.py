"""The order of calls after one that was not executed: which are repeated behind it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from redis_state.errors import OutcomeUnknown
from redis_state.transport.keys import call_key
from redis_state.transport.sending.batch import Call, verb_of
from redis_state.transport.sending.deadlines import TimedCalls
from redis_state.transport.wire.reply_errors import ONLY_WRITES, Refusal, not_now, reply_error
from redis_state.transport.wire.resp import bulks, unbulk

# Refusals that a shared command may get for keys that each of its calls may use.
_OF_KEYS = ("NOPERM", "CROSSSLOT")


class OrderedCalls(TimedCalls):
    """Calls whose order is kept, also when the server does not execute one of them."""

    def __init__(self, *, left: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        # Called when a server is left because it is not the one to ask.
        self._left = left
        # Digests that this connection has sent the text of.
        self._loaded: set[str] = set()
        # A call was not executed: nothing is sent until it is known which must be repeated.
        self._holding = False
        # The keys of the calls that must be repeated.
        self._held_keys: set[bytes] = set()
        # Why the connection is left as soon as that is known, if it is.
        self._leaving: str | None = None
        # It may not be the primary: also what it has answered does not count.
        self._doubted = False

    def _flush_soon(self) -> None:
        """Write what waits, soon."""
        raise NotImplementedError

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

    def _hold(self, call: Call) -> None:
        """Repeat a call that did not begin, before anything else is sent.

        Those in flight behind it may meet the same: all that do are repeated in their order.
        """
        self._holding = True
        self._held_keys.update(call.names())
        call.sent = call.lost
        self._again.append(call)

    def _follows(self, call: Call) -> bool:
        """Return whether a call must be repeated because an earlier one did not begin.

        Not if it has no key in common with it: its reply stands. On a connection where a replica
        may have answered, none does.
        """
        return self._doubted or not self._held_keys.isdisjoint(call.names())

    def _hold_behind(self, call: Call) -> None:
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

    def _refused(self, call: Call, error: Refusal) -> None:
        if error.code == "NOSCRIPT" and call.form[0] is not None:
            # The scripts were flushed: it is sent with its text.
            self._loaded.clear()
            self._hold(call)
            return
        reason = not_now(error)
        if reason is not None:
            self._leaving = reason
            self._in_trouble(reason)
            self._doubted |= error.code not in ONLY_WRITES
            self._hold(call)
            return
        script = call.form[0]
        command = "" if script is not None else verb_of(call.arguments)
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
