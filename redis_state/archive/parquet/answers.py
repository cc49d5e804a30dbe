"""Answer what a reader wants of the files that count."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from redis_state.archive.encoding import moment_of_us
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRow,
    ArchivedSession,
    ArchiveStatus,
    ArchiveVerdict,
    RecordKey,
    counts_of,
    rows_digest,
)
from redis_state.archive.parquet.counting import counted, records_of_session
from redis_state.archive.parquet.files.columns import RECORDS, TASKS, UPDATES, digest_of, pc
from redis_state.archive.parquet.files.reading import FileReader, Place
from redis_state.archive.parquet.files.writing import key_of, record_key
from redis_state.postgres.text import plain_text, text_of


def verdict(reader: FileReader, batch: ArchiveBatch) -> ArchiveVerdict:
    """Compare a batch with what is read, by count and by digest."""
    named = {key_of(task): task for task in batch.tasks}
    tasks: dict[tuple[str, str, int], str | None] = {task.key: None for task in batch.tasks}
    for key, (record, journal, version, write) in reader.some_tasks(named).items():
        task = named[key]
        made = hashlib.sha256(f"{record}\n{journal}".encode()).hexdigest()
        if made == task.digest():
            del tasks[task.key]
        else:
            tasks[task.key] = f"{version} {text_of(write)}"
    other: set[str] = set()
    for each in batch.sessions:
        if each.rows:
            wanted = {row.place for row in each.rows}
            kept = reader.some_rows(plain_text(each.session_id), wanted)
            if len(kept) != len(each.rows) or rows_digest(kept) != rows_digest(each.rows):
                other.add(each.session_id)
    return ArchiveVerdict(tasks, frozenset(other), _other_records(reader, batch))


def _other_records(reader: FileReader, batch: ArchiveBatch) -> dict[RecordKey, str | None]:
    """Return the records that are not there as they are, each with the stamp that is."""
    named = {record_key(record): record for record in batch.records}
    other: dict[RecordKey, str | None] = {record.known_by: None for record in batch.records}
    for key, kept in reader.some_records(named).items():
        record = named[key]
        if kept.stamp == record.stamp and kept.digest() == record.digest():
            del other[record.known_by]
        else:
            other[record.known_by] = kept.stamp
    return other


def session(reader: FileReader, session_id: str) -> ArchivedSession | None:
    """Return what there is of a session, or None."""
    plain = plain_text(session_id)
    digest = digest_of(plain)
    of_tasks, of_updates = (reader.files.having(kind, digest) for kind in (TASKS, UPDATES))
    tasks = sum(reader.keys(file, plain, ["session_id"]).num_rows for file in of_tasks)
    lost = [reader.keys(file, plain)["lost"].to_pylist() for file in of_updates]
    last = reader.last(plain)
    records = records_of_session(reader, plain)
    if not tasks and last is None and not any(lost) and not records:
        return None
    updates = sum(each.count(False) for each in lost)
    place = None if last is None else (last[1], last[0])
    return ArchivedSession(session_id, tasks, updates, place, records)


def rows(
    reader: FileReader, session_id: str, after: Place | None, count: int, *, over_gaps: bool
) -> list[ArchivedRow] | None:
    """Return rows behind a place that are kept; None if rows between may be missing.

    Rows of before the time from which on they are kept are left out. So are rows before one that
    retention has removed. So of one session no earlier rows stay when later ones have gone.
    What a clock that was ahead had hidden is there again.
    """
    plain = plain_text(session_id)
    since_ms = -(-reader.files.kept_from.get(UPDATES, 0) // 1000)
    # Of one session nothing is read up to the last row that has gone, removed by now or not.
    gone = max((place for _, ends in reader.ends(plain) for place in ends), default=(0, 0))
    since = max((since_ms, 0), gone)
    found = reader.rows(plain, max(after or (0, 0), since), count)
    if after is None or over_gaps:
        return found
    ms, n = after
    if found and found[0].place == (ms, n + 1):
        # Where a `CursorGap` reads on: just before a row that is kept.
        return found
    return found if after >= since and reader.some_rows(plain, {after}) else None


def sessions_of(
    reader: FileReader, attribute: str, value: Any, also: Collection[str]
) -> dict[str, bool]:
    """Return the sessions of tasks that have this attribute, each with whether one has another
    value of it. It reads this column of all tasks.

    Of the sessions in ``also`` those too that have another value alone.
    """
    name, wanted = f"{json.dumps(attribute)}: ", json.dumps(value)
    found: set[str] = set()
    shared: set[str] = set()
    files = [(file, None) for file in reader.files.of(TASKS)]
    for _, read in reader.keys_of(files, ["session_id", "attributes"]):
        # Most have no such name: only what may have it is parsed.
        table = read.filter(pc.match_substring(read["attributes"], name))
        columns = (table[each].to_pylist() for each in ("session_id", "attributes"))
        for plain, written in zip(*columns, strict=True):
            attributes = json.loads(written)
            if attribute in attributes:
                its = json.dumps(attributes[attribute]) == wanted
                (found if its else shared).add(plain)
    found |= shared & {plain_text(each) for each in also}
    return {text_of(each): each in shared for each in sorted(found)}


def status(reader: FileReader, missing: Collection[str]) -> ArchiveStatus:
    """Count what is kept, without the files that are missing. It reads the ids of all sessions."""
    sessions: set[str] = set()
    updates, kinds = 0, Counter[str]()
    there = [file for file in reader.files.by_name.values() if file.name not in missing]
    for file in there:
        if file.kind == RECORDS:
            kinds.update(counted(reader, file))
    some = [(file, None) for file in there if file.kind not in (RECORDS, UPDATES)]
    for _, table in reader.keys_of(some, ["session_id"]):
        sessions.update(table["session_id"].unique().to_pylist())
    some = [(file, None) for file in there if file.kind == UPDATES]
    for _, table in reader.keys_of(some, ["session_id", "lost"]):
        sessions.update(table["session_id"].unique().to_pylist())
        updates += table["lost"].to_pylist().count(False)
    tasks = [file for file in there if file.kind == TASKS]
    ended = [file.ended for file in tasks if file.ended is not None]
    return ArchiveStatus(
        len(sessions),
        sum(file.rows for file in tasks),
        updates,
        sum(file.bytes for file in there),
        moment_of_us(min(least for least, _ in ended)) if ended else None,
        moment_of_us(max(most for _, most in ended)) if ended else None,
        counts_of(kinds),
        tuple(sorted(missing)),
    )
