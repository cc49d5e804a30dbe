"""Files of credentials: read at the start, and again when they change."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from redis_state.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHECK_S: Final = 1.0
_REMIND_S: Final = 60.0


class _Spare:
    """A file that is open for nothing, and closed while another one is read.

    A process whose files are all in use, by its clients, can read one so.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def hold(self) -> None:
        """Open it, if that is possible now."""
        if self._descriptor is None:
            with suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY)

    @contextmanager
    def given_up(self) -> Generator[None]:
        """Leave its place to another file for the length of the block."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        try:
            yield
        finally:
            self.hold()


_spare = _Spare()


class WatchedFile(Generic[T]):
    """What a file has. A call looks whether the file has changed, at most once a second.

    A file that cannot be used any more leaves what was read before, and a line in the log: one for
    each problem, and again each minute. One that has changed is read also if the process has no
    more files to open: a credential that was removed would hold else.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        # Before it is read: what is written meanwhile is another state.
        self._state: tuple[int, ...] | None = _state_of(path)
        self._value = read(path)
        self._problem: str | None = None
        self._said_at = 0.0
        _spare.hold()
        self._looked_at = monotonic()

    def __call__(self) -> T:
        """Return what the file has now."""
        now = monotonic()
        if now - self._looked_at >= _CHECK_S:
            self._looked_at = now
            self._look()
        return self._value

    def _look(self) -> None:
        state = _state_of(self._path)
        if state == self._state and self._problem is None:
            return
        try:
            with _spare.given_up():
                value = self._read(self._path)
        except ConfigError as error:
            if str(error) != self._problem or monotonic() - self._said_at >= _REMIND_S:
                log.warning("%s: what was read before still holds: %s", self._path, error)
                self._said_at = monotonic()
            self._problem = str(error)
            return
        self._value, self._state, self._problem = value, state, None
        log.info("%s has changed and was read", self._path)


def read_secrets(file: Path) -> dict[str, str] | str:
    """Read a secret, or several by ``kid`` as JSON. Errors: ConfigError, without any of it."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the file of a secret cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("the file of a secret is no text in UTF-8") from None
    if not text.startswith("{"):
        return text
    try:
        named: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ConfigError("the file of secrets is no JSON") from None
    if not all(isinstance(each, str) for each in named.values()):
        raise ConfigError("the file of secrets needs a text for each kid")
    try:
        "".join((*named, *named.values())).encode()
    except UnicodeEncodeError:
        raise ConfigError("the file of secrets has half of a character") from None
    return named


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a file's text: also a file that another one has replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
