"""Questions to a server about itself. A user of a namespace may be refused any of them."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state.transport.sending.calls import CallSender
from redis_state.transport.wire.resp import Argument


class Diagnostics:
    """Questions to one server. Errors, on each future: those of `Sender.send`."""

    def __init__(self, sender: CallSender) -> None:
        self._sender = sender

    def info(self) -> asyncio.Future[Any]:
        """Read what the server says of itself."""
        return self._send("INFO")

    def time(self) -> asyncio.Future[Any]:
        """Read the server's clock."""
        return self._send("TIME")

    def setting(self, name: str) -> asyncio.Future[Any]:
        """Read one setting: its name and its value, or nothing if the server has none such."""
        return self._send("CONFIG", "GET", name)

    def cluster_info(self) -> asyncio.Future[Any]:
        """Read the state of the cluster, as this node sees it."""
        return self._send("CLUSTER", "INFO")

    def cluster_nodes(self) -> asyncio.Future[Any]:
        """Read the nodes of the cluster, as this node sees them."""
        return self._send("CLUSTER", "NODES")

    def user(self) -> asyncio.Future[Any]:
        """Read the name of the user that is logged in."""
        return self._send("ACL", "WHOAMI")

    def may(self, user: str, command: str, *arguments: Argument) -> asyncio.Future[Any]:
        """Try whether a user may run a command: OK, or why not."""
        return self._send("ACL", "DRYRUN", user, command, *arguments)

    def some_keys(self, cursor: Argument, pattern: str) -> asyncio.Future[Any]:
        """Read a page of the keys that match: the next cursor, and the keys."""
        return self._send("SCAN", cursor, "MATCH", pattern, "COUNT", 500)

    def pttl(self, key: Argument) -> asyncio.Future[Any]:
        """Return what is left of a lifetime in ms; -1 without one, -2 without the key."""
        return self._send("PTTL", key)

    def _send(self, *command: Argument) -> asyncio.Future[Any]:
        return self._sender.send(*command, repeatable=True)
