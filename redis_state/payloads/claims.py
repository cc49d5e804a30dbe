"""Stores of claims: a folder that all processes share, or a store of objects, such as a bucket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis_state.errors import ConfigError, InvalidField
from redis_state.private_file import NotPrivate, private, write_whole
from redis_state.serialization.claim_store import ClaimStore

log: logging.Logger = logging.getLogger(__name__)

_DAY = re.compile(r"\d{4}-\d\d-\d\d\Z")


class FolderClaims:
    """Claims in a folder, which all processes must share.

    Each file is for its owner alone. On a mount that gives every file the same rights, such as
    vfat, others may read them: the log has a warning.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._warned = False
        # Folders of namespaces that were there. Nothing here removes one.
        self._known: set[Path] = set()

    async def put(self, key: str, data: bytes) -> None:
        """Write a file, whole or not at all, and have it on the disk.

        Errors: OSError, also if the folder was there and has gone.
        """
        await asyncio.to_thread(self._write, self._path(key), self._folder_of(key), data)

    async def get(self, key: str) -> bytes | None:
        """Return a file's content, or None.

        Errors: OSError, also if nothing of the namespace is there: it may not be mounted.
        """
        return await asyncio.to_thread(self._read, self._path(key), self._folder_of(key))

    async def delete(self, key: str) -> None:
        """Delete a file, if there is one."""
        await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    async def prune(self, older_than: timedelta) -> int:
        """Delete what was written more than so many whole days ago; return how many files.

        Give more than the longest life of a task, with its forks and reruns: they name the same
        objects. Errors: InvalidField for less than a day.
        """
        if older_than < timedelta(days=1):
            raise InvalidField("older_than", "needs a day or more")
        return await asyncio.to_thread(self._prune, datetime.now(UTC).date() - older_than)

    def _path(self, key: str) -> Path:
        path = self._folder.joinpath(*key.split("/"))
        if ".." in key.split("/") or not path.is_relative_to(self._folder):
            raise InvalidField("key", "leaves the folder")
        return path

    def _folder_of(self, key: str) -> Path:
        return self._folder / key.partition("/")[0]

    def _read(self, path: Path, place: Path) -> bytes | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if not place.is_dir():
                raise
            data = None
        self._known.add(place)
        return data

    def _write(self, path: Path, place: Path, data: bytes) -> None:
        if place in self._known and not place.is_dir():
            # What is made again in its place would be hidden once the folder is back.
            raise FileNotFoundError(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._known.add(place)
        write_whole(path, data, opener=self._open)

    def _open(self, path: str, flags: int) -> int:
        """Open a new file, for its owner alone where the mount lets it."""
        try:
            return private(path, flags)
        except NotPrivate as error:
            # Who mounts a share decides who reads it: no task is lost for that.
            if not self._warned:
                log.warning("claims in %s are not for their owner alone: %s", self._folder, error)
            self._warned = True
            return os.open(path, flags & ~os.O_EXCL)

    def _prune(self, before: date) -> int:
        count = 0
        for day in self._folder.glob("*/*"):
            if _DAY.match(day.name) and date.fromisoformat(day.name) < before:
                # Another process may prune at the same time.
                with suppress(FileNotFoundError):
                    count += sum(1 for _ in day.iterdir())
                shutil.rmtree(day, ignore_errors=True)
        return count


class ObjectClaims:
    """Claims in a store of objects of the `obstore` package: S3 and the like, GCS, Azure.

    Needs the ``claims`` extra.
    """

    def __init__(self, store: Any, *, prefix: str = "") -> None:
        self._obstore = _package("obstore")
        self._store = store
        self._prefix = prefix.strip("/")
        self._missing: type[Exception] = FileNotFoundError

    async def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        await self._obstore.put_async(self._store, self._name(key), data)

    async def get(self, key: str) -> bytes | None:
        """Return an object, or None."""
        try:
            found = await self._obstore.get_async(self._store, self._name(key))
            return bytes(await found.bytes_async())
        except self._missing:
            return None

    async def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        try:
            await self._obstore.delete_async(self._store, self._name(key))
        except self._missing:
            return

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key


def open_claims(url: str) -> ClaimStore:
    """Make the store of claims of a URL: ``file:///folder``, or ``s3://bucket/prefix`` and others.

    The login of a bucket and its options come from the environment, as usual there. Errors:
    ConfigError, also for a URL that has them.
    """
    parts = _split(url)
    if "?" in url or "#" in url or "@" in parts.netloc:
        problem = "a login, a query and a fragment are not read: the environment has a bucket's"
        raise ConfigError(f"claim_check_url: {problem} login and options")
    if parts.scheme == "file" and parts.path and not parts.netloc:
        return FolderClaims(unquote(parts.path))
    if parts.scheme not in _OBJECT_STORES or not parts.netloc:
        known = ", ".join(f"{scheme}://" for scheme in ("file", *_OBJECT_STORES))
        raise ConfigError(f"claim_check_url: needs one of {known}, and a folder or a bucket")
    return _OBJECT_STORES[parts.scheme](parts.netloc, parts.path)


def _split(url: str) -> SplitResult:
    """Split a URL. Errors: ConfigError, without the text of the other, which may hold a login."""
    with suppress(ValueError):
        return urlsplit(url)
    raise ConfigError("claim_check_url: is no URL: its host cannot be read")


def _package(name: str) -> Any:
    """Import an extra at its first use. Errors: ConfigError."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError("claim checks need obstore: install redis_state[claims]") from None


def _object_store(scheme: str) -> Callable[[str, str], ClaimStore]:
    def make(bucket: str, prefix: str) -> ClaimStore:
        from_url = _package("obstore.store").from_url
        problem = ""
        try:
            return ObjectClaims(from_url(f"{scheme}://{bucket}"), prefix=unquote(prefix))
        except Exception as error:  # noqa: BLE001 - a foreign package: its text may hold a login
            problem = type(error).__name__
        raise ConfigError(f"claim_check_url: cannot be used: {problem}")

    return make


_OBJECT_STORES: dict[str, Callable[[str, str], ClaimStore]] = {
    scheme: _object_store(scheme) for scheme in ("s3", "gs", "az")
}
