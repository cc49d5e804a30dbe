"""What every part of an agent's state has in common: it is frozen, and written as it was read.

The wire form is JSON that other languages read and write too. A part remembers the object it was
read from, beside the values made of it. Nothing can change a value in place, so a value that is
still the one that was read is written back as it stood: a date with its offset, ``[]`` where an
empty map is meant, text inside text. Keys that this version does not know stay where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PrivateAttr, ValidationError
from pydantic_core import CoreSchema, core_schema

from redis_state.errors import InvalidField

W = TypeVar("W", bound="Wire")
E = TypeVar("E", bound=StrEnum)


class FrozenMap(dict[str, Any]):
    """A map that cannot be changed. What its values hold is yours to leave alone."""

    def __setitem__(self, *_: Any) -> NoReturn:
        _refuse()

    def __delitem__(self, _: Any) -> NoReturn:
        _refuse()

    def __ior__(self, _: Any) -> NoReturn:  # type: ignore[misc]
        _refuse()

    def clear(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def pop(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def popitem(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def setdefault(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, Any]]]:
        return FrozenMap, (dict(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        given = handler(dict[str, Any])
        return core_schema.no_info_after_validator_function(cls, given)


def _refuse() -> NoReturn:
    raise TypeError("an agent's state is never changed in place: use its with_* methods")


EMPTY = FrozenMap()


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read from the wire and written to it."""

    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """One key of an object on the wire, and the field that it is.

    An absent key, and one of ``legacy`` in its stead, gives ``default()``; without a default the
    key is needed. ``optional`` leaves the key out when the value is empty.
    """

    field: str
    key: str
    kind: Kind
    default: Callable[[], Any] | None = None
    optional: bool = False
    legacy: tuple[str, ...] = ()


class Wire(BaseModel):
    """A frozen part of an agent's state, with its form on the wire."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    slots: ClassVar[tuple[Slot, ...]] = ()

    # field -> the value as it was read; and the object that it was read from.
    _values: dict[str, Any] = PrivateAttr(default_factory=dict[str, Any])
    _source: Mapping[str, Any] = PrivateAttr(default=EMPTY)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # The error's own text quotes what was given.
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or type(self).__name__
            raise InvalidField(place, first["msg"]) from None

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.__dict__)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, place: str = "") -> Self:
        """Read it from its wire form, which is not to be changed afterwards.

        ``place`` leads the names of fields in errors. Errors: InvalidField.
        """
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField(place or cls.__name__, "an object is needed")
        older = cls.older(data)
        values = {slot.field: _read(slot, data, older, place) for slot in cls.slots}
        part: Any = cls.model_construct(**values)
        part._values, part._source = values, data  # noqa: SLF001 - its own class
        return cast("Self", part)

    @classmethod
    def older(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Find values that older versions kept elsewhere, by the key they have now."""
        del data
        return EMPTY

    def to_dict(self) -> dict[str, Any]:
        """Write it in its wire form. What nobody changed is written as it was read."""
        written: dict[str, Any] = {}
        known: set[str] = set()
        for slot in self.slots:
            known.update((slot.key, *slot.legacy))
            value = getattr(self, slot.field)
            names = [name for name in (slot.key, *slot.legacy) if name in self._source]
            if names and self._values.get(slot.field) is value:
                written |= {name: self._source[name] for name in names}
            elif value or not slot.optional:
                written[slot.key] = slot.kind.write(value)
        return _in_order(written, self._source, known)

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values. They are not checked."""
        return self.model_copy(update=values)

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other values, which holds nothing of what it was read as for them."""
        made: Any = self.changed(**values)
        gone = {
            key for slot in self.slots if slot.field in values for key in (slot.key, *slot.legacy)
        }
        # The keys stay for their order; without its value in _values a field is written anew.
        source = {key: None if key in gone else value for key, value in self._source.items()}
        kept = {name: value for name, value in self._values.items() if name not in values}
        made._values, made._source = kept, source  # noqa: SLF001 - its own class
        return cast("Self", made)


