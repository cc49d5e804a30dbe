"""Servers whose history really goes back, while their clients stay and reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from redis import Redis

from redis_state.errors import BackendError
from redis_state.testing import eventually
from tests.support.processes import children
from tests.support.servers.faults import Proxy, own_binary, sender_to, short_directory

_ANSWERS_WITHIN_S = 20.0
_WITNESS = "rollback-witness"

# What is kept of a server: a snapshot, or the log of its writes.
Kept = Literal["rdb", "aof"]


class OwnServer:
    """A server of a test's own, with its files in a directory; it can be killed and started."""

    def __init__(self, directory: Path, *options: str) -> None:
        socket = directory / "own.sock"
        self.url: str = f"unix://{socket}"
        self.directory = directory
        self.environment: Mapping[str, str] | None = None
        self._command = [
            str(own_binary()),
            *("--port", "0", "--unixsocket", str(socket), "--dir", str(directory)),
            *("--save", "", *options),
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server from the files that are there; return once it answers."""
        self._process = await children.start(
            *self._command,
            stdout=asyncio.subprocess.DEVNULL,
            cwd=self.directory,
            env=self.environment,
        )
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            while not await self._answers():
                assert self._process.returncode is None, "the server did not start"

    async def stop(self) -> None:
        """Kill the server (SIGKILL). Safe to repeat."""
        if self._process is not None and self._process.returncode is None:
            await children.end(self._process)

    async def _answers(self) -> bool:
        with contextlib.suppress(BackendError):  # not yet, or it still reads its file
            async with sender_to(self.url) as sender:
                return bool(await sender.send("PING", repeatable=True))
        return False


class Rollback(OwnServer):
    """A server of a test's own: `mark` keeps its state, `go_back` restores what was kept last."""

    def __init__(self, directory: Path, *options: str, kept: Kept = "rdb") -> None:
        log = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
        keeping = log if kept == "aof" else ("--appendonly", "no", "--dbfilename", "dump.rdb")
        super().__init__(directory, *keeping, *options)
        # Redis and Valkey name the directory alike.
        self._file = directory / ("appendonlydir" if kept == "aof" else "dump.rdb")
        self._kept = directory / "mark"
        self._by_save = kept == "rdb"

    async def mark(self) -> None:
        """Keep the state of this moment. A later mark replaces it.

        The log of writes is copied while the server writes it: its last entry may be torn.
        """
        if self._by_save:
            async with sender_to(self.url) as sender:
                await sender.send("SAVE", repeatable=True)
        _copy(self._file, self._kept)

    async def go_back(self) -> None:
        """Kill the server and start it at the mark; return once it answers.

        All writes since the mark are lost, which is checked. Each further call goes back to the
        same mark.
        """
        assert self._kept.exists(), "nothing was marked"
        await leave_witness(self.url)
        await self.stop()
        _copy(self._kept, self._file)
        await self.start()
        await expect_no_witness(self.url)


class Replicas:
    """A primary and its replica behind one name; a promotion changes their places.

    `mark` stops the replica from hearing the primary, `go_back` promotes it: what was written in
    between is lost. `switch` is a planned failover, which loses nothing.
    """

    def __init__(self, name: Proxy, nodes: list[OwnServer], links: list[Proxy]) -> None:
        self.name = name
        self._nodes = nodes
        # Before each node: the replica listens to its primary through it.
        self._links = links
        self._primary = 0

    @property
    def url(self) -> str:
        """The name that clients have."""
        return self.name.url

    @property
    def primary_url(self) -> str:
        """The primary's own address."""
        return self._nodes[self._primary].url

    @property
    def replica_url(self) -> str:
        """The replica's own address."""
        return self._nodes[1 - self._primary].url

    async def start(self) -> None:
        """Start both, and wait until they are in sync."""
        for node in self._nodes:
            await node.start()
        await self._follow()

    async def mark(self) -> None:
        """Let the replica fall behind from now on."""
        self._links[self._primary].silence()

    def hear(self) -> None:
        """Let the replica follow again: it asks for what it has missed."""
        self._links[self._primary].silence(silent=False)
        self._links[self._primary].cut()

    async def go_back(self, *, kill: bool = True) -> None:
        """Promote the lagging replica, and kill the primary or make it a replica."""
        old, new = self._nodes[self._primary], self._nodes[1 - self._primary]
        await leave_witness(old.url)
        if kill:
            await old.stop()
        await _report(new, "REPLICAOF", "NO", "ONE")
        self.name.lead_to(new.url)
        await expect_no_witness(new.url)
        self.hear()
        self._primary = 1 - self._primary
        if kill:
            await old.start()
        await self._follow()

    async def switch(self) -> None:
        """Have the primary hand over to its replica: it holds writes back until they agree."""
        old, new = self._nodes[self._primary], self._nodes[1 - self._primary]
        await _report(old, "FAILOVER")
        await _shows(new, b"role:master")
        self.name.lead_to(new.url)
        self._primary = 1 - self._primary
        await self._follow()

    def go_back_and_return(self) -> None:
        """Make the primary its replica's replica and again its primary. Nothing else happens.

        It loses what the replica has not heard, and keeps its connections. What it writes then
        has the places of what was lost, and is confirmed by the replica.
        """
        old, new = self._nodes[self._primary], self._nodes[1 - self._primary]
        with _blocking(old.url) as first, _blocking(new.url) as second:
            before = first.info("replication")
            _poll(lambda: first.info("clients")["blocked_clients"] == 0, "nobody waits there")
            second.execute_command("REPLICAOF", "NO", "ONE")
            for replica, link in (
                (first, self._links[1 - self._primary]),
                (second, self._links[self._primary]),
            ):
                # Not over the link, which the loop keeps: it stands still.
                replica.execute_command("REPLICAOF", "127.0.0.1", link.target_port)
                _poll(partial(_is_in_touch, replica), "the replica is in touch")
                if replica is first:
                    replica.execute_command("REPLICAOF", "NO", "ONE")
            while first.info("replication")["master_repl_offset"] <= before["master_repl_offset"]:
                first.set("beside", "x" * 1000, px=60_000)
            assert first.wait(1, 10_000) == 1

    async def _follow(self) -> None:
        """Make the other node the primary's replica, and wait until it has what that has."""
        primary, replica = self._nodes[self._primary], self._nodes[1 - self._primary]
        await _report(replica, "REPLICAOF", "127.0.0.1", self._links[self._primary].port)
        await _shows(replica, b"master_link_status:up")
        # A failover by the primary asks for a replica that it knows to be online.
        await _shows(primary, b"state=online")


@contextlib.asynccontextmanager
async def rolling_back(*options: str, kept: Kept = "rdb") -> AsyncGenerator[Rollback, None]:
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
        server = Rollback(directory, *options, kept=kept)
        try:
            await server.start()
            yield server
        finally:
            await server.stop()


@contextlib.asynccontextmanager
async def replicas(ports: tuple[int, int]) -> AsyncGenerator[Replicas, None]:
    """Run a primary and its replica, on these ports, behind one name."""
    with short_directory() as one, short_directory() as other:
        common = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
        nodes = [
            OwnServer(directory, "--port", str(port), *common)
            for directory, port in zip((one, other), ports, strict=True)
        ]
        async with (
            Proxy(nodes[0].url) as name,
            Proxy(f"redis://127.0.0.1:{ports[0]}") as first,
            Proxy(f"redis://127.0.0.1:{ports[1]}") as second,
        ):
            made = Replicas(name, nodes, [first, second])
            try:
                await made.start()
                yield made
            finally:
                for node in nodes:
                    await node.stop()


async def leave_witness(url: str) -> None:
    """Write what a server forgets if its history goes back."""
    async with sender_to(url) as sender:
        await sender.send("SET", _WITNESS, "1", "PX", 600_000, repeatable=True)


async def expect_no_witness(url: str) -> None:
    """Fail unless a server has forgotten the witness."""
    async with sender_to(url) as sender:
        lost = not await sender.send("EXISTS", _WITNESS, repeatable=True)
    assert lost, "the server's history did not go back"


async def _report(node: OwnServer, *command: str | int) -> None:
    async with sender_to(node.url) as sender:
        await sender.send(*command, repeatable=True)


async def _shows(node: OwnServer, what: bytes) -> None:
    """Wait until a node says something of its replication."""
    async with sender_to(node.url) as sender:

        async def shown() -> bool:
            info: bytes = await sender.send("INFO", "replication", repeatable=True)
            return what in info

        await eventually(shown, f"{what.decode()} at {node.url}", timeout_s=_ANSWERS_WITHIN_S)


@contextlib.contextmanager
def _blocking(url: str) -> Generator[Any]:
    with cast("Any", Redis).from_url(url) as client:
        yield client


def _is_in_touch(replica: Any) -> bool:
    return bool(replica.info("replication")["master_link_status"] == "up")


def _poll(condition: Callable[[], bool], described: str) -> None:
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, described
        time.sleep(0.01)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or a directory, over another."""
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
