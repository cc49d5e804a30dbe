from __future__ import annotations

import enum
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import InvalidField
from redis_state.serialization import codec
from redis_state.serialization.lossless import pack, unpack_exact

_zones = (
    st.none()
    | st.just(UTC)
    | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
    | st.just(timezone(timedelta(hours=1), "winter"))
    | st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]).map(ZoneInfo)
)
_texts = st.text(st.characters(), max_size=8)
_hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _texts
    | st.binary(max_size=8)
    | st.datetimes(timezones=_zones)
    | st.dates()
    | st.times(timezones=_zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
_keys = st.just("$") | _texts
_values = st.recursive(
    _hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.sets(_hashable, max_size=4)
        | st.frozensets(_hashable, max_size=4)
    ),
    max_leaves=12,
)


def back(value: Any) -> Any:
    return unpack_exact(pack({"data": value}), 1)[0]


def shape(value: Any) -> Any:
    """Write a value so that equal means: same types, same contents, NaN and -0.0 included."""
    kind = cast("type[object]", type(value))
    if kind is dict:
        return (kind, [(shape(key), shape(item)) for key, item in value.items()])
    if kind in {set, frozenset}:
        return (kind, sorted(repr(shape(item)) for item in value))
    if kind in {list, tuple}:
        return (kind, [shape(item) for item in value])
    return (kind, hex(value) if kind is int else repr(value))


def test_a_moment_follows_its_zones_rules_when_it_is_read() -> None:
    winter = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    found = back(winter)
    assert repr(found) == repr(winter)
    # An offset alone would be that of the day it was written for.
    assert (found + timedelta(days=-30)).utcoffset() == timedelta(hours=2)
    # As rows had it that were written before the zone was.
    row = b'[1,{"$":["datetime",["2026-10-25T02:30:00+01:00",1]]}]'
    assert repr(unpack_exact(row, 1)[0]) == repr(
        winter.replace(tzinfo=timezone(timedelta(hours=1)))
    )


class _OwnZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def tzname(self, _: datetime | None) -> str:
        return "own"

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)


def test_a_moment_of_a_zone_without_a_name_to_find_it_by_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"data\.at: a time zone of type _OwnZone"):
        pack({"data": {"at": datetime(2026, 1, 1, tzinfo=_OwnZone())}})


@given(_values)
def test_what_is_read_is_what_was_written_to_the_type(value: Any) -> None:
    assert shape(back(value)) == shape(value)


_UNUSUAL: list[Any] = [
    math.nan,
    -0.0,
    math.inf,
    2**53 + 1,
    -(2**63) - 1,
    1 << 16_000,
    "\ud83d\ude00",  # two halves, which are not the one character
    "\U0001f600",
    "lone \udcff",
    "",
    datetime(2024, 10, 27, 2, 30),  # noqa: DTZ001 - naive on purpose
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=timezone(timedelta(seconds=3661))),
    datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(microseconds=-1), "nearly")),
    datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(0), "")),
    date(1, 1, 1),
    {"$": 1},
    {"$": ["set", []]},
    {1: "a", "1": "b", None: "c", (1, 2): "d"},
    [(1,), [1], {1}],
    Decimal("NaN"),
    b"\x00\xff",
    bytearray(b"x"),
    UUID(int=7),
    {"id": 1, "version": 2},
]


@pytest.mark.parametrize("value", _UNUSUAL, ids=lambda value: type(value).__name__)
def test_what_json_cannot_hold_comes_back_all_the_same(value: Any) -> None:
    assert shape(back(value)) == shape(value)


def test_subclasses_come_back_as_what_they_extend() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    assert shape(back({"c": Colour.RED})) == shape({"c": "red"})
    assert shape(back(OrderedDict(a=(1, True)))) == shape({"a": (1, True)})


class Secret:
    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize("value", [Secret(), Secret, range(3), memoryview(b"hunter2"), 1j])
def test_what_cannot_be_given_back_is_refused_by_its_place_and_kind(value: Any) -> None:
    with pytest.raises(InvalidField, match="cannot be stored exactly") as caught:
        pack({"data": {"a": [0, {"b": value}]}})
    assert caught.value.field == "data.a[1].b"
    assert type(value).__name__ in str(caught.value)
    for key in ("hunter2 is it", "hunter2" * 10, b"hunter2"):
        with pytest.raises(InvalidField, match=f"data.<{type(key).__name__}>") as hidden:
            pack({"data": {key: value}})
        assert "hunter2" not in str(caught.value) + str(hidden.value)


def nest(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


def test_eighty_levels_of_what_json_has_no_form_for_come_back() -> None:
    assert back(nest(78, math.inf)) == nest(78, math.inf)
    deepest: Any = [1]
    for _ in range(250):
        deepest = [deepest]
    assert back(deepest) == deepest


def test_levels_that_are_more_than_can_be_written_are_refused() -> None:
    value: Any = 1
    for _ in range(79):
        value = {1: value}
    with pytest.raises(InvalidField, match="cannot be stored exactly"):
        pack({"data": value})


def test_what_holds_itself_or_is_too_deep_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, nest(81, ()), nest(900, 1.5)):
        with pytest.raises(InvalidField, match="nested too deeply") as caught:
            pack({"data": value})
        assert caught.value.field == "data"


@pytest.mark.parametrize(
    "content",
    ['["no kind", 1]', '["datetime", "x"]', '["uuid", "x"]', "[]", "3", '["dict", [1]]', "null"],
)
def test_a_tag_that_nobody_wrote_is_unreadable(content: str) -> None:
    row = pack({"data": 1}).replace(b"1]", f'{{"$":{content}}}]'.encode())
    assert b'"$"' in row
    with pytest.raises(codec.DecodeError):
        unpack_exact(row, 1)


def test_plain_json_is_written_as_itself() -> None:
    assert pack({"id": "a", "data": {"n": [1, None, "é"]}}) == b'[1,"a",{"n":[1,null,"\xc3\xa9"]}]'


def test_an_identifier_is_not_taken_for_a_text() -> None:
    identifier = UUID(int=1)
    assert back([identifier, str(identifier)]) == [identifier, str(identifier)]
