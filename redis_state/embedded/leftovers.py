"""What is left of private servers that were killed together with their keepers and all users.

A private folder has a mark. A start of another private server removes the marked folders whose
locks nobody holds. What is kept in a folder of a user's own has no mark, and is never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import tempfile
import time
from pathlib import Path

from redis_state.embedded import supervisor as keeper

MARK = "private"
_NAME = re.compile(rf"{re.escape(keeper.TEMPORARY)}[a-z0-9_]{{8}}(\.gone)?")
_LOCKS = (keeper.START_LOCK, keeper.USERS_LOCK, keeper.KEEPER_LOCK, keeper.SERVER_LOCK)
# Between the making of a folder and its first lock its owner has none.
_YOUNG_S = 60.0


def make_private_folder() -> Path:
    """Make a marked folder, after removing those of dead owners."""
    root = Path(tempfile.gettempdir()).resolve()
    _remove_leftovers(root)
    home = Path(tempfile.mkdtemp(prefix=keeper.TEMPORARY, dir=root))
    handle = os.open(home / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as mark:
        mark.write(_this_machine())
    return home


def keep(home: Path) -> None:
    """Take the mark away from a folder whose data is to be kept."""
    (home / MARK).unlink(missing_ok=True)


def _remove_leftovers(root: Path) -> None:
    with contextlib.suppress(OSError):
        for found in root.iterdir():
            if _NAME.fullmatch(found.name):
                # One that cannot be removed keeps none of the others, and no start.
                with contextlib.suppress(OSError, ValueError):
                    _remove_if_left(found)


def _remove_if_left(folder: Path) -> None:
    about = folder.lstat()
    if about.st_uid != os.geteuid() or folder.is_symlink() or not folder.is_dir():
        return
    if folder.suffix:
        # Its remover was killed, or is at work: two may be.
        keeper.discard_tree(folder)
        return
    mark = folder / MARK
    if time.time() - mark.lstat().st_mtime < _YOUNG_S or mark.read_text() != _this_machine():
        return
    with contextlib.ExitStack() as held:
        for name in _LOCKS:
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                held.callback(os.close, lock)
                if not keeper.try_lock(lock, fcntl.LOCK_EX):
                    return
        # A process that has kept it meanwhile had the lock of starts.
        if mark.exists():
            keeper.discard_socket(folder)
            keeper.remove_tree(folder)


def _this_machine() -> str:
    """Return the name of this machine. On a shared file system others may not see its locks."""
    return socket.gethostname()
