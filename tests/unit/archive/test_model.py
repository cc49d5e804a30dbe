from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state.archive.encoding import fields_of, json_of, moment_of_us
from redis_state.archive.model import ArchivedTask
from redis_state.archive.postgres.schema import month_of
from redis_state.postgres.text import id_of, id_text, long_ids

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


@given(st.dictionaries(st.binary(max_size=20), st.binary(max_size=50)))
@example({b"\xed\xa0\x80\x00": b"\xff\xf0\x9f\x98\x80\x00\r"})
def test_fields_are_read_as_they_were_written_whatever_they_are(fields: dict[bytes, bytes]) -> None:
    written = json_of(fields)
    assert written.isascii()
    assert fields_of(written) == fields


@given(ANY_TEXT, ANY_TEXT)
@example("\ud83d\ude00", "\\u0000")
@example("\0", "\\")
@example("x" * 10_000, "y" * 401)
def test_ids_are_any_text(session: str, task: str) -> None:
    written = [id_text(session), id_text(task)]
    whole = long_ids(session, task)
    for text in written:
        assert "\0" not in text
        text.encode()
        assert len(text.encode()) <= 400
    named = None if whole is None else json.loads(whole)
    assert [id_of(text, named, place) for place, text in enumerate(written)] == [session, task]
    assert (written[0] == written[1]) == (session == task)


def test_a_task_is_archived_without_what_decides_its_pauses() -> None:
    record = {
        b"order": b"1700000000000000",
        b"version": b"3",
        b"write": b"w",
        b"status": b"FAILED",
        b"updated_at": b"1700000001000000",
        b"document": b'{"task_type":"BACKGROUND","created_at":"2023-11-14T22:13:20+00:00"}',
        b"job": b'{"handler":"h","input":{"secret":"mine"},"secret":"AbC-_123"}',
        b"archived": b"2 v",
        b"archive_hold": b"1 2",
    }
    task = ArchivedTask.of("s", "t", [part for pair in record.items() for part in pair], [])
    assert task.record[b"job"] == b'{"handler":"h","input":{"secret":"mine"},"secret":""}'
    assert not {b"archived", b"archive_hold"} & task.record.keys()
    assert task.stamp == "3 w"
    again = ArchivedTask.stored("s", "t", json_of(task.record), json_of(task.journal))
    assert again == task
    assert again.digest() == task.digest()
    assert "mine" not in repr(task)


@pytest.mark.parametrize(("us", "month"), [(0, (1970, 1)), (1_733_011_199_999_999, (2024, 11))])
def test_a_moment_is_in_its_month(us: int, month: tuple[int, int]) -> None:
    assert month_of(moment_of_us(us)) == month
