"""What an adapter's author describes, and the errand that his host runs in a worker process."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from redis_state.errors import ConfigError, InvalidField
from redis_state.worker import Handler

EFFECTS: Final = ("look", "draft", "send")
_HOLD_S: Final = 0.01
_RELEASED: Final = "released"


@dataclass(frozen=True, slots=True)
class EffectLine:
    """One line of what the effects of an errand left: it has begun, or it has ended."""

    effect: str
    mark: str
    pid: int
    ended: bool


class Errand:
    """The effects of the errand in one worker process. Each leaves lines in a file, not in Redis.

    A handler makes them in this order, each once: ``look``, ``draft``, then it asks for an
    approval, and after that ``send``.
    """

    def __init__(self, folder: Path, *, kill: Sequence[str] = (), hold: Sequence[str] = ()) -> None:
        self._folder = folder
        self._kill = frozenset(kill)
        self._hold = frozenset(hold)

    async def effect(self, name: str, mark: str) -> str:
        """Make an effect, and return its text, which has the mark in it. Errors: InvalidField."""
        self._begin(name, mark)
        while self._is_held(name):  # noqa: ASYNC110 - another process releases it
            await asyncio.sleep(_HOLD_S)
        return self._end(name, mark)

    def effect_now(self, name: str, mark: str) -> str:
        """Make an effect without a loop, for hosts whose tools run in threads."""
        self._begin(name, mark)
        while self._is_held(name):
            time.sleep(_HOLD_S)
        return self._end(name, mark)

    def _begin(self, name: str, mark: str) -> None:
        if name not in EFFECTS:
            raise InvalidField("name", f"{name!r} is none of {', '.join(EFFECTS)}")
        if not isinstance(mark, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("mark", f"text is needed, not {type(mark).__name__}")
        self._note(name, mark, ended=False)
        if name in self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_held(self, name: str) -> bool:
        return name in self._hold and not (self._folder / _RELEASED).exists()

    def _end(self, name: str, mark: str) -> str:
        self._note(name, mark, ended=True)
        return text_of(name, mark)

    def _note(self, name: str, mark: str, *, ended: bool) -> None:
        line = json.dumps([name, mark, os.getpid(), ended]) + "\n"
        # One write of a file that is open for appending, so a kill leaves whole lines.
        handle = os.open(_file(self._folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUnderTest:
    """How a worker runs the errand with a host's adapter.

    ``handler`` makes the handler of a worker process. The task's input is a mark, a short text, or
    what ``task_input`` makes of it. The handler makes the effects ``look`` and ``draft``, each with
    the mark. It publishes both texts as updates. Then it asks for an approval, with the mark in the
    pause's payload. If that is approved, it makes ``send`` and publishes its text. Its result has
    the three texts and the answer in it. If that is rejected, it makes no further effect.

    ``decision`` makes the value of an approval of the mark and an answer, a text; the answer itself
    by default. ``skips`` names checks that do not fit the host, each with the reason.
    """

    name: str
    handler: Callable[[Errand], Handler]
    task_input: Callable[[str], Any] = lambda mark: mark
    decision: Callable[[str, str], Any] = lambda _, answer: answer
    skips: Mapping[str, str] = field(default_factory=dict[str, str])


def text_of(effect: str, mark: str) -> str:
    """Return the text of an effect."""
    return f"{effect} of {mark}"


def read_lines(folder: Path) -> list[EffectLine]:
    """Read what the effects left, in their order."""
    path = _file(folder)
    if not path.exists():
        return []
    return [EffectLine(*json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def release(folder: Path) -> None:
    """Release the effects that are held."""
    (folder / _RELEASED).touch()


def load_host(reference: str) -> HostUnderTest:
    """Import what ``module:NAME`` or ``path/to/file.py:NAME`` names. Errors: ConfigError."""
    module_name, _, name = reference.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r}: module:NAME or path.py:NAME is needed")
    module = _load_file(module_name) if module_name.endswith(".py") else _load(module_name)
    found = cast("Any", getattr(module, name, None))
    if not isinstance(found, HostUnderTest):
        raise ConfigError(f"{reference!r} is not a HostUnderTest, but {type(found).__name__}")
    return found


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from error


def _load_file(path: str) -> ModuleType:
    name = f"redis_state_host_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Where its dataclasses and pickles look for it.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _file(folder: Path) -> Path:
    return folder / "effects"
