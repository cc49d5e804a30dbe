"""Files that only their owner may read, as they hold payloads or keys."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

Opener: TypeAlias = Callable[[str, int], int]

_OF_ITS_OWNER = 0o600
_OF_OTHERS = 0o077
# Of a name that is as long as a file system takes, and more is put to it.
_NAME_SHOWN = 50
# There a name is that of an open file, and what would take its place would not be it.
_OPEN_FILES = ("/dev/", "/proc/")


class NotPrivate(PermissionError):
    """Other users have rights on a file, and its file system keeps them. Nothing was written."""


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone: an ``opener`` of `open`.

    Others lose their rights on one that is there already, before anything is written to it. What is
    no regular file, such as a pipe or a terminal, keeps its rights. Errors: OSError; NotPrivate if
    others have rights that cannot be taken away, as on vfat, or on another user's file.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC, _OF_ITS_OWNER)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            _close_to_others(descriptor, path)
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_private(path: str | Path, data: bytes) -> None:
    """Write a file for its owner alone, and leave what is there until all is written.

    A process that ends meanwhile leaves the earlier content. What cannot be replaced is opened and
    written: a device, a pipe, a file that is mounted by itself, another user's, or one in a folder
    that takes no new files. A file that is protected from writing stays. Errors: OSError;
    NotPrivate.
    """
    target = Path(os.path.realpath(path))
    if not str(Path(path).absolute()).startswith(_OPEN_FILES) and _is_replaceable(target):
        try:
            _replace(target, data, private)
        except OSError as error:
            if error.errno != errno.EBUSY:  # as with the file of a container that is mounted alone
                raise
        else:
            # It is written: some folders may not be read, and some file systems sync none.
            with suppress(OSError):
                sync_folder(target.parent)
            return
    with open(path, "wb", opener=private) as file:
        file.write(data)


def write_whole(path: Path, data: bytes, *, opener: Opener = private) -> None:
    """Write a file, whole or not at all, and have it on the disk. Errors: OSError."""
    _replace(path, data, opener)
    sync_folder(path.parent)


def _replace(path: Path, data: bytes, opener: Opener) -> None:
    coming = path.with_name(f".{path.name[:_NAME_SHOWN]}.{secrets.token_hex(4)}")
    try:
        with open(coming, "xb", opener=opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        coming.replace(path)
    finally:
        coming.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write the folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _close_to_others(descriptor: int, path: str) -> None:
    if not _open_to_others(descriptor):
        return
    reason = "chmod has no effect"
    try:
        os.fchmod(descriptor, _OF_ITS_OWNER)
    except OSError as error:
        reason = f"chmod: {error.strerror}"
    if rights := _open_to_others(descriptor):
        problem = f"rights of other users on it ({rights:03o}) cannot be taken away: {reason}"
        raise NotPrivate(errno.EPERM, problem, path)


def _open_to_others(descriptor: int) -> int:
    return stat.S_IMODE(os.fstat(descriptor).st_mode) & _OF_OTHERS


def _is_replaceable(target: Path) -> bool:
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return False
    try:
        found = target.lstat()
    except FileNotFoundError:
        return True
    is_own_file = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_own_file and os.access(target, os.W_OK)
