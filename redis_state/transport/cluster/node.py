"""The sender of one primary of a cluster: gives back the calls that it is not the one for."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Collection, Iterator
from time import monotonic
from typing import Any, Protocol

from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.connections.address import Address, Endpoint
from redis_state.transport.connections.locator import FixedServer
from redis_state.transport.connections.protocol import RespProtocol
from redis_state.transport.sending.batch import ASKING, Call, Redirect
from redis_state.transport.sending.confirming import PLACELESS, Mark
from redis_state.transport.sending.guarantee import MARK, packed_mark
from redis_state.transport.sending.sender import Sender
from redis_state.transport.wire.reply_errors import Refusal

# Not executed: the call is another node's, or cannot be served yet.
_REDIRECTED = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})

# How many keys are tried for one in a slot of the node.
_MARKS = 1 << 14

# With so many calls in flight more are collected until the node has answered, but not for longer.
DENSE = 4
_LATEST_S = 0.004

# A node that has calls and says nothing for so long may have been replaced.
_SILENT_S = 0.5


class Router(Protocol):
    """Who decides which node serves a call."""

    def redirected(self, node: NodeSender, calls: list[Call]) -> None:
        """Take the slots of these calls from a node: it did not execute them."""

    def drained(self, node: NodeSender) -> None:
        """Release the slots that waited for the replies of a node."""

    def serves(self, node: NodeSender, slot: int) -> bool:
        """Return whether a node has a slot, and simply serves it."""
        ...

    def count_served(self, node: NodeSender, *, but: Collection[int]) -> int:
        """Count the slots that a node has, and simply serves, without some."""
        ...

    def is_busy(self) -> bool:
        """Return whether calls are in flight that make it worth to collect some for a write."""
        ...

    def was_reached(self) -> bool:
        """Return whether a node of the cluster could be used so far."""
        ...

    def in_trouble(self) -> None:
        """Look who has which slot: a node was lost, or could not be reached."""


class NodeSender(Sender):
    """Send to one node. Calls have their slots before any reply to them is read."""

    # Calls of one slot have equal forms.
    shares: bool | None = True
    # The cluster was reached: a node that is not may have lost its slots.
    hasty = False

    def __init__(
        self,
        address: Address,
        router: Router,
        *,
        numbers: Iterator[int],
        **options: Any,
    ) -> None:
        super().__init__(
            FixedServer(address),
            shown_as=str(address),
            left=router.in_trouble,
            numbers=numbers,
            **options,
        )
        self._router = router
        self._redirected: list[Call] = []
        self._sharing = self.shares
        self._is_lost = False
        # Set while what is queued waits for the node's answer, which may be far away.
        self._late: asyncio.TimerHandle | None = None
        self._mark_number = 0
        # Where marks were refused since one was written.
        self._refused_marks: set[int] = set()
        self.address: Address = address
        self.endpoint: Endpoint = (address.options["host"], address.options["port"])

    def put(self, slot: int, *of_call: Any) -> Call:
        """Put a call of a slot on its way, made of what `CallSender._put` takes."""
        call = self._put(*of_call)
        call.slot = slot
        return call

    def take_over(self, call: Call) -> None:
        """Send a call that was made elsewhere, behind all that were taken over or made before."""
        self._queue.append(call)
        self._watch(call)
        self._flush_soon()

    def take_out(self, slots: set[int]) -> list[Call]:
        """Give up the calls of some slots that are not in flight, in their order."""
        taken = [call for call in (*self._again, *self._queue) if call.slot in slots]
        if taken:
            self._again = deque(call for call in self._again if call.slot not in slots)
            self._queue = deque(call for call in self._queue if call.slot not in slots)
            self._record_idle()
        return taken

    @property
    def count_in_flight(self) -> int:
        """How many calls have no reply yet."""
        return len(self._inflight)

    def slots_in_flight(self) -> set[int]:
        """Return the slots of the calls that have no reply yet."""
        return {call.slot for call in self._in_flight()}

    def slots_waiting(self) -> set[int]:
        """Return the slots of the calls that are not in flight."""
        return {call.slot for call in (*self._again, *self._queue)}

    @property
    def holding(self) -> bool:
        """Whether it sends nothing until all that is in flight has its reply."""
        return self._holding

    def hold(self) -> None:
        """Send nothing until all that is in flight has its reply; then call `Router.drained`."""
        self._holding = True

    def leave(self, reason: str) -> None:
        """End the connection to a node that serves no calls any more."""
        protocol = self._connection.protocol
        if protocol is not None:
            protocol.abort(reason)

    def is_stuck(self) -> bool:
        """Return whether calls wait for a connection, or for a node that may stand still."""
        return (self._is_lost and self.wanted()) or self._is_silent()

    async def use(self, protocol: RespProtocol) -> None:
        """Send what waits, and what comes, until the connection ends."""
        self._is_lost = False
        await super().use(protocol)

    def _is_silent(self) -> bool:
        protocol = self._connection.protocol
        in_flight = self._in_flight()
        if protocol is None or not in_flight:
            return False
        oldest = in_flight[0]
        since = max(protocol.heard_at, oldest.deadline - oldest.timeout)
        return monotonic() - since > _SILENT_S

    def ended(self) -> None:
        """Put back what may be repeated. The node may have lost its slots."""
        self._is_lost = True
        super().ended()
        self._give_back()

    def failed(self, error: Exception) -> None:
        """Keep the reason for the waiters. The node may have lost its slots."""
        self._is_lost = True
        super().failed(error)
        self._give_back()

    def _was_reached(self) -> bool:
        # A node may be new, as after a failover.
        return self._router.was_reached()

    def _is_busy(self) -> bool:
        return self._router.is_busy()

    def _flush_soon(self) -> None:
        """Write what is queued at the end of this turn, or with more once the node has answered.

        Each write costs both sides as much as some calls do. Callers who follow their replies call
        several nodes in turn, and each turn would be a write to each of them.
        """
        if len(self._inflight) < DENSE or len(self._queue) >= self._most or self._again:
            super()._flush_soon()
        elif self._late is None:
            self._late = self._loop.call_later(_LATEST_S, self._flush_late)

    def _flush_late(self) -> None:
        self._late = None
        self._flush()

    def _ask_sharing(self, key: str) -> None:
        """Do nothing: it is known."""

    def _mark(self, call: Call, another: bool) -> Mark:  # noqa: FBT001 - as its base
        """Write a mark in the slot of a call; ``another`` one, if a mark is refused there.

        A node that is losing a slot has the keys of the call, and refuses to make a new one.
        """
        prefix = f"{self._confirming.namespace}:mark:".encode()
        tag = call.names()[0].partition(b"{")[2].partition(b"}")[0]
        leading: tuple[bytes, tuple[int, ...]] = (b"", ())
        name = b""
        if call.redirect is not None:
            leading = (ASKING, (0,))
            # A name of its own: the node that is losing the slot may have the usual mark, and a key
            # that both nodes have would stop the move.
            name = b":" + secrets.token_hex(8).encode()
        elif another:
            self._router.in_trouble()
            found = self._number_elsewhere()
            if found is None:
                self._refused_marks.clear()
                return PLACELESS
            tag = found
        else:
            self._refused_marks.clear()
        self._refused_marks.add(slot_of(tag))
        mark = packed_mark(prefix + b"{" + tag + b"}" + name)
        return leading[0] + mark, (*leading[1], MARK)

    def _number_elsewhere(self) -> bytes | None:
        """Find a number in a slot of the node where no mark was refused; None without one."""
        if self._router.count_served(self, but=self._refused_marks):
            first = self._mark_number + 1
            for self._mark_number in range(first, first + _MARKS):
                tag = b"%d" % self._mark_number
                slot = slot_of(tag)
                if slot not in self._refused_marks and self._router.serves(self, slot):
                    return tag
        return None

    def _refused(self, call: Call, error: Refusal) -> None:
        if error.code in _REDIRECTED and call.slot >= 0:
            call.redirect = _redirect(error, self.endpoint)
            self._redirected.append(call)
            self._hold(call)
            return
        super()._refused(call, error)

    def _give_back(self) -> None:
        """Give back the calls that another node has sent on to this one, which is lost.

        The other may have their slot for good by now.
        """
        asked = [call for call in (*self._again, *self._queue) if call.redirect is not None]
        if asked:
            for call in asked:
                call.redirect = Redirect("ASK", None)
            self._router.redirected(self, asked)
        self._router.in_trouble()

    def _expire(self) -> None:
        super()._expire()
        if self._connection.protocol is None and self.wanted():
            # A part of a call's time went by, and what would answer may stand still.
            self._is_lost = True
            self._give_back()

    def _resume(self) -> None:
        redirected, self._redirected = self._redirected, []
        if redirected:
            self._router.redirected(self, redirected)
        # Before anything is sent: what is another node's by now is not.
        self._router.drained(self)
        super()._resume()


def _redirect(error: Refusal, node: Endpoint) -> Redirect:
    if error.code not in ("MOVED", "ASK"):
        return Redirect(error.code, None)
    # An endpoint without a host is of the node that answers; one that is not known is a "?".
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return Redirect(error.code, None if host == "?" else (host or node[0], int(port)))
