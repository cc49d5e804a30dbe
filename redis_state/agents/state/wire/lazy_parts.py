"""The many parts of a state: each is decoded when it is used, and kept as it was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast, overload

from redis_state.agents.state.wire.frozen import thawed
from redis_state.agents.state.wire.wire import Wire
from redis_state.errors import InvalidField
from redis_state.serialization import codec

W = TypeVar("W", bound=Wire)


# A part as it was made, as a store holds it, or in its wire form.
Part: TypeAlias = W | bytes | Mapping[str, Any]


class LazySequence(Sequence[W]):
    """Parts in order, never changed in place. The same part is the same object in every copy.

    What a store holds is read at the first look; its bytes stay, and so what it is the same as.
    """

    kind: ClassVar[type[Any]]

    __slots__ = ("_found", "_items", "_place")

    def __init__(self, items: Iterable[W] = (), *, place: str = "") -> None:
        self._place = place
        self._items: list[Part[W]] = self._checked(items, 0)
        # What was read of bytes. Copies share it: where they hold bytes they hold the same.
        self._found: dict[int, W] = {}

    @classmethod
    def held(cls, items: Iterable[Part[W]], *, place: str) -> Self:
        """Take parts as they are held, without looking into them."""
        made = cls(place=place)
        made._items = list(items)
        return made

    @overload
    def __getitem__(self, index: int) -> W: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[W]: ...

    def __getitem__(self, index: int | slice) -> W | Sequence[W]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index if index >= 0 else len(self._items) + index
        item = self._items[at] if at >= 0 else self._items[index]
        if isinstance(item, bytes):
            found = self._found.get(at)
            if found is None:
                found = self._found[at] = self._read(decoded(item, self._name(at)), at)
            return found
        if isinstance(item, Mapping):
            item = self._items[at] = self._read(item, at)
        return item

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[W]:
        held = enumerate(self._items)
        return (item if isinstance(item, Wire) else self[at] for at, item in held)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(len(self._items))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)}>"

    @property
    def items(self) -> tuple[Part[W], ...]:
        """The parts as they are held, without looking into them."""
        return tuple(self._items)

    def to_list(self) -> list[dict[str, Any]]:
        """Write them, as a copy; one that nobody has looked at is written as it was read."""
        return cast("list[dict[str, Any]]", thawed(self.wire()))

    def wire(self) -> list[dict[str, Any]]:
        """Write them. What was read is shared with them: not to be changed."""
        return [_wire_form(item, self._name(at)) for at, item in enumerate(self._items)]

    def with_added(self, more: Iterable[W]) -> Self:
        """Return them with more."""
        added = self._checked(more, len(self._items))
        made = self.held((*self._items, *added), place=self._place)
        made._found = self._found  # noqa: SLF001 - its own class
        return made

    def _checked(self, items: Iterable[Any], first: int) -> list[Part[W]]:
        """Return parts. Errors: InvalidField for what is none."""
        if not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField(self._place or type(self).__name__, "a list is needed")
        given = list(items)
        for at, item in enumerate(given, start=first):
            if not isinstance(item, self.kind):
                raise InvalidField(self._name(at), f"{self.kind.__name__} is needed")
        return given

    def _read(self, data: Mapping[str, Any], at: int) -> W:
        return cast("W", self.kind.of_wire(data, place=self._name(at)))

    def _name(self, at: int) -> str:
        return f"{self._place or type(self).__name__}[{at}]"


def data_of(part: Part[Any], kind: type[Wire], place: str) -> bytes:
    """Write a part as a store holds it: the very bytes that it was read from, if it was.

    Errors: as `written`.
    """
    return part if isinstance(part, bytes) else written(_wire_form(part, place), kind, place)


def written(data: dict[str, Any], kind: type[Wire], place: str) -> bytes:
    """Write a wire form that is read again as it is. Errors: InvalidField names what is not.

    Constructors check what is given; this finds also what came past them.
    """
    text, changes = codec.encode_reporting(data)
    if changes:
        problem = f"cannot be stored as it is: {changes[0].kind}"
        raise InvalidField(f"{place}{changes[0].path[1:]}", problem)
    kind.of_wire(codec.decode(text), place=place)
    return text


def check_all(part: Wire, place: str = "") -> None:
    """Check the fields of a part, and of the parts in it. Errors: InvalidField names the field.

    Constructors did so. This names what was put in past them; what was read stays as it is.
    """
    for slot in part.slots:
        value: Any = part.__dict__.get(slot.field)
        name = f"{place}{slot.key}"
        kept = value if part.was_read(slot.field) else slot.kind.check(value, name)
        if type(kept) is not type(value):
            problem = f"a {type(kept).__name__} is needed, not a {type(value).__name__}"
            raise InvalidField(name, problem)
        if isinstance(value, Wire):
            check_all(value, f"{name}.")
        for at, item in enumerate(_parts_in(value)):
            check_all(item, f"{name}[{at}].")


def _parts_in(value: Any) -> Iterator[Wire]:
    held: Any = value
    if isinstance(value, LazySequence):
        held = cast("LazySequence[Wire]", value).items
    for item in held if codec.kind_of(held) is tuple else ():
        if isinstance(item, Wire):
            yield item


def decoded(data: bytes, place: str) -> Mapping[str, Any]:
    """Read a part's bytes. Errors: InvalidField names its place."""
    try:
        return cast("Mapping[str, Any]", codec.decode(data))
    except codec.DecodeError as error:
        raise InvalidField(place, str(error)) from None


def _wire_form(part: Part[Any], place: str) -> dict[str, Any]:
    if isinstance(part, bytes):
        return cast("dict[str, Any]", decoded(part, place))
    return part.wire() if isinstance(part, Wire) else cast("dict[str, Any]", part)
