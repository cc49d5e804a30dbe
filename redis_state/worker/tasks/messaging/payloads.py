"""What messages carry: checked against a type where one is known, and bounded in size.

A type is anything that pydantic can validate: a model, a dataclass, ``int``, ``list[str]``. Texts
of errors name the places of a payload and what is wrong there, and never quote it.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from redis_state.errors import InvalidField, InvalidMessage
from redis_state.scripts import raw
from redis_state.serialization import codec
from redis_state.serialization.fields import dumped
from redis_state.serialization.typed import read_as

# Of JSON, for a message, a reply or a value.
MAX_PAYLOAD_BYTES: Final = 65_536
MAX_NAME_BYTES: Final = 256

_NAMED_PROBLEMS = 5
_LONGEST_PLACE = 80


def write_payload(field: str, value: Any, expected: Any = None) -> bytes:
    """Write what is sent as JSON.

    Errors: InvalidField if it is not of the type, is a model that JSON cannot hold, or is too
    large.
    """
    if expected is not None:
        value = _as_type(field, value, expected)
    elif isinstance(value, BaseModel):
        value = dumped(field, partial(value.model_dump, mode="json"))
    data = codec.encode(value)
    if len(data) > MAX_PAYLOAD_BYTES:
        problem = f"has {len(data)} bytes as JSON, and may have {MAX_PAYLOAD_BYTES}"
        raise InvalidField(field, problem)
    return data


def read_payload(name: str, payload: Any, expected: Any) -> Any:
    """Read what was received as a type; None leaves it as it is. Errors: InvalidMessage."""
    if expected is None:
        return payload
    try:
        # By names too: what is sent is written by the names of its fields.
        return read_as(_adapter(expected), payload, by_name=True)
    except ValidationError as error:
        problems = _problems(error)
    # Outside of the handler: pydantic's error quotes the payload.
    raise InvalidMessage(name, problems, payload=payload)


def check_type(expected: Any) -> None:
    """Refuse what is no type that can be validated. Errors: InvalidField."""
    if expected is not None:
        _adapter(expected)


def check_name(field: str, name: object) -> str:
    """Check the name of a message, or the key of a value. Errors: InvalidField."""
    if not isinstance(name, str):
        raise InvalidField(field, f"text is needed, not {type(name).__name__}")
    if not 0 < len(raw(name)) <= MAX_NAME_BYTES:
        raise InvalidField(field, f"needs from 1 to {MAX_NAME_BYTES} bytes of text")
    return name


def _as_type(field: str, value: Any, expected: Any) -> Any:
    adapter = _adapter(expected)
    try:
        checked = adapter.validate_python(value)
        # Without computed fields: its own type may refuse them.
        return dumped(field, partial(adapter.dump_python, checked, mode="json", round_trip=True))
    except ValidationError as error:
        problems = _problems(error)
    raise InvalidField(field, "; ".join(problems))


def _adapter(expected: Any) -> TypeAdapter[Any]:
    try:
        hash(expected)
    except TypeError:
        return _made(expected)
    return _remembered(expected)


def _made(expected: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(expected)
    except PydanticUserError:
        raise InvalidField("type", "pydantic cannot validate it") from None


_remembered = lru_cache(maxsize=256)(_made)


def _problems(error: ValidationError) -> list[str]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    named = [
        f"{'.'.join(str(part) for part in each['loc'])[:_LONGEST_PLACE] or 'payload'}: "
        f"{each['type']}"
        for each in found[:_NAMED_PROBLEMS]
    ]
    more = len(found) - len(named)
    return [*named, f"and {more} more"] if more > 0 else named
