"""The nodes of a cluster that have been connected to, and which of them has which slot.

A slot that nobody has by the newest map stays with the node that had it. A node without slots and
calls is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from redis_state.transport.cluster.node import NodeSender
from redis_state.transport.cluster.slots import SLOTS, SlotMap
from redis_state.transport.connections.address import Address, Endpoint

SLOTLESS = "the node serves no slot any more"


class ClusterNodes:
    """The senders of a cluster's nodes. ``connect`` makes one at the first use of its endpoint."""

    def __init__(self, address: Address, connect: Callable[[Address], NodeSender]) -> None:
        self._address = address
        self._connect = connect
        # Where the slots may be read.
        self.known: dict[Endpoint, None] = dict.fromkeys(address.endpoints)
        # The node of each slot.
        self.owners: list[NodeSender | None] = [None] * SLOTS
        self._nodes: dict[Endpoint, NodeSender] = {}
        # How many slots each node has.
        self._counts: Counter[NodeSender] = Counter()
        # Of nodes that were left.
        self._past_connections = self._past_batches = 0
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no node is known yet."""
        return not self._nodes

    @property
    def batches(self) -> int:
        """Count the writes so far, to all nodes."""
        return self._past_batches + sum(node.batches for node in self._nodes.values())

    @property
    def connections(self) -> int:
        """Count the connections made so far, to all nodes."""
        return self._past_connections + sum(node.connections for node in self._nodes.values())

    @property
    def pending(self) -> int:
        """Count the calls that the nodes have no outcome of yet."""
        return sum(node.pending for node in self._nodes.values())

    @property
    def served_slots(self) -> int:
        """How many slots have a node that is known."""
        return SLOTS - self.owners.count(None)

    def count_in_flight(self) -> int:
        """Count the calls that were sent and have no reply yet."""
        return sum(node.count_in_flight for node in self._nodes.values())

    def count_slots(self, node: NodeSender) -> int:
        """Count the slots that a node has."""
        return self._counts[node]

    def is_stuck(self) -> bool:
        """Return whether a node has calls, and no connection or no replies."""
        return any(node.is_stuck() for node in self._nodes.values())

    def primaries(self) -> list[NodeSender]:
        """Return the nodes that have slots."""
        return [node for node in self._nodes.values() if self._counts[node]]

    def owner(self, slot: int) -> Endpoint | None:
        """Return the node that has a slot, if that is known."""
        node = self.owners[slot]
        return None if node is None else node.endpoint

    def of(self, endpoint: Endpoint) -> NodeSender:
        """Return the node at an endpoint."""
        node = self._nodes.get(endpoint)
        if node is None:
            self.known[endpoint] = None
            node = self._nodes[endpoint] = self._connect(self._address.server(endpoint))
        return node

    def give(self, slot: int, node: NodeSender) -> NodeSender | None:
        """Give a slot to a node; return which one had it."""
        was = self.owners[slot]
        if was is not node:
            self.owners[slot] = node
            self._counts[node] += 1
            if was is not None:
                self._counts[was] -= 1
        return was

    def assign(self, found: SlotMap) -> tuple[set[int], dict[NodeSender, set[int]]]:
        """Give each slot to the node that a map names.

        Return the slots that another node has now, and those that each node has lost.
        """
        self.known = dict.fromkeys((*found.nodes, *self._address.endpoints))
        changed: set[int] = set()
        left: dict[NodeSender, set[int]] = {}
        for first, last, endpoint in found.ranges:
            node, owners = self.of(endpoint), self.owners[first : last + 1]
            # While there is trouble, maps are read often and are mostly alike: this counts in C.
            if owners.count(node) == len(owners):
                continue
            for slot in range(first, last + 1):
                was = self.give(slot, node)
                if was is not node:
                    changed.add(slot)
                    if was is not None:
                        left.setdefault(was, set()).add(slot)
        return changed, left

    def drop_unused(self) -> None:
        """Forget nodes that have no slots and no calls."""
        for endpoint, node in list(self._nodes.items()):
            if not self._counts[node] and not node.pending:
                del self._nodes[endpoint], self._counts[node]
                self._past_connections += node.connections
                self._past_batches += node.batches
                node.closed_for = SLOTLESS
                task = asyncio.get_running_loop().create_task(node.aclose(drain_s=0))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def drain(self) -> None:
        """Wait until every call of the nodes has its outcome."""
        await asyncio.gather(*(node.drain() for node in self._nodes.values()))

    async def aclose(self) -> None:
        """Disconnect from all nodes at once."""
        await asyncio.gather(*(node.aclose(drain_s=0) for node in self._nodes.values()))
        await asyncio.gather(*self._closing)
