"""Ports for servers that are started by number.

A port that the system chooses is one that it also gives to the next outgoing connection: it may be
taken before the server binds it. These ports are below those, and each process that asks for one
has its own, also beside the processes of another run on this machine.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from functools import cache
from itertools import count

_FIRST, _BLOCKS, _EACH = 10_000, 96, 100
# As many test processes at most, so that others have ports left.
PROCESSES = 16
# The bus of a cluster's node. No node's own port is that high.
_BUS = 10_000

# What has just used a port may keep it for a while.
_turns = count(os.getpid())


def free_port() -> int:
    """Find a port that is free, and 10000 higher too. Each call gives another one."""
    for _ in range(_EACH):
        port = _FIRST + _block()[0] * _EACH + next(_turns) % _EACH
        with socket.socket() as here, socket.socket() as bus, suppress(OSError):
            here.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            return port
    raise OSError("no port is free")


@cache
def _block() -> tuple[int, socket.socket | None]:
    """Claim a block of ports until this process ends, by a name that one process can have."""
    begin = os.getpid()
    if sys.platform != "linux":  # it alone has names that end with their process
        return begin % _BLOCKS, None
    for number in range(begin, begin + _BLOCKS):
        block, claim = number % _BLOCKS, socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0redis-state-ports-{block}")
        except OSError:
            claim.close()
        else:
            return block, claim
    raise OSError("no block of ports is free")


def listens(port: int) -> bool:
    """Return whether something takes connections at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
