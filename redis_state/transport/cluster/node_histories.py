"""The history of a cluster's nodes: another one once any of them may have gone back.

A key shows only the history of its slot, and so of one node.
"""

from __future__ import annotations

import asyncio
import hashlib
import re

from redis_state.errors import CommandRefused
from redis_state.transport.diagnostics import Diagnostics
from redis_state.transport.transport import Transport

# A process, and a line of replication. A restart changes the one, and a failover both.
_NAMES = re.compile(rb"^(?:run_id|master_replid):(\w+)", re.MULTILINE)
_NAMES_OF_NODE = 2


async def node_histories(transport: Transport) -> str:
    """Return what distinguishes the history of all primaries, "" if one does not say.

    Errors: NoConnection, BackendUnavailable.
    """
    servers = await transport.each_server()
    try:
        stated = await asyncio.gather(*(Diagnostics(server).info() for _, server in servers))
    except CommandRefused:
        return ""
    nodes = sorted(b" ".join(_NAMES.findall(text)) for text in stated)
    if any(len(node.split()) != _NAMES_OF_NODE for node in nodes):
        return ""
    # A short name, however many nodes there are.
    return hashlib.blake2b(b"\n".join(nodes), digest_size=16).hexdigest()
