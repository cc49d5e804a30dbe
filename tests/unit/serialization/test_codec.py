"""The codec writes everything, returns plain JSON exactly, and tells what it changed."""

from __future__ import annotations

import enum
import json
import struct
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, cast
from unittest.mock import ANY, MagicMock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, model_serializer

from redis_state.serialization.codec import (
    MAX_DEPTH,
    Change,
    DecodeError,
    canonical,
    decode,
    encode,
    encode_reporting,
    fields_of,
    fingerprint,
    plain,
    text_of,
)
from tests.support.processes import children


@dataclass
class Box:
    """A dataclass that may hold anything."""

    _content: Any = None


class Model(BaseModel):
    """A model that may hold anything."""

    content: Any = None


class Parent(BaseModel):
    """A model whose field is declared wider than what it holds."""

    child: Model


class Child(Model):
    """A model with a field that the declared type lacks."""

    more: int = 1


class Colour(enum.Enum):
    """An enum with an awkward value."""

    RED = "red"
    NONE = float("nan")


class Word(str, enum.Enum):  # noqa: UP042 - the kind of enum under test
    """An enum that is text."""

    YES = "yes"


class Words(list[str]):
    """A list that is more than a list."""


class Text(str):  # noqa: SLOT000
    """Text that is more than text."""


class Number(int):
    """A number that cannot be compared."""

    __hash__ = int.__hash__

    def __eq__(self, _other: object) -> bool:
        raise OSError


class Fraction(float):
    """A float that is more than a float."""


class Torn(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise OSError


class Stubborn(Model, extra="allow"):
    """A model whose serialiser fails."""

    @model_serializer
    def serialise(self) -> dict[str, Any]:
        raise OSError


@dataclass(slots=True)
class Slotted:
    """A dataclass whose field may be unset."""

    content: Any


class Unhashable(type):
    """A kind of class that no table can hold."""

    __hash__ = None  # type: ignore[assignment]


class Mute:
    """An object that cannot say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError


def refuse(_self: object) -> type:
    raise RuntimeError


def say_liar(_self: object) -> str:
    return "liar"


# An object whose class cannot be asked for.
Liar = type("Liar", (), {"__class__": property(refuse), "__str__": say_liar})


class Endless:
    """An array-like that only ever leads to another one."""

    def tolist(self) -> Endless:
        return Endless()


ANY_TEXT = st.text(st.characters())  # with lone surrogates
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**2048) + 1, max_value=2**2048 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
ODD_SCALARS = (
    SCALARS
    | st.floats()
    | ANY_TEXT
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.complex_numbers()
    | st.integers().map(lambda exponent: 1 << min(abs(exponent), 20_000))
)
ODD = st.recursive(
    ODD_SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.frozensets(ODD_SCALARS)
        | st.dictionaries(ODD_SCALARS, inner)
        | st.builds(Box, inner)
    ),
    max_leaves=20,
)


def in_list(value: Any) -> list[Any]:
    return [value]


def in_dict(value: Any) -> dict[str, Any]:
    return {"a": value}


def kinds(value: Any) -> list[tuple[str, str]]:
    return [(change.path, change.kind) for change in encode_reporting(value)[1]]


def same(left: Any, right: Any) -> bool:
    """Compare like ``==``, but floats by their bits and numbers by their type."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    kind = cast("type[object]", type(left))
    if kind is dict:
        return same(list(left), list(right)) and same([*left.values()], [*right.values()])
    if kind is list:
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@given(JSON)
def test_plain_json_comes_back_exactly_and_is_not_reported(value: Any) -> None:
    data, changes = encode_reporting(value)
    assert same(decode(data), value)
    assert same(decode(data.decode()), value)
    assert changes == []


@given(ODD)
def test_anything_is_written_and_the_stored_form_is_stable(value: Any) -> None:
    data, changes = encode_reporting(value)
    stored = decode(data)
    assert encode(value) == data
    assert encode(stored) == data
    assert same(plain(value), stored)
    assert fingerprint(value) == fingerprint(stored)
    if not changes:
        assert stored == value


@given(ODD)
def test_every_reader_of_json_can_read_it(value: Any) -> None:
    assert same(json.loads(encode(value)), decode(encode(value)))


@pytest.mark.parametrize("value", [-0.0, 5e-324, 1.7976931348623157e308, 1e22, 0.1 + 0.2])
def test_floats_keep_their_bits(value: float) -> None:
    assert struct.pack("d", decode(encode([value]))[0]) == struct.pack("d", value)


@pytest.mark.parametrize(
    "value", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**100, -(2**2048) + 1, 10**600]
)
def test_large_integers_are_exact(value: int) -> None:
    data = encode({"n": value, "text": "é\t"})
    assert decode(data) == {"n": value, "text": "é\t"}
    assert decode(b'{"within":' + data + b"}") == {"within": {"n": value, "text": "é\t"}}


