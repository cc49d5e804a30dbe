"""The fields of queries and bodies: what a text or a number may be, and what each becomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from redis_state.errors import InvalidField

LARGEST_PAGE = 1_000
_LONGEST_ID = 1_000
MOST_TASKS = 1_000_000_000


def _unicode(text: str) -> str:
    """Refuse NUL, which no person means."""
    if "\0" in text:
        raise ValueError("may not hold NUL")
    return text


def _short(text: str) -> str:
    if len(text) > _LONGEST_ID:
        raise ValueError(f"may have at most {_LONGEST_ID} characters")
    return text


def _short_and_some(text: str) -> str:
    if not text:
        raise ValueError("may not be empty")
    return _short(text)


# Not a Field with a length: pydantic refuses half of a surrogate pair in one.
Id = Annotated[
    str,
    AfterValidator(_short),
    WithJsonSchema({"type": "string", "maxLength": _LONGEST_ID}),
]
SomeId = Annotated[
    str,
    AfterValidator(_short_and_some),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _LONGEST_ID}),
]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_unicode)]
Attribute = (
    Annotated[str, Field(strict=True)]
    | Annotated[int, Field(strict=True)]
    | Annotated[bool, Field(strict=True)]
)
Attributes = Annotated[dict[str, Attribute], Field(max_length=16)]
Limit = Annotated[int, Field(ge=1, le=LARGEST_PAGE)]
Seconds = Annotated[float, Field(ge=0, le=3650 * 86_400, allow_inf_nan=False)]
UpToADay = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
TaskCount = Annotated[int, Field(ge=1, le=MOST_TASKS)]
Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Given(BaseModel):
    """A query or a body. An unknown name is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def utc(moment: datetime | None) -> datetime | None:
    """Return a moment in UTC. Errors: InvalidField for one that is out of range there."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidField("at", "is out of range") from None


def seconds(given: float | None) -> timedelta | None:
    """Return a length of time."""
    return None if given is None else timedelta(seconds=given)
