"""The keeper of one embedded server: its parent, and the one that ends it.

Run as a script (``embedded_keeper.py DIRECTORY BINARY private|kept REPORT_FD``) in a session of
its own. It imports nothing but the standard library: every start of an embedded server waits for
it. ``embedded.py`` describes the locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType

USERS_LOCK = "users.lock"
START_LOCK = "start.lock"
KEEPER_LOCK = "keeper.lock"
SERVER_LOCK = "server.lock"
SOCKET = "redis.sock"
LOG = "server.log"

SHUTDOWN_S = 10.0
TEMPORARY = "redis-state-"
# sun_path holds 104 bytes on macOS and 108 on Linux.
_LONGEST_SOCKET_PATH = 100
_LOG_TAIL_LINES = 12
_LOG_TAIL_BYTES = 4096


def open_lock(path: Path) -> int:
    """Open a lock file, creating it. Children that exec do not inherit the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, operation: int) -> bool:
    """Take a flock if nobody is in the way."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask_server(socket_path: Path) -> dict[str, str] | None:
    """Return the server's own description, or None while it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1.0)
            link.connect(str(socket_path))
            link.sendall(b"PING\r\nINFO server\r\n")
            with link.makefile("rb") as reply:
                if reply.readline() != b"+PONG\r\n":
                    return None
                text = reply.read(int(reply.readline()[1:])).decode()
    except (OSError, ValueError):
        return None
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def is_loading(socket_path: Path) -> bool:
    """Return whether the server says that it still loads its data."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            # While it loads it answers now and then.
            link.settimeout(5.0)
            link.connect(str(socket_path))
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith(b"-LOADING")
    except OSError:
        return False


def log_tail(directory: Path) -> str:
    """Return the last lines of the server's log, or an empty string."""
    with contextlib.suppress(OSError), (directory / LOG).open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL_BYTES))
        lines = log.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])
    return ""


def remove_tree(directory: Path) -> None:
    """Remove a private directory. Nobody who comes too late finds half of it."""
    with contextlib.suppress(OSError):
        discard_tree(directory.rename(f"{directory}.gone"))


def discard_tree(renamed: Path) -> None:
    """Remove what `remove_tree` has renamed."""
    shutil.rmtree(renamed, ignore_errors=True)


def discard_socket(directory: Path, path: Path | None = None) -> None:
    """Remove a directory's socket that is elsewhere, with the directory that was made for it.

    What a copy of the directory has a link to stays: it is another server's.
    """
    with contextlib.suppress(OSError):
        path = (directory / SOCKET).readlink() if path is None else path
        if path.parent.name.startswith(_elsewhere(directory)):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


def _elsewhere(directory: Path) -> str:
    return f"{TEMPORARY}{zlib.crc32(os.fsencode(directory)):08x}-"


