"""Questions to a server about itself. A user of a namespace may be refused any of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from redis_state.transport.sending.calls import CallSender
from redis_state.transport.wire.resp import Argument

_RIGHTS = """
local found = {}
for place, words in ipairs(ARGV) do
  local known, may = pcall(redis.acl_check_cmd, unpack(cjson.decode(words)))
  found[place] = known and (may and 1 or 0) or -1
end
return found
"""


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

    def rights(self, commands: Iterable[Sequence[str]]) -> asyncio.Future[Any]:
        """Try which of some commands the user may run, without running any.

        For each: 1, or 0 if it would be refused, or -1 if the server does not know it. It takes
        the right to EVAL only, where ACL DRYRUN is an operator's.
        """
        return self._send("EVAL", _RIGHTS, 0, *(json.dumps(words) for words in commands))

    def dry_run(self, user: str, *command: Argument) -> asyncio.Future[Any]:
        """Ask whether a user may run a command, without running it: OK, or why not."""
        return self._send("ACL", "DRYRUN", user, *command)

    def some_keys(self, cursor: Argument, pattern: str, *, count: int = 500) -> asyncio.Future[Any]:
        """Look at about ``count`` keys: the next cursor, and those that match."""
        return self._send("SCAN", cursor, "MATCH", pattern, "COUNT", count)

    def pttl(self, key: Argument) -> asyncio.Future[Any]:
        """Return what is left of a lifetime in ms; -1 without one, -2 without the key."""
        return self._send("PTTL", key)

    def _send(self, *command: Argument) -> asyncio.Future[Any]:
        return self._sender.send(*command, repeatable=True)
