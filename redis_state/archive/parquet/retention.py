"""Retention of files: what has expired goes whole where it can, and the rest is written again.

A row that has expired is not read any more, by the log's word. So it does not matter in which order
files go. Of each session whose rows go its last place stays: what an archiver copies follows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis_state.archive.model import RecordKind
from redis_state.archive.parquet.expiring import RecordExpiry, is_left
from redis_state.archive.parquet.files.columns import (
    ALL_MONTHS,
    SESSIONS,
    TASKS,
    UPDATES,
    digest_of,
    pa,
    pc,
    places,
)
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.reading import FileReader, Place
from redis_state.archive.parquet.files.writing import FileChanges
from redis_state.archive.retention import RetentionReport

CLASSES: Final = (TASKS, UPDATES, *(kind.what for kind in RecordKind), SESSIONS)
# A call removes so many rows at most, with those that it writes again, or those of one file.
_MOST = 500_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_TIME_US: Any = pa.timestamp("us", tz="UTC")


class Expiry:
    """What one call of `retain` changes, and its report."""

    def __init__(
        self, reader: FileReader, before: Mapping[str, datetime], missing: Collection[str] = ()
    ) -> None:
        self.report: RetentionReport = RetentionReport()
        self._missing = missing
        self.changes: FileChanges = FileChanges()
        self._reader = reader
        self._left = _MOST
        self._last: dict[str, Place] = {}
        moments = {what: _us(moment) for what, moment in before.items()}
        for kind in (TASKS, UPDATES):
            if kind in moments:
                self._expire(kind, moments[kind])
        records = RecordExpiry(
            *(reader, self.changes, self.report),
            may_read=self._is_readable,
            stays=self._give_back,
        )
        records.expire(moments)
        if UPDATES in moments and moments[UPDATES] != reader.files.kept_from.get(UPDATES):
            self.changes.kept_from[UPDATES] = moments[UPDATES]
        if SESSIONS in moments:
            self._expire_sessions(moments[SESSIONS])
        for session, place in sorted(self._last.items()):
            self.changes.add(SESSIONS, ALL_MONTHS, [session, *place], (session, place))

    def _expire(self, kind: str, before_us: int) -> None:
        self.report.add(kind, 0)
        months: defaultdict[str, list[DataFile]] = defaultdict(list)
        for file in self._reader.files.of(kind):
            months[file.month].append(file)
        for _, files in sorted(months.items()):
            whole = [file for file in files if _latest_us(file) < before_us]
            part = [file for file in files if _earliest_us(file) < before_us <= _latest_us(file)]
            gone = [file for file in whole if self._goes(file)]
            self.report.add(
                kind, sum(file.rows for file in gone), partitions=int(len(gone) == len(files))
            )
            for file in part:
                self._rewrite(file, before_us)

    def _goes(self, file: DataFile) -> bool:
        # The rows of tasks need not be read.
        if file.kind == UPDATES:
            if not self._is_readable(file):
                return False
            self._record_last(self._reader.keys(file, None))
        self.changes.gone[file.name] = file
        return True

    def _rewrite(self, file: DataFile, before_us: int) -> None:
        if not self._is_readable(file):
            return
        if file.kind == TASKS:
            table = self._reader.keys(file, None, ["ended_at"])
            mask = pc.less(table["ended_at"].cast(pa.int64()), before_us)
        else:
            table = self._reader.keys(file, None)
            mask = pc.less(table["at"].cast(pa.int64()), -(-before_us // 1000))
        expired = table.filter(mask)
        if is_left(file, expired.num_rows, self.report):
            self._give_back(file)
            return
        if expired.num_rows:
            self.changes.edit(file).expired_us = before_us
            self.report.add(file.kind, expired.num_rows)
            if file.kind == UPDATES:
                self._record_last(expired)

    def _is_missing(self, file: DataFile) -> bool:
        if file.name not in self._missing:
            return False
        self.report.left[file.name] = "is missing"
        return True

    def _is_readable(self, file: DataFile) -> bool:
        return not self._is_missing(file) and self._may_read(file)

    def _may_read(self, file: DataFile) -> bool:
        """Return whether the call may read a file, by the rows that it has read."""
        if self._left < _MOST and file.rows > self._left:
            self.report.more = True
            return False
        self._left -= file.rows
        return True

    def _give_back(self, file: DataFile) -> None:
        """Count a file as not read. It stays, and the next call would begin with it again."""
        self._left += file.rows

    def _record_last(self, table: Any) -> None:
        kept = table.filter(pc.invert(table["lost"]))
        for session, place in zip(kept["session_id"].to_pylist(), places(kept), strict=True):
            self._last[session] = max(self._last.get(session, place), place)

    def _expire_sessions(self, before_us: int) -> None:
        """Remove the last places of sessions of which nothing else is kept."""
        self.report.add(SESSIONS, 0)
        last = dict(self._last)
        files: defaultdict[str, list[DataFile]] = defaultdict(list)
        for file in self._reader.files.of(SESSIONS):
            if self._is_missing(file):
                continue
            table = self._reader.keys(file, None)
            for session, place in zip(table["session_id"].to_pylist(), places(table), strict=True):
                last[session] = max(last.get(session, place), place)
                files[session].append(file)
        over = {session for session, (ms, _) in last.items() if ms * 1000 < before_us}
        over -= self._with_more(over)
        for session in over:
            self._last.pop(session, None)
            for file in files[session]:
                self.changes.edit(file).without.add(session)
        self.report.add(SESSIONS, len(over))

    def _with_more(self, sessions: set[str]) -> set[str]:
        """Return those of which tasks or updates stay."""
        some: defaultdict[str, set[str]] = defaultdict(set)
        for session in sessions:
            digest = digest_of(session)
            for place in (digest, digest[0]):
                some[place].add(session)
        more: set[str] = set()
        for kind, column in ((TASKS, "ended_at"), (UPDATES, "at")):
            chosen = {
                file.name: file for place in some for file in self._reader.files.at(kind, place)
            }
            for file in chosen.values():
                if file.name not in self.changes.gone and not self._is_missing(file):
                    table = self._reader.keys(file, None, ["session_id", column])
                    edit = self.changes.edits.get(file.name)
                    if edit is not None:
                        us = table[column].cast(_TIME_US).cast(pa.int64())
                        table = table.filter(pc.greater_equal(us, edit.expired_us))
                    more |= sessions.intersection(table["session_id"].unique().to_pylist())
        return more


def _latest_us(file: DataFile) -> int:
    return file.ended[1] if file.ended is not None else file.most * 1000


def _earliest_us(file: DataFile) -> int:
    return file.ended[0] if file.ended is not None else file.least * 1000


def _us(moment: datetime) -> int:
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (at - _EPOCH) // _US
