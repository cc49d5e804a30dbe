"""A Redis Cluster of real processes: its nodes are killed and stopped, its slots moved."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import redis as blocking
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import RedisError

from redis_state.testing import eventually
from redis_state.transport.cluster.slots import SLOTS, slot_of
from redis_state.transport.connections.tls import TlsConnection
from tests.support.processes import children
from tests.support.servers.faults import own_binary, short_directory
from tests.support.servers.ports import free_port
from tests.support.servers.sets.asking import PATIENCE_S, Clients

# With replicas a lost primary is to be replaced soon. Without, a busy machine must not seem lost.
NODE_TIMEOUT_MS, _PATIENT_TIMEOUT_MS = 2_000, 15_000


class Cluster:
    """The nodes of a cluster by their ports: the primaries it begins with, then their replicas."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        *,
        primaries: int,
        replicas: int,
        options: Any,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        # With a certificate and its key all speak TLS.
        self._certificate = certificate
        self.ports: list[int] = []
        self.ids: dict[int, str] = {}
        self._primaries = primaries
        self._wanted = primaries * (1 + replicas)
        self._timeout_ms = NODE_TIMEOUT_MS if replicas else _PATIENT_TIMEOUT_MS
        self._stack = stack
        self._directory = directory
        self._options: list[str] = list(options)
        self._processes: dict[int, subprocess.Popen[Any]] = {}
        self._clients = Clients(self._open)

    @property
    def url(self) -> str:
        """The address for a store: of two of its nodes."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports[:2])
        if self._certificate is None:
            return f"redis+cluster://{hosts}"
        return f"rediss+cluster://{hosts}?ssl_ca_certs={self._certificate[0]}"

    async def start(self) -> None:
        """Start all nodes; return when each knows each, and every slot has a node."""
        self.ports = [free_port() for _ in range(self._wanted)]
        for port in self.ports:
            self.start_node(port)
        for port in self.ports:
            self.ids[port] = await eventually(partial(self._id, port), "a node answers")
        first, count = self.ports[: self._primaries], self._primaries
        for number, port in enumerate(first):
            slots = SLOTS * number // count, SLOTS * (number + 1) // count - 1
            await self.ask(port, "CLUSTER", "ADDSLOTSRANGE", *slots)
            await self.ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in self.ports[1:]:
            await self.ask(port, "CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        for number, port in enumerate(self.ports[self._primaries :]):
            of = self.ids[first[number % count]]

            async def joined(port: int = port, of: str = of) -> bool:
                with suppress(RedisError, OSError):
                    return bool(await self.ask(port, "CLUSTER", "REPLICATE", of) == "OK")
                return False

            await self._clients.until(joined, "a replica knows its primary")
        await self.settled()

    async def join(self) -> int:
        """Start one more primary, which has no slots; return its port."""
        port = free_port()
        self.start_node(port)
        self.ids[port] = await eventually(partial(self._id, port), "a node answers")
        self.ports.append(port)
        self._wanted += 1
        await self.ask(port, "CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        await self.settled()
        return port

    def start_node(self, port: int) -> None:
        """Start a node, or start it again on what it has kept."""
        directory = self._directory / str(port)
        directory.mkdir(exist_ok=True)
        options: dict[str, Any] = {
            "bind": "127.0.0.1",
            "dir": directory,
            "save": "",
            "cluster-enabled": "yes",
            "cluster-node-timeout": self._timeout_ms,
            "repl-diskless-sync-delay": 0,
        }
        if self._certificate is None:
            options["port"] = port
        else:
            cert, key = self._certificate
            options |= {"port": 0, "tls-port": port, "tls-cert-file": cert, "tls-key-file": key}
            options |= {"tls-ca-cert-file": cert, "tls-auth-clients": "no"}
            options |= {"tls-cluster": "yes", "tls-replication": "yes"}
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [str(own_binary()), *given, *self._options]
        process = children.popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        self._processes[port] = self._stack.enter_context(process)

    async def settled(self) -> None:
        """Wait until all nodes see each other, all slots served, and replicas in touch."""

        async def sound() -> bool:
            with suppress(RedisError, OSError):
                for port in self.ports:
                    if not await self._sees_all(port):
                        return False
                return True
            return False

        await self._clients.until(sound, "the cluster is whole")

    async def owner(self, slot: int, *, seen_by: int | None = None) -> int:
        """Ask a node, or any that answers, which port has a slot."""
        for port in self.ports if seen_by is None else [seen_by]:
            with suppress(RedisError, OSError):
                for first, last, holder, *_ in await self.ask(port, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return int(holder[1])
        raise AssertionError(f"slot {slot} has no node")

    async def slots(self, port: int) -> set[int]:
        """Return the slots of a node, by what it knows itself."""
        rows = await self.ask(port, "CLUSTER", "SLOTS")
        own = [(first, last) for first, last, holder, *_ in rows if int(holder[1]) == port]
        return {slot for first, last in own for slot in range(first, last + 1)}

    async def primaries(self) -> list[int]:
        """List the nodes that have slots, by what the first that answers knows."""
        for port in self.ports:
            with suppress(RedisError, OSError):
                rows = await self.ask(port, "CLUSTER", "SLOTS")
                return sorted({int(row[2][1]) for row in rows})
        raise AssertionError("no node answers")

    async def given_up(self, port: int) -> None:
        """Wait until the other nodes agree that a node is lost."""
        others = [each for each in self.ports if each != port]

        async def agreed() -> bool:
            for other in others:
                with suppress(RedisError, OSError):
                    nodes: str = await self.ask(other, "CLUSTER", "NODES")
                    if f"{self.ids[port]} " in nodes:
                        (line,) = (
                            each for each in nodes.splitlines() if each.startswith(self.ids[port])
                        )
                        return "fail" in line.split()[2].split(",")
            return False

        await self._clients.until(agreed, "the nodes agree that it is lost")

    async def failed_over(self, port: int) -> None:
        """Wait until a node that was lost has no slot by what the others know."""

        async def elsewhere() -> bool:
            for other in self.ports:
                with suppress(RedisError, OSError):
                    rows = await self.ask(other, "CLUSTER", "SLOTS")
                    covered = sum(last - first + 1 for first, last, *_ in rows)
                    return covered == SLOTS and all(row[2][1] != port for row in rows)
            return False

        others = [each for each in self.ports if each != port]
        order, self.ports = self.ports, [*others, port]
        try:
            await self._clients.until(elsewhere, "another node has its slots")
        finally:
            self.ports = order

    async def begin_move(self, slot: int, target: int) -> int:
        """Mark a slot as being moved; return the node that has it."""
        source = await self.owner(slot)
        await self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        await self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])
        return source

    async def move_keys(self, slot: int, source: int, target: int, *, most: int = 0) -> int:
        """Move the keys of a slot, so many at most; return how many were moved."""
        moved = 0
        async with self._clients.of(source) as client:
            while most == 0 or moved < most:
                count = 100 if most == 0 else most - moved
                keys: list[str] = await client.execute_command(
                    "CLUSTER", "GETKEYSINSLOT", slot, count
                )
                if not keys:
                    break
                command = ["MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys]
                await client.execute_command(*command)
                moved += len(keys)
        return moved

    async def end_move(self, slot: int, target: int) -> None:
        """Give a slot to its new node."""
        for port in [target, *(each for each in self.ports if each != target)]:
            with suppress(RedisError, OSError):
                await self.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    async def move(self, slots: Iterable[int], target: int) -> None:
        """Move slots with their keys, one after the other."""
        for slot in slots:
            if await self.owner(slot) == target:
                continue
            source = await self.begin_move(slot, target)
            await self.move_keys(slot, source, target)
            await self.end_move(slot, target)

    async def empty_slot(self, port: int) -> int:
        """Find a slot of a node that has no keys."""
        for first, last, holder, *_ in await self.ask(port, "CLUSTER", "SLOTS"):
            if holder[1] == port:
                for slot in range(first, last + 1):
                    if await self.ask(port, "CLUSTER", "COUNTKEYSINSLOT", slot) == 0:
                        return slot
        raise AssertionError("no slot is empty")

    def give_at_once(self, slot: int, source: int, target: int) -> None:
        """Give an empty slot to another node without waiting for the loop of the caller."""
        node = self.ids[target]
        for port in (target, source):
            with cast("Any", blocking).Redis("127.0.0.1", port) as client:
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node)

    async def migrates_slots(self) -> bool:
        """Tell whether the nodes move slots by themselves (Valkey 9)."""
        listed: Any = await self.ask(self.ports[0], "COMMAND", "DOCS", "CLUSTER|MIGRATESLOTS")
        return bool(listed)

    async def migrate(self, first: int, last: int, target: int) -> int:
        """Have each owner of slots in a range move them to a node, all at once; return how many."""
        sources: dict[int, list[int]] = {}
        rows = await self.ask(target, "CLUSTER", "SLOTS")
        for start, end, holder, *_ in rows:
            low, high = max(first, start), min(last, end)
            if low <= high and holder[1] != target:
                sources.setdefault(int(holder[1]), []).extend((low, high))
        for source, ranges in sources.items():
            command = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *ranges, "NODE", self.ids[target]]
            await self.ask(source, *command)

        async def over() -> bool:
            rows = await self.ask(target, "CLUSTER", "SLOTS")
            held = [row for row in rows if row[2][1] == target]
            return all(
                any(row[0] <= slot <= row[1] for row in held)
                for ranges in sources.values()
                for slot in ranges
            )

        await self._clients.until(over, "the slots are moved")
        moved = [high - low + 1 for each in sources.values() for low, high in _pairs(each)]
        return sum(moved)

    async def ask(self, port: int, *command: Any) -> Any:
        """Send a command to a node. Errors: RedisError, OSError."""
        async with self._clients.of(port) as client:
            return await client.execute_command(*command)

    def client(self, port: int) -> AbstractAsyncContextManager[Any]:
        """Give a client of a node."""
        return self._clients.of(port)

    def _open(self, port: int) -> Any:
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            tls = {"connection_class": TlsConnection, "ssl_cert_reqs": "none"}
            tls["ssl_check_hostname"] = False
        pool = ConnectionPool(
            host="127.0.0.1", port=port, decode_responses=True, socket_timeout=5, **tls
        )
        client = Redis.from_pool(pool)
        # As it was sent: redis-py reads some replies in its own way.
        client.response_callbacks.clear()
        return client

    def kill(self, port: int) -> None:
        """Kill a node."""
        self._processes[port].kill()
        self._processes[port].wait()

    def status(self, port: int) -> int | None:
        """Return how a node's process ended, None while it runs."""
        return self._processes[port].returncode

    def stop(self, port: int) -> None:
        """Have a node stand still, with its connections open."""
        self._processes[port].send_signal(signal.SIGSTOP)

    def resume(self, port: int) -> None:
        """Have a stopped node go on."""
        self._processes[port].send_signal(signal.SIGCONT)

    async def _id(self, port: int) -> str:
        with suppress(RedisError, OSError):
            return str(await self.ask(port, "CLUSTER", "MYID"))
        return ""

    async def _sees_all(self, port: int) -> bool:
        stated: str = await self.ask(port, "CLUSTER", "INFO")
        fields = dict(line.split(":", 1) for line in stated.split() if ":" in line)
        if fields["cluster_state"] != "ok" or fields["cluster_known_nodes"] != str(self._wanted):
            return False
        nodes: str = await self.ask(port, "CLUSTER", "NODES")
        if "fail" in nodes or "handshake" in nodes:
            return False
        info: str = await self.ask(port, "INFO", "replication")
        return "master_link_status:down" not in info


def _pairs(ranges: list[int]) -> Iterable[tuple[int, int]]:
    return zip(ranges[::2], ranges[1::2], strict=True)


def tag_in(slots: Iterable[int]) -> str:
    """Find a text whose slot is one of these."""
    wanted = set(slots)
    return next(f"t{number}" for number in range(10**6) if slot_of(f"t{number}") in wanted)


@asynccontextmanager
async def running_cluster(
    *options: str,
    primaries: int = 3,
    replicas: int = 0,
    certificate: tuple[Path, Path] | None = None,
) -> AsyncGenerator[Cluster]:
    """Run a cluster for the length of the block."""
    with short_directory() as directory, ExitStack() as stack:
        made = Cluster(
            stack,
            directory,
            primaries=primaries,
            replicas=replicas,
            options=options,
            certificate=certificate,
        )
        async with asyncio.timeout(PATIENCE_S):
            await made.start()
        yield made
