"""Where the files stand: a folder, or a bucket of an S3-compatible store. Its calls block."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from redis_state.errors import ConfigError
from redis_state.private_file import sync_folder

_OPTIONS = ("endpoint_url", "region", "virtual_hosted_style_request")
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class ListedObject:
    """The name of an object, its size, and when it was written."""

    name: str
    bytes: int
    at: datetime


class Objects(Protocol):
    """Named objects that never change. Errors of every call: `problems` names their types."""

    problems: tuple[type[Exception], ...]

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        ...

    def open(self, name: str) -> Any:
        """Return an object as a file, to read parts of it, or None."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write an object, whole or not at all, if there is none of its name; return whether."""
        ...

    def names(self, folder: str, *, after: str = "") -> list[ListedObject]:
        """List the objects of a folder and of those in it, in the order of their names."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. One that is not there is none."""
        ...


class FolderObjects:
    """Objects as files of a folder, which all processes must share."""

    problems: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def get(self, name: str) -> bytes | None:
        """Return a file's content, or None."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        """Open a file, or None."""
        try:
            return self._path(name).open("rb")
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Write a file and have it on the disk, unless it is there."""
        path = self._path(name)
        _make(path.parent)
        coming = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(coming, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                # Unlike a rename it replaces nothing.
                os.link(coming, path)
            except FileExistsError:
                return False
        finally:
            coming.unlink(missing_ok=True)
        sync_folder(path.parent)
        return True

    def names(self, folder: str, *, after: str = "") -> list[ListedObject]:
        """List the files of a folder and of those in it. What a crash left of one is listed too."""
        found: list[ListedObject] = []
        for parent, _, files in os.walk(self._path(folder)):
            place = Path(parent).relative_to(self._folder).as_posix()
            for file in files:
                name = f"{place}/{file}"
                if name <= after:
                    continue
                with suppress(FileNotFoundError):
                    stat = (Path(parent) / file).stat()
                    at = datetime.fromtimestamp(stat.st_mtime, UTC)
                    found.append(ListedObject(name, stat.st_size, at))
        return sorted(found, key=lambda each: each.name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder.joinpath(*name.split("/"))


class BucketObjects:
    """Objects of a bucket, through the `obstore` package. Its login is in the environment."""

    def __init__(
        self, bucket: str, *, prefix: str, options: dict[str, Any], timeout_s: float
    ) -> None:
        self._obstore: Any = import_module("obstore")
        errors: Any = import_module("obstore.exceptions")
        self.problems: tuple[type[Exception], ...] = (errors.BaseError, OSError)
        self._exists: type[Exception] = errors.AlreadyExistsError
        within = timedelta(seconds=timeout_s)
        self._store: Any = import_module("obstore.store").S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": str(options.get("endpoint", "")).startswith("http://"),
                "timeout": within,
                "connect_timeout": within,
            },
            retry_config={"max_retries": _RETRIES, "retry_timeout": within},
            **options,
        )

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        try:
            return bytes(self._obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        """Open an object, to read parts of it, or None."""
        try:
            return self._obstore.open_reader(self._store, name)
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Write an object, unless it is there. A repeat whose reply was lost says that it is."""
        try:
            self._obstore.put(self._store, name, data, mode="create")
        except self._exists:
            return False
        return True

    def names(self, folder: str, *, after: str = "") -> list[ListedObject]:
        """List the objects below a folder."""
        pages = self._obstore.list(self._store, folder, offset=after or None, chunk_size=1000)
        return sorted(
            (
                ListedObject(each["path"], each["size"], each["last_modified"])
                for page in pages
                for each in page
            ),
            key=lambda each: each.name,
        )

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        for name in names:
            with suppress(FileNotFoundError):
                self._obstore.delete(self._store, name)


def open_objects(url: str, *, timeout_s: float) -> Objects:
    """Make the objects of ``file:///folder`` or ``s3://bucket/prefix?endpoint_url=…&region=…``.

    No I/O. Errors: ConfigError, also for a login in the URL: it belongs to the environment.
    """
    try:
        parts = urlsplit(url)
        named = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigError("archive_url: is no URL") from None
    path = unquote(parts.path, errors="surrogateescape")
    if "#" in url or "\0" in path:
        # Else it would name a folder that is cut short.
        raise ConfigError("archive_url: write # as %23, and no NUL")
    if parts.scheme == "file":
        if not path.strip("/") or parts.netloc or named:
            raise ConfigError("archive_url: needs file:///folder")
        return FolderObjects(path)
    if not parts.netloc or "@" in parts.netloc:
        raise ConfigError("archive_url: needs s3://bucket/prefix; the login is in the environment")
    unknown = named.keys() - set(_OPTIONS)
    if unknown:
        raise ConfigError(f"archive_url: known options are {', '.join(_OPTIONS)}")
    if "endpoint_url" in named:
        named["endpoint"] = named.pop("endpoint_url")
    try:
        return BucketObjects(
            parts.netloc, prefix=path.strip("/"), options=named, timeout_s=timeout_s
        )
    except Exception as error:  # noqa: BLE001 - a foreign package: its text may hold a login
        problem = type(error).__name__
    raise ConfigError(f"archive_url: cannot be used: {problem}")


def _make(folder: Path) -> None:
    """Make a folder and those above it, and have their names on the disk."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)
