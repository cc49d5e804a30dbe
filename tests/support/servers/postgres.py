"""A PostgreSQL of the tests' own, which can be killed and started again on its files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import children
from tests.support.servers.faults import certificate, short_directory
from tests.support.servers.ports import free_port

_USER = "postgres"
# The socket of the fork server, in a folder that is there for as long as the run lasts.
_SHARED = "REDIS_STATE_TEST_FORKS"
_START_S = 60.0
_OPTIONS = (
    *("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "listen_addresses="),
    *("max_connections=60", "autovacuum=off", "max_wal_size=128MB", "restart_after_crash=off"),
)


class OwnPostgres:
    """A server on a socket in a folder of its own, by the user that its package makes.

    Nothing is synced to the disk: a process that is killed loses nothing by that.
    """

    def __init__(self) -> None:
        # Options beside those of all servers, for the next start; a port of TCP among them.
        self.more: list[str] = []
        self.port: int | None = None
        self._programs = programs()
        self._user = _USER if os.geteuid() == 0 else None
        self._stack = ExitStack()
        self.folder: Path = self._stack.enter_context(short_directory())
        self._running: ExitStack | None = None
        self._process: subprocess.Popen[Any] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.url: str = f"postgresql://{_USER}@/{_USER}?host={self.folder}"
        self._make_files()

    def use_tls(self) -> Path:
        """Have the next start serve TLS at a port of TCP; return the certificate."""
        cert, key = certificate(self.folder, "IP:127.0.0.1")
        owner = (self.folder / "data").stat()
        for path in (cert, key):
            os.chown(path, owner.st_uid, owner.st_gid)
        key.chmod(0o600)
        self.more = ["ssl=on", f"ssl_cert_file={cert}", f"ssl_key_file={key}"]
        self.port = free_port()
        return cert

    def start(self) -> None:
        """Start it from the files that are there; return once it answers."""
        named = [*_OPTIONS, f"unix_socket_directories={self.folder}", *self.more]
        if self.port is not None:
            named += ["listen_addresses=127.0.0.1", f"port={self.port}"]
        options = [f"-c{option}" for option in named]
        self._running = ExitStack()
        log = self._running.enter_context((self.folder / "log").open("ab"))
        self._process = self._running.enter_context(
            children.popen(
                [self._programs / "postgres", "-D", self.folder / "data", *options],
                stdout=log,
                stderr=log,
                **self._as_user(),
            )
        )
        deadline = time.monotonic() + _START_S
        asking: list[str | Path] = [self._programs / "pg_isready", "-q", "-h", self.folder]
        if self.port is not None:
            asking += ["-p", str(self.port)]
        while children.run(asking).returncode:
            assert self._process.poll() is None, "PostgreSQL has ended"
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill all of its processes (SIGKILL). Safe to repeat."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGSTOP)
            gone = self.signal(signal.SIGKILL)
            self._process.wait()
            # None of them may write while the next server reads the files.
            deadline = time.monotonic() + _START_S
            while any(_lives(pid) for pid in gone):
                assert time.monotonic() < deadline, "PostgreSQL does not end"
                time.sleep(0.005)
        if self._running is not None:
            self._running.close()
        # What a killed server leaves keeps the next one from starting at once.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the server and its processes, each of which leads a group of its own."""
        assert self._process is not None
        pid = self._process.pid
        begun = Path(f"/proc/{pid}/task/{pid}/children")
        pids = [pid, *map(int, begun.read_text().split())] if begun.exists() else [pid]
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        return pids

    def close(self) -> None:
        """End it, and remove its files."""
        self.kill()
        self._stack.close()

    def _make_files(self) -> None:
        """Make its files: once for all test processes of a run, as a copy costs a tenth."""
        own, address = self.folder / "data", os.environ.get(_SHARED)
        if address is None:
            self._init(own)
            return
        shared = Path(address).parent / "postgres"
        half = shared.with_suffix(".half")
        with shared.with_suffix(".lock").open("w") as lock:
            flock(lock, LOCK_EX)
            if not shared.exists():
                self._init(own)
                # Who made it may have been killed.
                shutil.rmtree(half, ignore_errors=True)
                _copy(own, half)
                half.rename(shared)
                return
        _copy(shared, own)

    def _init(self, data: Path) -> None:
        made = children.run(
            [
                *(self._programs / "initdb", "-D", data, "-A", "trust"),
                *("-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            **self._as_user(),
        )
        assert made.returncode == 0, made.stderr.decode("utf-8", "replace")[-300:]

    def _as_user(self) -> dict[str, Any]:
        return {"cwd": self.folder, **({} if self._user is None else {"user": self._user})}


def _copy(files: Path, to: Path) -> None:
    """Copy a folder with files of any owner."""
    children.run(["cp", "-Rp", files, to], check=True)


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def programs() -> Path:
    """Find its programs: Debian keeps them off the PATH. Skips the test where there are none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    pytest.skip("no PostgreSQL here: apt-get install postgresql")
