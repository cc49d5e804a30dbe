"""What every part of an agent's state has in common: it is frozen, and written as it was read.

The wire form is JSON that other languages read and write too. A part remembers the object it was
read from, beside the values made of it. Nothing can change a value in place, so a value that is
still the one that was read is written back as it stood: a date with its offset, ``[]`` where an
empty map is meant, text inside text. Keys that this version does not know stay where they were.

A value is checked where it is given, by the constructor or by `Wire.changed`, against the kind of
its field. A part that was made can therefore be written, and what was written can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from redis_state.agents.state.wire.frozen import EMPTY, read_frozen, thawed
from redis_state.errors import InvalidField


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read from the wire and written to it, and which may be given.

    ``check`` returns the value as it is kept. Errors of ``read`` and ``check``: InvalidField.
    """

    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any]
    check: Callable[[Any, str], Any]


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
            raise _named(error, type(self).__name__) from None
        kept: Any = self.__dict__
        for slot in self.slots:
            if slot.field in values:
                made, given = kept[slot.field], values[slot.field]
                if isinstance(given, bool) and not isinstance(made, bool):
                    made = given  # pydantic takes it for a number
                kept[slot.field] = slot.kind.check(made, slot.field)

    @model_validator(mode="wrap")
    @classmethod
    def _with_names(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse an object that cannot be called with: pydantic would fail, not refuse."""
        keys = cast("Mapping[object, Any]", value) if isinstance(value, Mapping) else ()
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("an object with keys of text is needed")
        return handler(value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.__dict__)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, place: str = "") -> Self:
        """Read it from its wire form, of which it keeps a copy.

        ``place`` leads the names of fields in errors. Errors: InvalidField.
        """
        return cls.of_wire(thawed(read_frozen(data, place)), place=place)

    @classmethod
    def of_wire(cls, data: Mapping[str, Any], *, place: str = "") -> Self:
        """Read it from a wire form that nobody else has: it is kept as it is."""
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
        """Write it in its wire form, as a copy. What nobody changed is written as it was read."""
        return cast("dict[str, Any]", thawed(self.wire()))

    def wire(self) -> dict[str, Any]:
        """Write it in its wire form, which shares what was read with it: not to be changed."""
        written: dict[str, Any] = {}
        known: set[str] = set()
        source, values = self._source, self._values  # each look at them is a call
        for slot in self.slots:
            known.update((slot.key, *slot.legacy))
            value = getattr(self, slot.field)
            names = [name for name in (slot.key, *slot.legacy) if name in source]
            if names and values.get(slot.field) is value:
                written |= {name: source[name] for name in names}
            elif value or not slot.optional:
                written[slot.key] = slot.kind.write(value)
        for key in self.older(written).keys() - written.keys():
            # A reader would take what stands there for the value of a key that is absent.
            written |= {
                s.key: s.kind.write(getattr(self, s.field)) for s in self.slots if s.key == key
            }
        return _in_order(written, source, known)

    def was_read(self, field: str) -> bool:
        """Return whether a field's value is the one that was read."""
        return field in self._values and self._values[field] is self.__dict__.get(field)

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values. Errors: InvalidField names the one that cannot be."""
        kinds = {slot.field: slot.kind for slot in self.slots}
        for name, value in values.items():
            if name not in kinds:
                raise InvalidField(name, f"is no field of {type(self).__name__}")
            values[name] = kinds[name].check(value, name)
        return self.model_copy(update=values)

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other values, which holds nothing of what it was read as for them."""
        made: Any = self.changed(**values)
        gone = {
            key for slot in self.slots if slot.field in values for key in (slot.key, *slot.legacy)
        }
        # The keys stay for their order; without its value in _values a field is written again.
        source = {key: None if key in gone else value for key, value in self._source.items()}
        kept = {name: value for name, value in self._values.items() if name not in values}
        made._values, made._source = kept, source  # noqa: SLF001 - its own class
        return cast("Self", made)


def _named(error: ValidationError, name: str) -> InvalidField:
    """Return the field of a validation error, whose own text quotes the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InvalidField):  # of a part, or of a place in a map
        return InvalidField(f"{place}.{inner.field}" if place else inner.field, inner.problem)
    return InvalidField(place or name, first["msg"])


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
    """Return the time, in UTC."""
    return datetime.now(UTC)
