"""Stored values as a type that their reader names: whatever pydantic can validate."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from redis_state.serialization import codec


def read_as(adapter: TypeAdapter[Any], value: Any, *, by_name: bool | None = None) -> Any:
    """Return a value of plain JSON as a type. Errors: pydantic's, which quotes the value.

    It is read as JSON, because it was written as JSON: a strict type takes a date from text, and
    bytes that a model writes as base64 come back. With ``by_name`` a field is found by its name,
    too, if it has an alias.
    """
    try:
        return adapter.validate_json(codec.encode(value), by_alias=by_name, by_name=by_name)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] != "json_invalid":
            raise
    # A lone surrogate, which pydantic's reader refuses.
    return adapter.validate_python(value, by_alias=by_name, by_name=by_name)
