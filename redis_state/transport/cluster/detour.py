"""The calls of one slot while no node simply serves them.

They wait in their order, and so do those that are made meanwhile. One of them at a time is sent to
where the slot seems to be. As soon as one is served there, all others follow. While a slot is being
moved, a call whose keys have been moved already goes to the node that takes the slot over. A call
some of whose keys have been moved is tried again until they all are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from operator import attrgetter

from redis_state.backoff import Backoff
from redis_state.transport.sending.batch import Call

_BACKOFF_S = Backoff(0.01, 0.2)
# So many redirections in a row are followed at once: the last may be out of date, not three.
_AT_ONCE = 2

_number = attrgetter("number")


class Detour:
    """The waiting calls of a slot, and the one that was sent to find the slot."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.calls: deque[Call] = deque()
        self.probe: Call | None = None
        # Whether it went to a node that is still taking the slot over.
        self.asked = False
        # The node whose replies must come first: it has calls of this slot in flight.
        self.behind: object | None = None
        self.reason: str = "the slot of the call has no node"
        self._redirections = 0

    def add(self, calls: Iterable[Call]) -> None:
        """Put calls into their order among those that wait."""
        self.calls = deque(merge(self.calls, calls, key=_number))

    def put_back(self, calls: Iterable[Call], reason: str) -> float:
        """Put back calls that a node did not execute; return how long to wait with the next."""
        self.probe = None
        self.reason = reason
        self.add(calls)
        self._redirections += 1
        times = self._redirections - _AT_ONCE
        return _BACKOFF_S.after(times + 1) if times >= 0 else 0.0

    def release(self, calls: Iterable[Call]) -> None:
        """Put back what the node before did not send: also the one that looked for the slot."""
        self.behind = None
        for call in calls:
            if call is self.probe:
                self.probe = None
        self.add(calls)

    def next_probe(self) -> Call | None:
        """Take the first call that still has no outcome; None if none is left."""
        while self.calls:
            call = self.calls.popleft()
            if call.wanted():
                # One that lasts has its outcome with the node's reply, not when it is cancelled.
                self.probe = call.stand_in() if call.lasting else call
                return self.probe
        return None

    def served(self) -> None:
        """Take note that a node has executed a call."""
        self.probe = None
        self._redirections = 0

    def expire(self, now: float, fail: Callable[[Call, str], None]) -> float | None:
        """Fail the calls whose time is up; return when the next one's is."""
        for call in self.calls:
            if call.deadline <= now:
                fail(call, self.reason)
        self.calls = deque(call for call in self.calls if call.deadline > now and call.wanted())
        return min((call.deadline for call in self.calls), default=None)