def _read(slot: Slot, data: Mapping[str, Any], older: Mapping[str, Any], place: str) -> Any:
    name = f"{place}.{slot.key}" if place else slot.key
    for key in (slot.key, *slot.legacy):
        if key in data:
            return slot.kind.read(data[key], name)
    if slot.key in older:
        return slot.kind.read(older[slot.key], name)
    if slot.default is None:
        raise InvalidField(name, "is missing")
    return slot.default()


def _in_order(
    written: dict[str, Any], source: Mapping[str, Any], known: set[str]
) -> dict[str, Any]:
    """Put keys where they stood in what was read, and new ones at their place on the wire."""
    if not source:
        return written
    unknown = {key: value for key, value in source.items() if key not in known}
    kept = [key for key in source if key in written or key in unknown]
    if len(kept) == len(written) + len(unknown):
        return {key: written[key] if key in written else unknown[key] for key in kept}
    return written | unknown


def now() -> datetime:
    """Tell the time, in UTC."""
    return datetime.now(UTC)


def _wrong(place: str, wanted: str) -> NoReturn:
    raise InvalidField(place, f"{wanted} is needed")


def _same(value: Any) -> Any:
    return value


def _scalar(kinds: type | tuple[type, ...], wanted: str) -> Kind:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            _wrong(place, wanted)
        return value

    return Kind(read, _same)


text: Kind = _scalar(str, "text")
integer: Kind = _scalar(int, "a whole number")
number: Kind = _scalar((int, float), "a number")
boolean: Kind = _scalar(bool, "true or false")
anything: Kind = Kind(lambda value, _: value, _same)


def optional(kind: Kind) -> Kind:
    """Make a kind of which null is a value."""
    return Kind(
        lambda value, place: None if value is None else kind.read(value, place),
        lambda value: None if value is None else kind.write(value),
    )


def _read_text_or_none(value: Any, place: str) -> str | None:
    return text.read(value, place) or None if value is not None else None


# Text of which the empty one means that there is none.
text_or_none: Kind = Kind(_read_text_or_none, _same)


def _read_moment(value: Any, place: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        _wrong(place, "a date and time")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def write_moment(moment: datetime) -> str:
    """Write a moment as ATOM, with its offset, and its fraction if it has one."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat()


moment: Kind = Kind(_read_moment, write_moment)


def _read_lenient_moment(value: Any, place: str) -> datetime | None:
    try:
        return None if value is None else _read_moment(value, place)
    except InvalidField:
        return None


# One of which the original reads a bad value as none.
lenient_moment: Kind = Kind(
    _read_lenient_moment, lambda value: None if value is None else write_moment(value)
)


def _read_map(value: Any, place: str) -> FrozenMap:
    if isinstance(value, Mapping):
        return FrozenMap(cast("Mapping[str, Any]", value))
    if isinstance(value, (list, tuple)):  # how the original writes a map without keys of its own
        return FrozenMap({str(at): each for at, each in enumerate(cast("Sequence[Any]", value))})
    _wrong(place, "an object")


# An empty map is [] on the wire, as the original's language writes it.
mapping: Kind = Kind(_read_map, lambda value: dict(value) if value else [])


def model(kind: type[W]) -> Kind:
    """Make the kind of a part that is an object of its own."""
    return Kind(
        lambda value, place: kind.from_dict(value, place=place), lambda value: value.to_dict()
    )


def many(kind: Kind) -> Kind:
    """Make the kind of a list."""

    def read(value: Any, place: str) -> tuple[Any, ...]:
        return tuple(
            kind.read(each, f"{place}[{at}]") for at, each in enumerate(as_list(value, place))
        )

    return Kind(read, lambda value: [kind.write(each) for each in value])


def as_list(value: Any, place: str) -> Sequence[Any]:
    """Take a list, or an object with none but its values. Errors: InvalidField."""
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).values())
    _wrong(place, "a list")


def one_of(kind: type[E], *, unknown: E | None = None) -> Kind:
    """Make the kind of a value out of a fixed set; another text is ``unknown``, or refused."""
    members: Mapping[str, E] = {member.value: member for member in kind}

    def read(value: Any, place: str) -> E:
        found = members.get(text.read(value, place), unknown)
        return found or _wrong(place, f"one of {', '.join(members)}")

    return Kind(read, lambda value: value.value)
