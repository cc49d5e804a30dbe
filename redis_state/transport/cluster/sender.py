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
from collections.abc import Callable, Collection
from contextlib import suppress

from redis_state.backoff import Backoff
from redis_state.errors import BackendUnavailable, NoConnection
from redis_state.timeouts import timeout
from redis_state.transport.cluster.node import DENSE, NodeSender
from redis_state.transport.cluster.nodes import SLOTLESS, ClusterNodes
from redis_state.transport.cluster.redirecting import RedirectedCalls
from redis_state.transport.cluster.slots import SlotMap, read_slot_map, slot_of
from redis_state.transport.connections.address import Address, Endpoint
from redis_state.transport.sending.batch import Call, Form
from redis_state.transport.sending.guarantee import Guarantee
from redis_state.transport.wire.reply_errors import again
from redis_state.transport.wire.resp import Argument

_BACKOFF_S = Backoff(0.02, 0.25)


class ClusterSender(RedirectedCalls):
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
        self._reading: asyncio.Task[None] | None = None
        self._read_again = False
        self._closed = False
        # Called when no node could say who has which slot.
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
