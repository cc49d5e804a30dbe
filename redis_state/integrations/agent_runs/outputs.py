"""What agents return, as their task's result, and as their session's log shows it."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from redis_state.errors import InvalidField

# Of a tool's result in its update: the whole one is the step's.
MOST_CHARACTERS = 4_096


def plain_output(output: Any) -> Any:
    """Return an agent's output as JSON can hold it. Errors: InvalidField quotes nothing of it."""
    try:
        return to_jsonable_python(output)
    except PydanticSerializationError:
        kind = type(output).__name__
    raise InvalidField("output", f"a {kind} cannot be written as JSON")


def shortened(text: str) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
