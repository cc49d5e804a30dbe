"""The batch that replicas have not confirmed yet: its replies are kept until they have.

See `guarantee` for what is promised, and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeAlias

from redis_state.transport.sending.batch import LOGIN, PLAIN, Call, verb_of
from redis_state.transport.sending.guarantee import (
    ASK_HISTORY,
    CONFIRMATION,
    HISTORY,
    MARK,
    Guarantee,
    history_in,
    may_write,
)
from redis_state.transport.wire.reply_errors import Refusal

# The slot of the mark is another node's, or is being moved: another one is chosen.
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN"})

# All that 64 callers, or ten times as many, have called meanwhile.
BATCH_COMMANDS = 1024


# It reads keys that it does not name.
_OF_ALL_KEYS = "SCAN"

# A packed mark, and whose the replies to it are.
Mark: TypeAlias = tuple[bytes, tuple[int, ...]]
# No mark can be written on this server now: it is tried again in a moment.
PLACELESS: Mark = (b"", ())


class NotConfirmed(Exception):
    """The server refuses to confirm: it is not, or not any more, the one to use."""


class Confirming:
    """The replies of one connection that are kept until replicas have the writes before them."""

    def __init__(
        self, guarantee: Guarantee | None, call_timeout_s: float, mark: Callable[[Call, bool], Mark]
    ) -> None:
        # How many replicas confirm a batch; 0 if an answer is all that callers want.
        self.needed: int = 0 if guarantee is None else guarantee.replicas
        # The calls that were answered, in order, with their replies.
        self.answered: list[tuple[Call, Any]] = []
        # Whether a confirmation is on its way. Nothing is sent behind it.
        self.outstanding: bool = False
        # What is missing, for calls whose time is up.
        self.reason: str = ""
        # When the server was last asked to confirm, by `time.monotonic`.
        self.requested_at: float = 0.0
        self._guarantee = guarantee
        self._mark = mark
        self._wait = b"" if guarantee is None else guarantee.confirmation(call_timeout_s)
        self._refused: Refusal | None = None
        # The server's history when the connection was made, and whether it has another one now.
        self._history = b""
        self._is_other = False

    def begin(self, history: bytes) -> None:
        """Begin with a new connection to a server with this history."""
        self._history = history
        self._is_other = False

    @property
    def namespace(self) -> str:
        """The namespace that the mark is in."""
        return self._sure().namespace

    def covers(self, batch: list[Call]) -> Call | None:
        """Return the last call of a batch that may write; None if nothing is to be confirmed."""
        if self.needed == 0:
            return None
        return next(filter(may_write, reversed(batch)), None)

    def request(self, call: Call) -> Mark:
        """Return the commands that confirm what was written before, and whose their replies are.

        ``call`` is one of those that are confirmed. PLACELESS: ask `request_again` in a moment.
        """
        self.outstanding = True
        self.requested_at = monotonic()
        self.reason = f"0 of {self.needed} replicas have confirmed it"
        another = self._refused is not None
        self._refused = None
        mark, of_mark = made = self._mark(call, another)
        if made is PLACELESS:
            return PLACELESS
        return mark + ASK_HISTORY + self._wait, (*of_mark, HISTORY, CONFIRMATION)

    def request_again(self) -> Mark | None:
        """Return what confirms the calls for which there was no mark; None if nobody waits."""
        waiting = self.calls()
        if waiting:
            return self.request(waiting[0])
        self.outstanding = False
        return None

    def keep(self, call: Call, reply: Any) -> None:
        """Keep the reply to a call of the batch."""
        self.answered.append((call, reply))

    def calls(self) -> list[Call]:
        """List the calls that are answered and not confirmed, in order."""
        return [call for call, _ in self.answered if call.wanted()]

    def expire(self, now: float) -> list[Call]:
        """Give up the calls whose time is up; return them."""
        overdue = [call for call, _ in self.answered if call.deadline <= now]
        if overdue:
            self.answered = [kept for kept in self.answered if kept[0].deadline > now]
        return overdue

    def hear(self, share: int, reply: Any) -> Mark | None:
        """Take the reply to a mark, or to a confirmation; None if nothing is to be sent for it.

        Returns what to send, and whose its replies are, if replicas have not confirmed in time and
        a caller still waits. Once ``outstanding`` is False, `take` has what was confirmed. Errors:
        NotConfirmed.
        """
        if share == MARK:
            self._refused = reply if isinstance(reply, Refusal) else None
            return None
        if share == HISTORY:
            self._is_other = history_in(reply) != self._history
            return None
        if isinstance(reply, Refusal):
            raise NotConfirmed(str(reply))
        if self._is_other:
            raise NotConfirmed("the server has been a replica meanwhile")
        if self._refused is not None and self.answered:
            if self._refused.code not in _ELSEWHERE:
                raise NotConfirmed(str(self._refused))
            return self.request_again()
        if self._refused is None:
            have = self._sure().confirmed_by(reply)
            self.reason = f"{have} of {self.needed} replicas have confirmed it"
            if have < self.needed and self.calls():
                self.requested_at = monotonic()
                return ASK_HISTORY + self._wait, (HISTORY, CONFIRMATION)
        # Confirmed; or nobody waits, and what comes next is confirmed together with it.
        self.outstanding = False
        return None

    def take(self) -> list[tuple[Call, Any]]:
        """Take what was answered: it is confirmed."""
        answered, self.answered = self.answered, []
        return answered

    def forget(self) -> None:
        """Forget what was kept and sent on a connection that was lost."""
        self.answered.clear()
        self.outstanding = False
        self._refused = None

    def _sure(self) -> Guarantee:
        assert self._guarantee is not None  # noqa: S101 - an invariant: something is confirmed
        return self._guarantee


def take_reads(queue: deque[Call]) -> list[Call]:
    """Take the calls from a queue that only read, and nothing that a call before them may write."""
    taken: list[Call] = []
    kept: deque[Call] = deque()
    written: set[bytes] = set()
    while queue and len(taken) < BATCH_COMMANDS:
        call = queue.popleft()
        if not call.wanted():
            continue
        if may_write(call):
            written.update(call.names())
            kept.append(call)
        elif call.form is LOGIN or _waits(call, written):
            kept.append(call)
        else:
            call.sent = True
            taken.append(call)
    queue.extendleft(reversed(kept))
    return taken


def _waits(call: Call, written: set[bytes]) -> bool:
    if call.form is PLAIN and verb_of(call.arguments).upper() == _OF_ALL_KEYS:
        return bool(written)
    return not written.isdisjoint(call.names())
