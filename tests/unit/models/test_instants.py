"""Times in rows: exact, short in UTC, and as they were given elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.serialization.fields import instant, read_instant

OFFSETS = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
ZONES: st.SearchStrategy[tzinfo | None] = st.one_of(st.none(), st.just(UTC), OFFSETS)


@given(st.datetimes(timezones=ZONES))
def test_a_time_comes_back_exactly_with_its_offset(at: datetime) -> None:
    stored = codec.decode(codec.encode(instant("created_at", at)))
    found = read_instant(stored)
    assert found == at
    assert found.utcoffset() == at.utcoffset()
    assert found.replace(tzinfo=None) == at.replace(tzinfo=None)


def test_a_time_in_utc_takes_half_the_room() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert instant("created_at", at) == 1767323045678901
    assert len(codec.encode(instant("created_at", at))) == 16


def test_a_time_of_an_older_row_is_read() -> None:
    text = "2026-01-02T03:04:05.678901+00:00"
    assert read_instant(text) == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.mark.parametrize("damaged", [None, True, 1.5, "soon", [], 10**30])
def test_what_is_no_time_is_not_read(damaged: object) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        read_instant(damaged)


def test_what_is_no_time_is_not_written() -> None:
    with pytest.raises(InvalidField, match="created_at"):
        instant("created_at", "2026-01-02")
