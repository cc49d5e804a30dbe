"""Load what a command names as MODULE:NAME, and say where in the user's files that failed."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from importlib import import_module
from pathlib import Path

from pydantic import ValidationError

from redis_state.errors import CallerError, RedisStateError

_OURS = str(Path(__file__).resolve().parents[1])
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")})
# Of code that calls itself without end.
_MOST_FRAMES = 10


def split_target(target: str, form: str = "MODULE:WORKER") -> tuple[str, str]:
    """Split MODULE:WORKER. Errors: CallerError."""
    module, colon, name = target.partition(":")
    # A relative name has nothing here that it is relative to.
    if not (module and colon and name) or module.startswith("."):
        raise CallerError(f"{target!r} is not of the form {form}")
    return module, name


def load(target: str, form: str = "MODULE:WORKER") -> object:
    """Import what a target names, also from the current folder.

    Errors: CallerError if there is no such module or name; RedisStateError for all else that the
    import raises. Both have the lines of the user's own files as a note.
    """
    module, name = split_target(target, form)
    sys.path.append(str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except RedisStateError:
        # It names what is wrong.
        raise
    except Exception as error:
        if isinstance(error, ValidationError) and error.title == "Settings":
            # So does this one, and others are of the user's own models.
            raise
        is_missing = isinstance(error, ImportError | AttributeError)
        said = " ".join(str(error).split())
        if not is_missing:
            said = f"{type(error).__name__}: {said}"
        kind = CallerError if is_missing else RedisStateError
        failure = kind(f"{target!r} cannot be loaded: {said}")
        lines = _own_lines(error)
        if lines:
            failure.add_note("".join(lines).rstrip("\n"))
        raise failure from error


def _own_lines(error: Exception) -> list[str]:
    """Return the lines of an error's traceback that are in the user's own files.

    Where it was raised is one of them in any case. Without such a file: all that were imported.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen importlib", _OURS))
        and not frame.filename.endswith("/importlib/__init__.py")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    shown = [*own, *frames[-1:]] if own and frames[-1] not in own else own or frames
    lines = traceback.format_list(shown[-_MOST_FRAMES:])
    if isinstance(error, SyntaxError):
        # All but its last line, which is the message.
        lines += traceback.format_exception_only(error)[:-1]
    return lines