@pytest.mark.parametrize(
    ("value", "stored", "kind"),
    [
        (float("nan"), "NaN", "nan"),
        (float("inf"), "Infinity", "nan"),
        (float("-inf"), "-Infinity", "nan"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00", "datetime"),
        (
            datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=9, seconds=21))),
            "1900-01-01T00:00:00+00:09:21",
            "datetime",
        ),
        (date(2026, 1, 2), "2026-01-02", "datetime"),
        (time(1, 2, tzinfo=UTC), "01:02:00+00:00", "datetime"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001", "uuid"),
        (Decimal("1.10"), "1.10", "decimal"),
        (PurePosixPath("/a/b"), "/a/b", "path"),
        (b"text", "text", "bytes"),
        (bytearray(b"\xff"), "/w==", "bytes"),
        (Word.YES, "yes", "enum"),
        ((1, 2), [1, 2], "tuple"),
        (deque([1]), [1], "tuple"),
        (range(2), [0, 1], "tuple"),
        ({3, "b", "a"}, ["a", "b", 3], "set"),
        (frozenset([(2,), (1,)]), [[1], [2]], "set"),
        (Box(1), {"_content": 1}, "dataclass"),
        (Model(content=1), {"content": 1}, "model"),
        (1 << 5000, hex(1 << 5000), "int"),
        ("\ud83d\ude00", "\U0001f600", "surrogate"),
        (KeyError("gone"), "'gone'", "object"),
        (Box, text_of(Box), "object"),
        (Endless(), "<too deep>", "depth"),
    ],
)
def test_nearest_forms(value: Any, stored: Any, kind: str) -> None:
    assert decode(encode({"at": [value, None]})) == {"at": [stored, None]}
    assert ("$.at[0]", kind) in kinds({"at": [value, None]})


def test_objects_that_misbehave_are_named_or_told() -> None:
    assert decode(encode([Mute(), Liar(), ANY, None])) == ["<Mute>", "liar", "<ANY>", None]
    assert kinds([Mute(), Liar()]) == [("$[0]", "object"), ("$[1]", "object")]
    assert decode(encode({Mute(): 1, Liar(): 2})) == {"<Mute>": 1, "liar": 2}
    assert decode(encode([Unhashable("Odd", (), {})(), 1])) == ["<Odd>", 1]
    assert decode(encode([{"a": Torn(a=1)}])) == [{"a": "<Torn>"}]


def test_a_model_that_cannot_dump_itself_still_shows_its_fields() -> None:
    assert decode(encode(Stubborn.model_validate({"content": {1}, "more": 2}))) == {
        "content": [1],
        "more": 2,
    }


def test_a_dataclass_leaves_out_fields_that_were_never_set() -> None:
    assert decode(encode(object.__new__(Slotted))) == {}


def test_an_enum_is_replaced_by_its_value_all_the_way() -> None:
    assert decode(encode([Colour.RED, Colour.NONE])) == ["red", "NaN"]
    assert kinds(Colour.NONE) == [("$", "enum"), ("$", "nan")]


def test_lone_surrogates_come_back_in_values_and_keys() -> None:
    value = {"\ud800": "a\udfff\x00\U0001f600"}
    assert decode(encode(value)) == value
    assert kinds(value) == []


def test_subclasses_of_plain_types_are_plain() -> None:
    value: dict[str, Any] = OrderedDict(
        b=MappingProxyType({"x": 1}), a=defaultdict(Words, c=Words("xy"))
    )
    assert encode(value) == b'{"b":{"x":1},"a":{"c":["x","y"]}}'
    assert kinds(value) == []
    assert encode([Text("a"), Number(2), Fraction(0.5), None]) == b'["a",2,0.5,null]'


def test_no_key_is_lost_to_another() -> None:
    value = {1: "int", "1": "text", 1.5: "float", None: "none", b"1": "bytes", Word.YES: "enum"}
    assert decode(encode(value)) == {
        "1": "text",
        "1~2": "int",
        "1.5": "float",
        "None": "none",
        "1~3": "bytes",
        "yes": "enum",
    }
    assert ("$.None", "key") in kinds(value)
    assert ("$.yes", "key") not in kinds(value)


@given(st.dictionaries(ODD_SCALARS, st.integers()))
def test_every_entry_of_a_mapping_is_stored(value: dict[Any, int]) -> None:
    assert sorted(decode(encode(value)).values()) == sorted(value.values())


