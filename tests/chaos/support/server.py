"""A server of a trial's own, which is killed and comes back with its data."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from redis_state.testing import eventually
from tests.chaos.support.power import Power
from tests.support.processes import children
from tests.support.servers.faults import own_binary


class Server:
    """A server on a socket of its own, with an append-only file. To be killed and started anew."""

    def __init__(self, directory: Path, appendfsync: str, power: Power | None = None) -> None:
        self._directory = directory
        self._power = power
        # How many bytes were written and not synced when the power was cut.
        self.unsynced = 0
        self._appendfsync = appendfsync
        self._socket = directory / "own.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, whether it runs or not."""
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start it, without waiting until it answers."""
        kept = ("--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", "")
        place = ("--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._directory))
        self._process = children.launch(
            [own_binary(), *place, *kept],
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            env=None if self._power is None else os.environ | self._power.environment,
        )

    async def rewrite(self) -> None:
        """Rewrite the append-only file: an unclean start needs it, see `docs/guides/servers.md`."""
        client: Any
        async with Redis(unix_socket_path=str(self._socket)) as client:
            await client.bgrewriteaof()

            async def is_over() -> bool:
                about = await client.info("persistence")
                return not about["aof_rewrite_in_progress"] and not about["aof_rewrite_scheduled"]

            await eventually(is_over, "the file is rewritten", timeout_s=60)
            assert (await client.info("persistence"))["aof_last_bgrewrite_status"] == "ok"

    def kill(self) -> int:
        """Kill it with no chance to write anything, or cut its power; return its status."""
        assert self._process is not None
        self._process.kill()
        status = self._process.wait()
        if self._power is not None:
            self.unsynced += self._power.cut(self._directory)
        return status

    async def answers(self) -> bool:
        """Tell whether it serves: it has read back what it had written."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()
