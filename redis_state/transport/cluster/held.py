"""Which slots the primaries of a cluster hold: whether any was moved while all keys were read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from redis_state.errors import CommandRefused
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.diagnostics import Diagnostics
from redis_state.transport.transport import Transport

# What a primary says of a slot that it gives away or takes over.
_MOVED = "["


async def held_slots(transport: Transport) -> list[str]:
    """Read which slots each primary has, and moves; nothing without a cluster or the right."""
    stated: list[str] = []
    held = 0
    sender = transport.sender
    if isinstance(sender, ClusterSender):
        with suppress(CommandRefused):
            for _, server in await transport.each_server():
                nodes: bytes = await Diagnostics(server).cluster_nodes()
                own = next(line for line in nodes.decode().splitlines() if "myself" in line)
                # Its id; the number of its last change, and its slots.
                words = own.split(" ")
                stated.append(" ".join((words[0], words[6], *words[8:])))
                held += sum(_size(each) for each in words[8:] if not each.startswith(_MOVED))
            if held != sender.served_slots:
                # Who said who has which slot is behind: another node than these has some.
                stated.append(_MOVED)
    return sorted(stated)


async def were_moved(transport: Transport, before: Sequence[str]) -> bool:
    """Return whether slots are or were being moved since `held_slots` returned ``before``."""
    return any(_MOVED in stated for stated in before) or await held_slots(transport) != [*before]


def _size(stated: str) -> int:
    first, _, last = stated.partition("-")
    return int(last or first) - int(first) + 1