def test_cycles_are_cut_where_they_close() -> None:
    ring: list[Any] = [1]
    ring.append({"again": ring})
    assert decode(encode(ring)) == [1, {"again": "<cycle>"}]
    assert kinds(ring) == [("$[1].again", "cycle")]
    content: list[Any] = []
    box = Box(content)
    content.append(box)
    assert decode(encode([box])) == [{"_content": ["<cycle>"]}]
    model = Model()
    model.content = [model]
    assert decode(encode(model)) == {"content": ["<cycle>"]}


def test_a_nan_is_found_behind_anything_that_orjson_takes_itself() -> None:
    value = {"a": None, "b": (1, [{"c": (Colour.NONE, ANY, float("-inf"))}])}
    assert decode(encode(value)) == {"a": None, "b": [1, [{"c": ["NaN", "<ANY>", "-Infinity"]}]]}


def test_what_occurs_twice_is_no_cycle() -> None:
    shared = Box({1})
    assert decode(encode([shared, shared])) == [{"_content": [1]}] * 2


@pytest.mark.parametrize("wrap", [in_list, in_dict, Box])
def test_nesting_is_cut_at_the_limit(wrap: Callable[[Any], Any]) -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert "depth" not in {kind for _, kind in kinds(value)}
    for _ in range(100):
        value = wrap(value)
    assert "depth" in {kind for _, kind in kinds(value)}
    assert b"<too deep>" in encode(value)
    assert encode(value) == encode_reporting(value)[0]
    assert encode(decode(encode(value))) == encode(value)


def test_little_stack_left_cuts_the_value_but_raises_nothing() -> None:
    value: Any = {1}
    for _ in range(100):
        value = (value, float("nan"))

    def descend(frames: int) -> bytes:
        return descend(frames - 1) if frames else encode(value)

    depth, frame = 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    assert b"<too deep>" in descend(sys.getrecursionlimit() - depth - 100)


def test_a_model_keeps_fields_that_the_declared_type_lacks() -> None:
    assert decode(encode(Parent(child=Child(content={1})))) == {
        "child": {"content": [1], "more": 1}
    }


@given(ODD)
def test_the_fields_of_a_model_are_written_as_the_model_is(value: Any) -> None:
    model = Model(content=value)
    assert encode({"at": fields_of(model)}) == encode({"at": model})


def test_mocks_are_objects_whatever_they_pretend_to_be() -> None:
    assert isinstance(decode(encode(MagicMock(spec=Model))), str)


def test_arrays_are_lists_and_their_items_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    value = [numpy.arange(3), numpy.int64(3), numpy.float64("nan"), numpy.bool_(1)]
    assert decode(encode(value)) == [[0, 1, 2], 3, "NaN", True]


def test_a_report_never_holds_values() -> None:
    changes = encode_reporting({"a": [1, 2, 3, {"b c": b"secret"}]})[1]
    assert changes == [Change('$.a[3]["b c"]', "bytes")]
    assert "secret" not in repr(changes)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"secret",
        b"\xff",
        b"\t\xff",
        b"NaN",
        b"\t[1e999]",
        b"1e999",
        "\ud800",
        b"\t" + b"9" * 9000,
        b"[" * 5000,
        b"\t" + b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_refused_without_quoting_it(data: bytes | str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert "secret" not in str(caught.value)
    assert caught.value.reason
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_text_and_bytes_are_read_alike() -> None:
    assert decode('{"a":\t18446744073709551616}') == {"a": 2**64}
    assert decode(' ["\\ud800"]') == ["\ud800"]


def test_canonical_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"b": {"y": 1, "x": 2}, "a": 2**70}) == canonical(
        {"a": 2**70, "b": {"x": 2, "y": 1}}
    )
    assert canonical({"b": 1, "a": {2, 1}}) == b'{"a":[1,2],"b":1}'


def test_canonical_tells_numbers_apart() -> None:
    assert len({canonical(number) for number in (1, 1.0, -0.0, 0.0, True, "1")}) == 6


def test_fingerprint_is_short_and_names_its_parts() -> None:
    assert fingerprint("a", {"b": 1}) == "PW9R4f0kicfwYvA0enEPpg"
    assert fingerprint("ab") != fingerprint("a", "b") != fingerprint(["a", "b"])
    assert all(len(fingerprint(number)) == 22 for number in range(100))


def test_fingerprint_of_a_set_is_the_same_in_every_process() -> None:
    script = (
        "from redis_state.serialization.codec import fingerprint\n"
        "print(fingerprint(set('abcdefgh')))"
    )
    seen = {
        children.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {fingerprint(set("abcdefgh")).encode() + b"\n"}
