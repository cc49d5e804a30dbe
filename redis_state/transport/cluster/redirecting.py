"""Calls that a node did not execute: they wait, slot by slot, until their node is found."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any

from redis_state.errors import BackendUnavailable, OutcomeUnknown
from redis_state.transport.cluster.detour import Detour
from redis_state.transport.cluster.node import NodeSender
from redis_state.transport.cluster.nodes import ClusterNodes
from redis_state.transport.connections.address import Address
from redis_state.transport.sending.batch import Call
from redis_state.transport.sending.calls import CallSender

_GRAIN_S = 0.1
# For a call whose time is up before a node has executed it.
_REASONS = {
    "MOVED": "the slot of the call is being moved to another node (MOVED)",
    "ASK": "the slot of the call is being moved to another node (ASK)",
    "TRYAGAIN": "the keys of the call are being moved to another node (TRYAGAIN)",
    "CLUSTERDOWN": "the cluster is down, or has no node for this key (CLUSTERDOWN)",
}


class RedirectedCalls(CallSender):
    """Calls of a cluster, those of one slot in their order when its node does not serve them."""

    _address: Address
    _nodes: ClusterNodes
    _owners: list[NodeSender | None]

    def __init__(self) -> None:
        super().__init__()
        self._detours: dict[int, Detour] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._settled = asyncio.Event()
        self._is_over = False
        # Called with the slots that another node has now.
        self.on_slots: Callable[[set[int]], None] = lambda _: None

    def in_trouble(self) -> None:
        """Read who has which slot, again and again until all calls have a node that answers."""
        raise NotImplementedError

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
