"""Answer by the keys of records, without what the records have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from redis_state.archive.model import RecordKind, RecordPlace
from redis_state.archive.parquet.counting import classes_of
from redis_state.archive.parquet.files.columns import RECORDS, TASKS, digest_of, pa, pc
from redis_state.archive.parquet.files.reading import FileReader, Record, record_keys
from redis_state.postgres.text import plain_text, text_of


def count(reader: FileReader, kind: RecordKind, owners: Collection[str]) -> int:
    """Count owners' records of a kind."""
    return sum(1 for owner in set(owners) for _ in _records(reader, kind, owner))


def first_places(
    reader: FileReader, kind: RecordKind, owner: str, keys: Collection[str]
) -> dict[str, RecordPlace]:
    """Return of each key the place of an owner's first record that has it, if any has."""
    named, found = {plain_text(each): each for each in keys}, dict[str, RecordPlace]()
    for *_, born_us, n, plain in _records(reader, kind, owner):
        key = named.get(plain)
        if key is not None:
            found[key] = min(found.get(key, (born_us, n, key)), (born_us, n, key))
    return found


def shared_traces(
    reader: FileReader, trace_ids: Collection[str], besides: Collection[str]
) -> frozenset[str]:
    """Return those of the traces that a session has which is none of ``besides``."""
    wanted = pa.array([plain_text(each) for each in trace_ids], pa.string())
    own = pa.array([plain_text(each) for each in besides], pa.string())
    found: set[str] = set()

    def look(traces: Any, sessions: Any) -> None:
        its = pc.and_(
            pc.is_in(traces, value_set=wanted), pc.invert(pc.is_in(sessions, value_set=own))
        )
        found.update(pc.unique(traces.filter(its)).to_pylist())

    for _, groups in reader.groups_of(reader.files.of(TASKS), None, ["session_id", "trace_id"]):
        for _, table in groups:
            look(table["trace_id"], table["session_id"])
    records = reader.files.of(RECORDS)
    some = [file for file in records if RecordKind.TRAJECTORY.value in classes_of(reader, file)]
    for _, groups in reader.groups_of(some, None, ["owner", "kind", "key"]):
        for _, group in groups:
            table = group.filter(pc.equal(group["kind"], RecordKind.TRAJECTORY.value))
            look(table["key"], table["owner"])
    return frozenset(map(text_of, found))


def owners_with(reader: FileReader, kind: RecordKind, parts: Collection[bytes]) -> frozenset[str]:
    """Return the owners of records of a kind whose data has any of these bytes."""
    files = reader.files.of(RECORDS)
    some = [file for file in files if kind.value in classes_of(reader, file)]
    found: set[str] = set()
    for _, groups in reader.groups_of(some, None, ["owner", "kind", "data"]):
        for _, group in groups:
            table = group.filter(pc.equal(group["kind"], kind.value))
            for part in parts:
                its = table.filter(pc.match_substring(table["data"], part))
                found.update(pc.unique(its["owner"]).to_pylist())
    return frozenset(map(text_of, found))


def _records(reader: FileReader, kind: RecordKind, owner: str) -> Iterator[Record]:
    plain = plain_text(owner)
    for file in reader.files.having(RECORDS, digest_of(plain)):
        for key in record_keys(reader.keys(file, plain)):
            if key[0] == kind.value:
                yield key
