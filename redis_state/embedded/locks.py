"""The lock files of an embedded server: see `redis_state.embedded.server` for what each means."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from redis_state.embedded import supervisor as keeper

POLL_S = 0.01


@dataclass(eq=False)
class LockFiles:
    """The open lock files. They stay open, so leaving works in a directory that was deleted."""

    users: int
    start: int
    keeper: int
    server: int

    @classmethod
    def open(cls, home: Path) -> LockFiles:
        """Open those of a directory."""
        names = (keeper.USERS_LOCK, keeper.START_LOCK, keeper.KEEPER_LOCK, keeper.SERVER_LOCK)
        opened: list[int] = []
        with contextlib.ExitStack() as undo:
            for name in names:
                opened.append(keeper.open_lock(home / name))
                undo.callback(os.close, opened[-1])
            undo.pop_all()
        return cls(*opened)

    def close(self) -> None:
        """Close them, which gives back what only this process holds."""
        for descriptor in (self.users, self.start, self.keeper, self.server):
            os.close(descriptor)

    def server_lives(self) -> bool:
        """Return whether the server or its keeper is alive."""
        return not is_free(self.server)

    def keeper_lives(self) -> bool:
        """Return whether the keeper is alive."""
        return not is_free(self.keeper)

    def deserted(self) -> bool:
        """Return, after releasing it and under the start lock, whether no user is left."""
        if is_free(self.users, fcntl.LOCK_EX):
            return True
        # In the way is another user's shared lock, or the exclusive one of a keeper at its end.
        return not is_free(self.users)


class StartDeadline:
    """When a start or an end is given up.

    It begins again while the server of ``home`` says that it loads its data: that takes as long as
    there is data. It begins once more when that has ended, for what follows.
    """

    def __init__(self, seconds: float, home: Path | None = None) -> None:
        self._seconds = seconds
        self._home = home
        self._at = time.monotonic() + seconds
        self._has_loaded = False

    @property
    def left_s(self) -> float:
        """Return how much is left."""
        return max(0.0, self._at - time.monotonic())

    def passed(self) -> bool:
        """Return whether the start is given up now."""
        if self.left_s:
            return False
        loads = self._home is not None and keeper.is_loading(socket_of(self._home))
        if not (loads or self._has_loaded):
            return True
        self._has_loaded = loads
        self._at = time.monotonic() + self._seconds
        return False


def socket_of(home: Path) -> Path:
    """Return the path of a directory's socket, which may be elsewhere."""
    link = home / keeper.SOCKET
    try:
        return link.readlink()
    except OSError:
        return link


def is_free(descriptor: int, operation: int = fcntl.LOCK_SH) -> bool:
    """Return whether a lock could be taken now."""
    free = keeper.try_lock(descriptor, operation)
    if free:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return free


def lock_by(descriptor: int, operation: int, deadline: StartDeadline) -> None:
    """Take a lock by a deadline. Errors: TimeoutError."""
    while not keeper.try_lock(descriptor, operation):
        if deadline.passed():
            raise TimeoutError("another process is busy starting or ending it")
        time.sleep(POLL_S)


@contextlib.contextmanager
def exclusive(descriptor: int, deadline: StartDeadline) -> Generator[None, None, None]:
    """Hold a lock alone for the length of the block. Errors: TimeoutError."""
    lock_by(descriptor, fcntl.LOCK_EX, deadline)
    try:
        yield
    finally:
        # Closing would not do: a child forked meanwhile by another thread has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
