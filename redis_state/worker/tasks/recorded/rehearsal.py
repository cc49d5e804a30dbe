"""A run that repeats what is recorded and does nothing new.

Each call gets its record, as in every replay. A call that has none waits for ever. That is the end
of the journal for its asyncio task, and the others come to theirs. Nothing is written, and nothing
is published. What watches the run ends it.

A task whose handler has failed is rehearsed to have its compensations registered again. Stored
journals are rehearsed to find out whether changed code fits them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeGuard, cast

from pydantic import ValidationError

from redis_state.serialization import codec

# How long a run that waits somewhere may do nothing before it is taken for one that does no more.
IDLE_S = 5.0

# In the text of a group of errors, between its class and each of those in it.
_IN_GROUP = "|"
_MOST_IN_GROUP = 10
# Of the text of an error, and of the value of one of its attributes.
LONGEST_TEXT = 500
_MOST_BYTES = 2_000
# A text of so many characters is that of one error.
_LEAST_TEXT = 20
_SECRET = re.compile("auth|cookie|header|key|password|request|response|secret|token", re.IGNORECASE)


class Rehearsal:
    """The rehearsal of one run.

    ``errors`` are the steps that have failed, with the kind and the text of the error: they fail
    again, so that a handler that has handled the error takes the same path.
    """

    def __init__(self, errors: Mapping[str, tuple[str, str]] | None = None) -> None:
        # The calls that wait at the end of the journal.
        self.waiting: list[str] = []
        # A new call, and what is recorded in its place.
        self.diverged: tuple[str, str] | None = None
        self.moved: asyncio.Event = asyncio.Event()
        # Whether all is repeated that the run is for. Then a checkpoint is the end of the journal.
        self.is_complete: Callable[[], bool] | None = None
        self._errors = errors or {}

    async def end_if_complete(self, call: str) -> None:
        """Wait for ever in a call of which nothing is recorded, if the handler has come far enough.

        Else one that only comes by checkpoints, in a loop, would never reach the journal's end.
        """
        if self.is_complete is not None and self.is_complete():
            await self.end(call)

    def move(self) -> None:
        """Note that the handler has come further."""
        self.moved.set()

    async def end(self, call: str) -> NoReturn:
        """Wait for ever, where nothing is recorded; or fail again. Errors: that of the call."""
        failed = self._errors.get(call)
        if failed is not None:
            raise error_again(*failed)
        self.waiting.append(call)
        self.move()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a rehearsal never returns from the end of the journal")


def kind_of_error(error: BaseException) -> str:
    """Return the class of an error as text, for `error_again`; of a group also those in it."""
    kinds = [error, *_leaves(error)[:_MOST_IN_GROUP]] if _is_group(error) else [error]
    return _IN_GROUP.join(f"{type(one).__module__}:{_name_of(type(one))}" for one in kinds)


def state_of_error(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an error, for `error_again`: None for what is long, or no JSON.

    What may hold a credential, by its name, is left out: nobody has chosen to store it.
    """
    found: dict[str, Any] = {}
    for name, value in _attributes_of(error).items():
        if _SECRET.search(name):
            continue
        with suppress(Exception):  # foreign values, any failure
            written = codec.encode(value)
            if len(written) <= _MOST_BYTES and codec.decode(written) == value:
                found[name] = value
        if not name.startswith("_"):
            found.setdefault(name, None)
    return found


def is_of_failure(error: str, kind: str, text: str) -> bool:
    """Return whether a task's error has the class and the text of a step's, or its whole long text.

    A short text of another class says nothing: most timeouts have none.
    """
    name = kind.partition(_IN_GROUP)[0].partition(":")[2].rpartition(".")[2]
    end = ";" if len(text) < LONGEST_TEXT else ""
    wrapped = len(text) >= _LEAST_TEXT and f": {text}{end}" in f"{error};"
    return wrapped or f"{name}: {text}" in error


def error_again(kind: str, text: str, state: Mapping[str, Any] | None = None) -> Exception:
    """Make an error of a recorded class again; a RuntimeError if it is not known.

    It has the text, and of its attributes those of `state_of_error`.
    """
    error = _again(kind, text)
    own = _attributes_of(error)
    for name, value in (state or {}).items():
        if value is not None or name not in own:
            own[name] = value
    return error


def _again(kind: str, text: str) -> Exception:
    kind, *inner = kind.split(_IN_GROUP)
    module, _, name = kind.partition(":")
    found = _found(module, name)
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(Exception):  # foreign code, any failure
            return _made(found, text, inner)
    return RuntimeError(f"{name}: {text}")


def _found(module: str, name: str) -> object:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _attributes_of(error: BaseException) -> dict[str, Any]:
    # Classes of C have none.
    return getattr(error, "__dict__", {})


def _name_of(kind: type) -> str:
    """Return the name that leads to a class in its module: it may call itself as another one."""
    name, module = kind.__qualname__, sys.modules.get(kind.__module__)
    if module is None or _found(kind.__module__, name) is kind:
        return name
    return next((own for own, found in vars(module).items() if found is kind), name)


def _is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    return isinstance(error, BaseExceptionGroup)


def _leaves(error: BaseException) -> list[BaseException]:
    if not _is_group(error):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _made(kind: type[Exception], text: str, inner: Sequence[str]) -> Exception:
    if issubclass(kind, ExceptionGroup):
        # All in one group: `except*` does not tell it from groups in groups.
        group = cast("Callable[[str, Sequence[Exception]], Exception]", kind)
        return group(text.rpartition(" (")[0] or text, [error_again(each, text) for each in inner])
    if issubclass(kind, ValidationError):
        return kind.from_exception_data(text, [])
    with suppress(Exception):  # foreign code, any failure
        whole = kind(text)
        if (str(whole), whole.args) == (text, (text,)):
            return whole
    error = kind.__new__(kind, text)
    error.args = (text,)
    return error
