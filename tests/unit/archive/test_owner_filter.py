from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from redis_state.archive.model import ArchivedRow
from redis_state.archive.parquet.files.columns import UPDATES, encode, pq, row_values, table_of
from redis_state.archive.parquet.files.footers import Footer
from redis_state.archive.parquet.files.owners import OwnerFilter, written_owners


@pytest.mark.parametrize("count", [0, 1, 6, 3000])
def test_no_owner_is_missed_and_few_others_are_taken_for_one(count: int) -> None:
    owners = [f"session-{number}" for number in range(count)] + ["", "é", "a" * 10_000][
        : count // 2
    ]
    written = written_owners(owners)
    assert written.isascii()
    found = OwnerFilter.read(written)
    assert found is not None
    assert [each for each in owners if each not in found] == []
    mistaken = sum(f"other-{number}" in found for number in range(2000))
    assert mistaken < 2000 * 0.03


def footer_of(body: bytes) -> Footer:
    return Footer(pq.ParquetFile(BytesIO(body)).metadata, UPDATES)


def test_a_footer_says_which_groups_may_have_an_owner() -> None:
    row = ArchivedRow(1, 1_700_000_000_000, b"id", None, b"{}")
    names = [f"{number:05d}" for number in range(0, 12_000, 2)]
    table = table_of(UPDATES, [row_values(each, row) for each in names])
    body = encode(table, UPDATES)
    footer, plain = footer_of(body), BytesIO()
    assert footer.groups(None) == [0, 1]
    assert (footer.groups("00000"), footer.groups("11998")) == ([0], [1])
    assert footer.groups("11998", only=[0]) == []
    # Between two of them: the bounds of the groups do not say it.
    absent = [f"{number:05d}" for number in range(1, 2001, 2)]
    assert sum(bool(footer.groups(each)) for each in absent) < 50
    # A file of an earlier version says nothing, and may have him.
    pq.write_table(table, plain)
    earlier = footer_of(plain.getvalue())
    assert all(earlier.groups(each) for each in ("00000", "00001", "11998"))
    assert earlier.groups("x") == []
    whole: Any = pq.read_table(BytesIO(body))
    assert whole.equals(table.sort_by("session_id"))


@pytest.mark.parametrize("written", [b"", b"AA==", b"no base64!", b"\xff"])
def test_what_another_tool_has_written_there_is_no_filter(written: bytes) -> None:
    assert OwnerFilter.read(written) is None
