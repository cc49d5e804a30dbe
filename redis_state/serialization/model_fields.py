"""The fields of pydantic models, as values that are written in their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, cast

import orjson
from pydantic import BaseModel

# Fields that pydantic gives as they are; what they hold is walked in C, or here if it must be.
_TRANSPARENT: Final[frozenset[Any]] = frozenset(
    {
        *(str, int, bool, float, datetime, Any, dict[str, Any], list[dict[str, Any]], list[str]),
        *(str | None, int | None, bool | None, float | None, datetime | None),
        *(dict[str, Any] | None, list[str] | None),
    }
)

_MOMENTS: Final[frozenset[Any]] = frozenset({datetime, datetime | None, Any})


@dataclass(frozen=True, slots=True)
class _Shape:
    """The fields of a kind of model, in order, and which of them may hold a date and time."""

    names: tuple[str, ...]
    moments: tuple[str, ...]


def fields_of(model: BaseModel) -> Any:
    """Return a model's fields, to be written in its place: alike, and in a fraction of the time.

    A model inside of other values is walked in Python; plain fields are written in C.
    """
    values, kind = model.__dict__, type(model)
    shape = _shape_of(kind)
    if shape is None or tuple(values) != shape.names or model.__pydantic_extra__:
        dumped = dumped_fields(model)
        if type(dumped) is not dict:  # its own serialiser's
            return dumped
        own = cast("dict[str, Any]", dumped)
        moments: Iterable[str] = own
    else:
        own, moments = values.copy(), shape.moments
    for name in moments:
        value = own[name]
        if type(value) is datetime:
            own[name] = moment_text(value)
    return own


def moment_text(moment: datetime) -> str:
    """Return ``moment.isoformat()``; in UTC in a third of its time."""
    if type(moment) is datetime and moment.tzinfo is UTC:
        return orjson.dumps(moment)[1:-1].decode()
    return moment.isoformat()


def dumped_fields(value: BaseModel) -> Any:
    """Return the fields of a model as it gives them itself."""
    try:
        return value.model_dump(mode="python", warnings=False, serialize_as_any=True)
    except Exception:  # noqa: BLE001 - a foreign serialiser failed, or the model holds itself
        return {**value.__dict__, **(value.model_extra or {})}


@lru_cache(maxsize=256)
def _shape_of(kind: type[BaseModel]) -> _Shape | None:
    """Describe a kind of model of which dumping changes dates and times only; None of others."""
    own = kind.__pydantic_decorators__
    fields_of_kind = kind.model_fields.items()
    if (
        own.field_serializers
        or own.model_serializers
        or own.computed_fields
        or kind.__pydantic_root_model__
        or kind.model_dump is not BaseModel.model_dump
        or kind.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined]
        is not BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined]
        or any(
            field.annotation not in _TRANSPARENT or field.metadata or field.exclude
            for _, field in fields_of_kind
        )
    ):
        return None
    moments = tuple(name for name, field in fields_of_kind if field.annotation in _MOMENTS)
    return _Shape(tuple(kind.model_fields), moments)
