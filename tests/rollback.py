"""A server whose history really goes back, while its clients stay and reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

from redis_state.errors import BackendError
from tests import children
from tests.faults import own_binary, sender_to, short_directory

_ANSWERS_WITHIN_S = 20.0
_WITNESS = "rollback-witness"


class Rollback:
    """A server of a test's own: `mark` keeps its state, `go_back` restores what was kept last."""

    def __init__(self, directory: Path, *options: str) -> None:
        socket = directory / "own.sock"
        self.url: str = f"unix://{socket}"
        self._directory = directory
        self._kept = directory / "mark.rdb"
        self._command = [
            str(own_binary()),
            *("--port", "0", "--unixsocket", str(socket), "--dir", str(directory)),
            *("--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", *options),
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def mark(self) -> None:
        """Keep the state of this moment. A later mark replaces it."""
        async with sender_to(self.url) as sender:
            await sender.send("SAVE", repeatable=True)
        shutil.copyfile(self._directory / "dump.rdb", self._kept)

    async def go_back(self) -> None:
        """Kill the server (SIGKILL) and start it at the mark; return once it answers.

        All writes since the mark are lost, which is checked. Each further call goes back to the
        same mark.
        """
        assert self._kept.exists(), "nothing was marked"
        async with sender_to(self.url) as sender:
            await sender.send("SET", _WITNESS, "1", "PX", 600_000, repeatable=True)
        await self.stop()
        shutil.copyfile(self._kept, self._directory / "dump.rdb")
        await self.start()
        async with sender_to(self.url) as sender:
            lost = not await sender.send("EXISTS", _WITNESS, repeatable=True)
        assert lost, "the server's history did not go back"

    async def start(self) -> None:
        """Start the server from the file that is there; return once it answers."""
        self._process = await children.start(
            *self._command, stdout=asyncio.subprocess.DEVNULL, cwd=self._directory
        )
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            while not await self._answers():
                assert self._process.returncode is None, "the server did not start"

    async def stop(self) -> None:
        """Kill the server. What it kept is its file, which only `mark` and `go_back` write."""
        if self._process is not None and self._process.returncode is None:
            await children.end(self._process)

    async def _answers(self) -> bool:
        with contextlib.suppress(BackendError):  # not yet, or it still reads its file
            async with sender_to(self.url) as sender:
                return bool(await sender.send("PING", repeatable=True))
        return False


@contextlib.asynccontextmanager
async def rolling_back(*options: str) -> AsyncGenerator[Rollback, None]:
    """Run a server whose history can go back, with options of its own.

        async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:
            ...                     # what the server will remember
            await server.mark()
            ...                     # what it will forget, and its clients will not
            await server.go_back()
            ...                     # the same address; the store reconnects by itself

    Client objects, subscriptions and other processes live on and hold what they learned after the
    mark. `stop` and `start` alone make the server unreachable for a while.
    """
    with short_directory() as directory:
        server = Rollback(directory, *options)
        try:
            await server.start()
            yield server
        finally:
            await server.stop()