class Keeper:
    """One server and the reasons to end it, which arrive in ``events``."""

    def __init__(self, directory: Path, binary: str, *, private: bool, report_fd: int) -> None:
        self._directory = directory
        self._binary = binary
        self._private = private
        self._report_fd = report_fd
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> None:
        """Start the server, wait for the end of its use, and leave nothing behind."""
        # All open before anything lives: the directory may be deleted under us at any time.
        users_lock = open_lock(Path(USERS_LOCK))
        own_lock, server_lock = open_lock(Path(KEEPER_LOCK)), open_lock(Path(SERVER_LOCK))
        if not (try_lock(own_lock, fcntl.LOCK_EX) and try_lock(server_lock, fcntl.LOCK_EX)):
            self._report("busy")
            return
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        try:
            self._clear_stale_socket()
            socket_path = self._place_socket()
            try:
                server = self._spawn(socket_path, server_lock)
                self._keep(server, socket_path, users_lock)
            finally:
                discard_socket(self._directory, socket_path)
                Path(SOCKET).unlink(missing_ok=True)
        except OSError as error:
            self._report("failed", f"{self._binary}: {error}")
        finally:
            if self._private:
                os.chdir("/")
                remove_tree(self._directory)

    def _keep(self, server: subprocess.Popen[bytes], socket_path: Path, users_lock: int) -> None:
        self._watch(self._wait_until_unused, users_lock)
        self._watch(self._wait_until_ready, socket_path)
        self._watch(self._wait_until_dead, server)
        while (event := self._events.get()) == "ready":
            self._report("ready")
        if event == "dead":
            self._report("failed", f"{self._binary} ended with status {server.returncode}")
            return
        server.terminate()
        try:
            server.wait(SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    @staticmethod
    def _watch(wait: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=wait, args=arguments, daemon=True).start()

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._events.put("stop")

    def _wait_until_unused(self, users_lock: int) -> None:
        # The kernel grants this when the last user is gone, however it went.
        fcntl.flock(users_lock, fcntl.LOCK_EX)
        self._events.put("unused")

    def _wait_until_ready(self, socket_path: Path) -> None:
        while ask_server(socket_path) is None:
            time.sleep(0.005)
        self._events.put("ready")

    def _wait_until_dead(self, server: subprocess.Popen[bytes]) -> None:
        server.wait()
        self._events.put("dead")

    def _spawn(self, socket_path: Path, server_lock: int) -> subprocess.Popen[bytes]:
        kept = ("--appendonly", "yes", "--appendfsync", "everysec")
        options = ("--appendonly", "no") if self._private else kept
        return subprocess.Popen(
            [
                *(self._binary, "--port", "0", "--save", "", "--dir", ".", "--daemonize", "no"),
                *("--unixsocket", str(socket_path), "--unixsocketperm", "700", *options),
                # A large value that expires would hold up all calls.
                *("--lazyfree-lazy-expire", "yes"),
            ],
            stdin=subprocess.DEVNULL,
            # Redis 7.2 and later refuse to start in a locale that is not installed.
            env={**os.environ, "LC_ALL": "C"},
            # With the lock inherited, the file stays locked until the server itself is gone.
            pass_fds=(server_lock,),
            preexec_fn=_end_with_parent(),  # noqa: PLW1509 - no other thread has been started yet
        )

    def _place_socket(self) -> Path:
        """Return a path that fits into a socket address; a link leads there if it is elsewhere."""
        here = self._directory / SOCKET
        if _fits(here):
            return here
        about = Path().stat()
        # The same at each start. No other directory has it, also of another user or container.
        path = self._short_path(f"{about.st_dev:x}-{about.st_ino:x}")
        if not _is_own(path.parent):
            path = self._short_path(os.urandom(6).hex())
            path.parent.mkdir(mode=0o700)
        Path(SOCKET).symlink_to(path)
        return path

    def _short_path(self, name: str) -> Path:
        holder = _elsewhere(self._directory) + name
        short = Path("/tmp", holder, SOCKET)  # noqa: S108 - in a directory that nobody else can open
        preferred = Path(os.environ.get("TMPDIR", ""), holder, SOCKET)
        return preferred if preferred.is_absolute() and _fits(preferred) else short

    def _clear_stale_socket(self) -> None:
        discard_socket(self._directory)
        Path(SOCKET).unlink(missing_ok=True)

    def _report(self, outcome: str, reason: str = "") -> None:
        """Notify the process that starts this one, once. It may be gone already."""
        if self._report_fd < 0:
            return
        tail = log_tail(self._directory) if reason else ""
        line = json.dumps([outcome, f"{reason}\n{tail}".strip()])
        with contextlib.suppress(OSError):
            os.write(self._report_fd, f"{line}\n".encode())
        os.close(self._report_fd)
        self._report_fd = -1


def _is_own(holder: Path) -> bool:
    """Make a directory for a socket; return False if another user's, or an open one, is there."""
    with contextlib.suppress(FileExistsError):
        holder.mkdir(mode=0o700)
    about = holder.lstat()
    is_closed = stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
    return is_closed and about.st_uid == os.geteuid()


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH


def _end_with_parent() -> Callable[[], None] | None:
    """Return what a child runs so that the kernel ends it if the keeper is killed (Linux)."""
    try:
        import ctypes  # noqa: PLC0415 - a Python may be built without it

        prctl = ctypes.CDLL(None).prctl  # macOS has none
    except (ImportError, OSError, AttributeError):
        return None
    parent, set_parent_death_signal = os.getpid(), 1

    def arm() -> None:
        prctl(set_parent_death_signal, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def main(arguments: list[str]) -> None:
    """Keep one server in the current directory."""
    # A caller's blocked signals would be inherited and make the server deaf to SIGTERM.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    directory, binary, kind, report_fd = arguments
    Keeper(Path(directory), binary, private=kind == "private", report_fd=int(report_fd)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
