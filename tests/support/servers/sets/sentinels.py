"""A primary, its replicas and three Sentinels: real processes, to be killed and stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import RedisError

from redis_state.testing import eventually
from redis_state.transport.connections.tls import TlsConnection
from tests.support.processes import children
from tests.support.servers.faults import own_binary, short_directory
from tests.support.servers.sets.asking import PATIENCE_S, Clients

SERVICE = "mymaster"
# A failover that no test asked for, for a server that a busy machine kept from answering, may come
# before replicas are in sync: then acknowledged writes are lost.
_DOWN_AFTER_MS = 2000
_SENTINELS = 3
_REPLICAS = 2
# How often a Sentinel asks the servers, and greets the others. By default it is every ten and every
# two seconds, and four greetings go by before it corrects a server that came back as a primary.
_PERIODS: tuple[str | int, ...] = ("info-period", 1000, "publish-period", 500)


class SentinelSet:
    """The servers of a set by their ports, and its Sentinels."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        ports: Callable[[], int],
        *,
        password: str = "",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        # Of the servers; the Sentinels have another, which is this twice.
        self.password = password
        # With a certificate and its key all speak TLS.
        self._certificate = certificate
        self._stack = stack
        self._directory = directory
        self.ports: list[int] = [ports() for _ in range(1 + _REPLICAS)]
        self.sentinel_ports: list[int] = [ports() for _ in range(_SENTINELS)]
        self._servers: dict[int, subprocess.Popen[Any]] = {}
        self._clients = Clients(self._open)

    @property
    def url(self) -> str:
        """The address for a store."""
        return self.url_of(*self.sentinel_ports)

    def url_of(self, *ports: int) -> str:
        """Write the address with some of the Sentinels only."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        scheme, login, query = "redis+sentinel", "", list[str]()
        if self._certificate:
            scheme = "rediss+sentinel"
            query.append(f"ssl_ca_certs={self._certificate[0]}")
        if self.password:
            login = f":{self.password}@"
            query.append(f"sentinel_password={self.password * 2}")
        return f"{scheme}://{login}{hosts}/{SERVICE}" + ("?" + "&".join(query) if query else "")

    async def start(self) -> None:
        """Start all; return when the Sentinels know everybody."""
        for port in self.ports:
            self.start_server(port, primary=self.ports[0])

        async def followed() -> bool:
            with suppress(RedisError, OSError):
                return await self._is_followed(self.ports[0])
            return False

        # A Sentinel asks a primary for its replicas when it starts, and ten seconds later.
        await self._clients.until(followed, "the primary has its replicas")
        for port in self.sentinel_ports:
            self.start_sentinel(port, watching=self.ports[0])
        for port in self.sentinel_ports:
            await eventually(partial(self._hurries, port), "a Sentinel answers")
        await self.settled()

    def start_server(self, port: int, *, primary: int) -> None:
        """Start a server, as a replica unless it is the primary."""
        options = ["--bind", "127.0.0.1", "--save", ""]
        for line in self._listening(port):
            options += f"--{line}".split(" ")
        options += ["--dir", str(self._directory), "--repl-diskless-sync-delay", "0"]
        if self.password:
            options += ["--requirepass", self.password, "--masterauth", self.password]
        if port != primary:
            options += ["--replicaof", "127.0.0.1", str(primary)]
        self._servers[port] = self._run(options)

    async def primary(self) -> int:
        """Ask the Sentinels for the primary's port."""
        return int((await self._stated(self.sentinel_ports[0]))["port"])

    async def named_by(self, sentinel: int) -> int | None:
        """Ask a Sentinel for the primary's port; None if it does not answer yet."""
        with suppress(RedisError, OSError):
            return int((await self._stated(sentinel))["port"])
        return None

    async def settled(self) -> None:
        """Wait until every Sentinel sees one primary, which all its replicas follow."""

        async def all_known() -> bool:
            primary = None
            for port in self.sentinel_ports:
                with suppress(RedisError, OSError):
                    stated = await self._stated(port)
                    known = int(stated["num-slaves"]), int(stated["num-other-sentinels"])
                    if known != (_REPLICAS, _SENTINELS - 1) or stated["flags"] != "master":
                        return False
                    if primary not in (None, stated["port"]):
                        return False
                    primary = stated["port"]
            return primary is not None and await self._is_followed(int(primary))

        await self._clients.until(all_known, "the Sentinels know all")

    async def ask(self, port: int, *command: str | int) -> Any:
        """Send a command to a server or a Sentinel. Errors: RedisError, OSError."""
        async with self._clients.of(port) as client:
            return await client.execute_command(*command)

    def _open(self, port: int) -> Any:
        password = self.password * (2 if port in self.sentinel_ports else 1) or None
        tls: dict[str, Any] = {}
        if self._certificate:
            tls = {"connection_class": TlsConnection, "ssl_cert_reqs": "none"}
            tls["ssl_check_hostname"] = False
        pool = ConnectionPool(
            host="127.0.0.1",
            port=port,
            password=password,
            decode_responses=True,
            socket_timeout=5,
            **tls,
        )
        return Redis.from_pool(pool)

    def kill(self, port: int) -> None:
        """Kill a server."""
        self._servers[port].kill()
        self._servers[port].wait()

    def stop(self, port: int) -> None:
        """Have a server stand still, with its connections open."""
        self._servers[port].send_signal(signal.SIGSTOP)

    def resume(self, port: int) -> None:
        """Have a stopped server go on."""
        self._servers[port].send_signal(signal.SIGCONT)

    async def failover(self) -> None:
        """Have the Sentinels promote a replica of a healthy primary."""
        await self.ask(self.sentinel_ports[0], "SENTINEL", "FAILOVER", SERVICE)

    async def moved_from(self, port: int) -> None:
        """Wait until the Sentinels name another primary."""

        async def elsewhere() -> bool:
            return await self.primary() != port

        await self._clients.until(elsewhere, "another primary")

    async def _stated(self, port: int) -> dict[str, str]:
        stated: Any = await self.ask(port, "SENTINEL", "MASTER", SERVICE)
        if isinstance(stated, list):
            flat = cast("list[str]", stated)
            return dict(zip(flat[::2], flat[1::2], strict=True))
        # As redis-py 8 reads it: flags are a set.
        read = cast("dict[str, Any]", stated)
        flags = read["flags"]
        named = flags if isinstance(flags, str) else ",".join(flags)
        return {name: str(value) for name, value in read.items()} | {"flags": named}

    async def _hurries(self, sentinel: int) -> bool:
        with suppress(RedisError, OSError):
            return str(await self.ask(sentinel, "SENTINEL", "DEBUG", *_PERIODS)) == "OK"
        return False

    async def _is_followed(self, primary: int) -> bool:
        stated = await self.ask(primary, "INFO", "replication")
        replicas = [stated.get(f"slave{number}", {}) for number in range(_REPLICAS)]
        return stated["role"] == "master" and all(
            each.get("state") == "online" for each in replicas
        )

    def start_sentinel(self, port: int, *, watching: int) -> None:
        """Start a Sentinel that knows one primary."""
        file = self._directory / f"sentinel-{port}.conf"
        lines = [
            *self._listening(port),
            "bind 127.0.0.1",
            f"dir {self._directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {watching} 2",
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 3000",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {SERVICE} {self.password}")
            lines.append(f"requirepass {self.password * 2}")
        file.write_text("\n".join(lines) + "\n")
        self._run([str(file), "--sentinel"])

    def _listening(self, port: int) -> list[str]:
        if self._certificate is None:
            return [f"port {port}"]
        cert, key = self._certificate
        files = [f"tls-cert-file {cert}", f"tls-key-file {key}", f"tls-ca-cert-file {cert}"]
        return ["port 0", f"tls-port {port}", *files, "tls-auth-clients no", "tls-replication yes"]

    def _run(self, options: list[str]) -> subprocess.Popen[Any]:
        command = [str(own_binary()), *options]
        process = children.popen(command, stdout=subprocess.DEVNULL, cwd=self._directory)
        return self._stack.enter_context(process)


@asynccontextmanager
async def running_sentinels(
    ports: Callable[[], int], **options: Any
) -> AsyncGenerator[SentinelSet]:
    """Run a set for the length of the block."""
    with short_directory() as directory, ExitStack() as stack:
        made = SentinelSet(stack, directory, ports, **options)
        async with asyncio.timeout(PATIENCE_S):
            await made.start()
        yield made
