"""Ports for servers that are started by number.

A port that the system chooses is one that it also gives to the next outgoing connection: it may be
taken before the server binds it. These ports are below those, and each test process has its own.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count

_FIRST, _EACH = 10_000, 600
# So many test processes have ports of their own.
PROCESSES = 16
# The bus of a cluster's node. No node's own port is that high.
_BUS = 10_000

# Another run on this machine probably begins elsewhere.
_turns = count(os.getpid())


def free_port() -> int:
    """Find a port that is free, and 10000 higher too. Each call gives another one."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    for _ in range(_EACH):
        port = _FIRST + process * _EACH + next(_turns) % _EACH
        with socket.socket() as here, socket.socket() as bus, suppress(OSError):
            here.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            return port
    raise OSError("no port is free")


def listens(port: int) -> bool:
    """Return whether something takes connections at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
