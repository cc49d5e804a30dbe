"""One order of calls over all primaries of a cluster.

A call goes to the primary that has the slot of its keys. Calls of one slot take effect in the order
in which they are made, whatever happens to the slot. If a node does not serve a call, the call and
all later ones of its slot make a `Detour`. Other slots of the node are not held up.

Which node has which slot is read at the first call, and again after every sign of a change. One
task does it at a time. If calls of a slot are in flight to a node that has lost it, later ones wait
for their replies. A node that has lost all of its slots is left at once: it may have stopped.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any

from redis_state.backoff import Backoff
from redis_state.errors import BackendUnavailable, NoConnection, OutcomeUnknown
from redis_state.timeouts import timeout
from redis_state.transport.cluster.detour import Detour
from redis_state.transport.cluster.node import DENSE, NodeSender
from redis_state.transport.cluster.nodes import SLOTLESS, ClusterNodes
from redis_state.transport.cluster.slots import SlotMap, read_slot_map, slot_of
from redis_state.transport.connections.address import Address, Endpoint
from redis_state.transport.sending.batch import Call, Form
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.sending.guarantee import Guarantee
from redis_state.transport.wire.reply_errors import again
from redis_state.transport.wire.resp import Argument

_BACKOFF_S = Backoff(0.02, 0.25)
_GRAIN_S = 0.1
# For a call whose time is up before a node has executed it.
_REASONS = {
    "MOVED": "the slot of the call is being moved to another node (MOVED)",
    "ASK": "the slot of the call is being moved to another node (ASK)",
    "TRYAGAIN": "the keys of the call are being moved to another node (TRYAGAIN)",
    "CLUSTERDOWN": "the cluster is down, or has no node for this key (CLUSTERDOWN)",
}


class ClusterSender(CallSender):
    """Send calls to the primaries of a cluster, connecting at first use."""

    def __init__(
        self,
        address: Address,
        *,
        call_timeout_s: float,
        connect_timeout_s: float,
        busy_poll_s: float = 0.0,
        guarantee: Guarantee | None = None,
    ) -> None:
        super().__init__()
        # Nothing is checked before it is shared: a form is of one slot.
        self._sharing = True
        self._address = address
        self._call_timeout_s = call_timeout_s
        self._connect_timeout_s = connect_timeout_s

        def connect(server: Address) -> NodeSender:
            return NodeSender(
                server,
                self,
                numbers=self._numbers,
                call_timeout_s=call_timeout_s,
                connect_timeout_s=connect_timeout_s,
                busy_poll_s=busy_poll_s,
                guarantee=guarantee,
            )

        self._nodes = ClusterNodes(address, connect)
        # The very list: it is read with each call.
        self._owners = self._nodes.owners
        self._detours: dict[int, Detour] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._settled = asyncio.Event()
        self._closed = self._is_over = False
        # Called with the slots that another node has now, and when none could say.
        self.on_slots: Callable[[set[int]], None] = lambda _: None
        self.on_trouble: Callable[[NoConnection], None] = lambda _: None

    @property
    def batches(self) -> int:
        """Count the writes so far, to all nodes."""
        return self._nodes.batches

    @property
    def connections(self) -> int:
        """Count the connections made so far, to all nodes."""
        return self._nodes.connections

    @property
    def pending(self) -> int:
        """Count the calls that have no outcome yet."""
        waiting = sum(len(detour.calls) for detour in self._detours.values())
        return waiting + self._nodes.pending

    async def primaries(self) -> list[NodeSender]:
        """Return the sender of each primary of now, for commands that are about no key.

        Errors: NoConnection.
        """
        await self.send("TIME", repeatable=True)
        # Calls about a moved slot find its node. Calls about none would leave a new node out.
        self._apply(await self._find_slots())
        return self._nodes.primaries()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every queued call has its outcome. Errors: TimeoutError."""
        async with timeout(timeout_s):
            while self.pending:
                await self._nodes.drain()
                if self._detours:
                    self._settled.clear()
                    await self._settled.wait()

    async def aclose(self, *, drain_s: float = 5.0) -> None:
        """Wait for queued calls for at most ``drain_s``, then disconnect. Safe to repeat."""
        self._closed = True
        try:
            with suppress(TimeoutError):
                await self.drain(drain_s)
        finally:
            self._is_over = True
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait({self._reading})
            if self._alarm is not None:
                self._alarm.cancel()
            for detour in self._detours.values():
                for call in detour.calls:
                    self._fail(call, "the connection was closed")
            self._detours.clear()
            self._settled.set()
            await self._nodes.aclose()

    @property
    def address(self) -> Address:
        """The address of the cluster."""
        return self._address

    @property
    def served_slots(self) -> int:
        """How many slots have a node that is known."""
        return self._nodes.served_slots

    def owner(self, slot: int) -> Endpoint | None:
        """Return the node that has a slot, if that is known."""
        return self._nodes.owner(slot)

    def redirected(self, node: NodeSender, calls: list[Call]) -> None:
        """Take the slots of these calls from a node: it did not execute them."""
        if self._is_over:
            # The node fails them.
            return
        refused = _by_slot(calls)
        taken = node.take_out(set(refused))
        by_slot = _by_slot(taken)
        self._arm_for(taken)
        for slot, first in refused.items():
            self._redirect(self._detour(slot), first[0], by_slot[slot])

    def drained(self, node: NodeSender) -> None:
        """Release the slots that waited for the replies of a node."""
        behind = [detour for detour in self._detours.values() if detour.behind is node]
        if self._is_over or not behind:
            return
        taken = node.take_out({detour.slot for detour in behind})
        self._arm_for(taken)
        put_back = _by_slot(taken)
        for detour in behind:
            detour.release(put_back[detour.slot])
            self._advance(detour)

    def serves(self, node: NodeSender, slot: int) -> bool:
        """Return whether a node has a slot, and simply serves it."""
        return self._owners[slot] is node and slot not in self._detours

    def count_served(self, node: NodeSender, *, but: Collection[int]) -> int:
        """Count the slots that a node has, and simply serves, without some."""
        others = self._detours.keys() | but
        return self._nodes.count_slots(node) - sum(self._owners[slot] is node for slot in others)

    def is_busy(self) -> bool:
        """Return whether calls are in flight that make it worth to collect some for a write."""
        return self._nodes.count_in_flight() >= DENSE

    def was_reached(self) -> bool:
        """Return whether a node of the cluster could be used so far."""
        return self.connections > 0

    def in_trouble(self) -> None:
        """Read who has which slot, again and again until all calls have a node that answers."""
        if self._reading is None or self._reading.done():
            if not self._is_over:
                self._reading = self._loop.create_task(self._read(), name="redis_state slots")
        else:
            self._read_again = True

    def _put(  # noqa: PLR0917 - all that a call is
        self,
        form: Form,
        keys: bytes,
        arguments: bytes,
        repeatable: bool,  # noqa: FBT001
        lasting: bool,  # noqa: FBT001
        timeout_s: float | None,
        key: Argument,
    ) -> Call:
        slot = slot_of(key)
        if form[3] is None and form[0] is not None:
            # Only neighbours of one slot share a command. The numbers of calls are not negative.
            form = (*form[:3], -1 - slot)
        if timeout_s is None:
            timeout_s = self._call_timeout_s
        owner = self._owners[slot]
        if owner is not None and slot not in self._detours and not self._closed:
            return owner.put(slot, form, keys, arguments, repeatable, lasting, timeout_s)
        if self._nodes.is_empty:
            # A cluster that was never reached is reported after the connect deadline.
            timeout_s = min(timeout_s, self._connect_timeout_s)
        call = Call(self._loop, form, keys, arguments, repeatable, lasting, timeout_s)
        call.number, call.slot = next(self._numbers), slot
        if self._closed:
            call.fail(BackendUnavailable(str(self._address), "the store is closed"))
            return call
        detour = self._detour(slot)
        detour.calls.append(call)
        self._arm_for((call,))
        if owner is None:
            self.in_trouble()
        return call

    def _detour(self, slot: int) -> Detour:
        return self._detours.setdefault(slot, Detour(slot))

    def _redirect(self, detour: Detour, first: Call, calls: list[Call]) -> None:
        """Put the calls of a slot in a detour: the first was not executed where it was sent."""
        redirect = first.redirect
        assert redirect is not None  # noqa: S101 - an invariant
        for call in calls:
            call.redirect = None
        wait_s = detour.put_back(calls, _REASONS[redirect.code])
        if redirect.code == "ASK" and redirect.endpoint is not None:
            probe = detour.next_probe()
            if probe is first:
                # The slot stays where it is; what this very call is about is there.
                self._send(detour, probe, self._nodes.of(redirect.endpoint), asking=redirect)
            else:
                self._send(detour, probe, self._owners[detour.slot])
            return
        if redirect.code == "MOVED" and redirect.endpoint is not None:
            node = self._nodes.of(redirect.endpoint)
            if self._nodes.give(detour.slot, node) is not node:
                # The next map will not show it as a change.
                self.on_slots({detour.slot})
        if redirect.code != "TRYAGAIN":
            self.in_trouble()
        if wait_s:
            self._loop.call_later(wait_s, self._advance, detour)
        else:
            self._advance(detour)

    def _advance(self, detour: Detour) -> None:
        """Send the next call of a slot to where it seems to be, to find out."""
        if self._detours.get(detour.slot) is not detour:
            # A timer of a detour that is over: its calls are with their node.
            return
        if detour.probe is None and detour.behind is None:
            owner = self._owners[detour.slot]
            if owner is not None or not detour.calls:
                self._send(detour, detour.next_probe(), owner)

    def _send(
        self, detour: Detour, probe: Call | None, node: NodeSender | None, *, asking: Any = None
    ) -> None:
        if probe is None or node is None:
            self._end(detour)
            return
        # It may have been sent before, and what counts is where it was sent last.
        detour.asked = asking is not None
        if asking is not None:
            probe.lead_by_asking(asking)
        probe.add_late_callback(partial(self._probed, detour))
        node.take_over(probe)

    def _probed(self, detour: Detour, probe: Any) -> None:
        """Release what waited for a call that has its outcome."""
        if detour.probe is not probe:
            return
        detour.served()
        if detour.asked:
            self._advance(detour)
        else:
            self._end(detour)

    def _end(self, detour: Detour) -> None:
        """Send the calls of a slot to its node again."""
        if self._detours.get(detour.slot) is not detour:
            return
        owner = self._owners[detour.slot]
        if detour.calls and owner is None:
            self.in_trouble()
            return
        del self._detours[detour.slot]
        for call in detour.calls:
            if call.wanted() and owner is not None:
                owner.take_over(call)
        if not self._detours:
            self._settled.set()

    async def _read(self) -> None:
        for pause_s in _BACKOFF_S.delays():
            self._read_again = False
            try:
                found = await self._find_slots()
            except NoConnection as error:
                self._note(error)
            else:
                self._apply(found)
            if not (self._read_again or self._is_stuck()):
                return
            await asyncio.sleep(pause_s)

    async def _find_slots(self) -> SlotMap:
        return await read_slot_map(
            self._address, self._nodes.known, timeout_s=self._connect_timeout_s
        )

    def _is_stuck(self) -> bool:
        """Return whether calls wait for a node, for a connection to it, or for its replies."""
        if self._nodes.is_stuck():
            return True
        return any(
            detour.calls and self._owners[slot] is None for slot, detour in self._detours.items()
        )

    def _note(self, error: NoConnection) -> None:
        """Keep why no map could be read for the calls that wait for one, or fail them with it."""
        self.on_trouble(error)
        for detour in list(self._detours.values()):
            if self._owners[detour.slot] is None:
                detour.reason = error.reason
                if error.final:
                    for call in detour.calls:
                        call.fail(again(error))
                    detour.calls.clear()
                    self._end(detour)

    def _apply(self, found: SlotMap) -> None:
        """Give each slot to the node that has it now."""
        changed, left = self._nodes.assign(found)
        primaries = found.primaries
        for node, slots in left.items():
            self._move_out(node, slots)
            if node.endpoint not in primaries:
                node.leave(SLOTLESS)
        for detour in list(self._detours.values()):
            if detour.slot in changed:
                self._advance(detour)
        self._nodes.drop_unused()
        self.on_slots(changed)

    def _move_out(self, node: NodeSender, slots: set[int]) -> None:
        """Take slots from a node; if it has calls of theirs in flight, once it has answered."""
        in_flight = slots & node.slots_in_flight()
        for slot in in_flight | (slots & node.slots_waiting()):
            self._detour(slot).behind = node
        if in_flight:
            node.hold()
        if not node.holding:
            self.drained(node)

    def _arm_for(self, calls: Iterable[Call]) -> None:
        at = min((call.deadline for call in calls), default=inf)
        if at < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = at
            self._alarm = self._loop.call_later(max(0, at - monotonic()), self._expire)

    def _expire(self) -> None:
        self._alarm_at = inf
        now = monotonic()
        moments = [detour.expire(now, self._fail) for detour in list(self._detours.values())]
        for detour in list(self._detours.values()):
            if not detour.calls and detour.probe is None and detour.behind is None:
                self._end(detour)
        next_at = min((at for at in moments if at is not None), default=None)
        if next_at is not None:
            self._alarm_at = max(next_at, now + _GRAIN_S)
            self._alarm = self._loop.call_later(self._alarm_at - now, self._expire)

    def _fail(self, call: Call, reason: str) -> None:
        kind = OutcomeUnknown if call.sent else BackendUnavailable
        call.fail(kind(str(self._address), reason))


def _by_slot(calls: Iterable[Call]) -> defaultdict[int, list[Call]]:
    """Group calls by their slots, in the order in which they were made."""
    grouped: defaultdict[int, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=attrgetter("number")):
        grouped[call.slot].append(call)
    return grouped
