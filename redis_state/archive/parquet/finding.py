"""Find archived tasks in the order of their creation, or of their ends.

First which they are, then the records. Files have bounds of the times of creation and of the ends.
A page reads the times of those files that it reaches, then so many tasks and no more, however rare
what is wanted is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_state.archive.encoding import ID_BYTES, TIME_BYTES, moment_of_us, place_us, task_place
from redis_state.archive.model import ArchivedTask
from redis_state.archive.parquet.files.columns import TASKS, Task, digest_of, pa, pc, tasks_of
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.reading import FileReader, fitting
from redis_state.archive.queries import ArchivedPage, ArchiveListing
from redis_state.models import TaskStatus
from redis_state.postgres.text import plain_text, text_of
from redis_state.stores.task_index import LATEST_US

# So many tasks are read for one that may be returned, and at least so many for a page.
_READ_FOR_ONE, _LEAST = 4, 400
# The last id of a microsecond: of listings with the oldest first, and with the newest first.
_LAST_ID = (b"\xff" * ID_BYTES, b"\0" * ID_BYTES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_KEYS = ["session_id", "task_id", "born", "status", "handler", "attributes"]


@dataclass(frozen=True, slots=True)
class _At:
    """Where a task stands: its time, its file, its row group there, and its row in it."""

    us: int
    file: DataFile
    group: int
    row: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Return where it is, as a key."""
        return self.file.name, self.group, self.row


@dataclass(frozen=True, slots=True)
class _FoundTask:
    place: bytes
    key: Task
    at: _At


def find_tasks(reader: FileReader, listing: ArchiveListing) -> ArchivedPage:
    """See `Archive.find`. What is read is what the log had at one moment."""
    most = max(_LEAST, listing.limit * _READ_FOR_ONE)
    first = _First(reader, listing, most)
    wanted = [each for each in _read(reader, first.found) if _is_wanted(each, listing)]
    found = sorted(
        (each for each, _ in wanted if listing.reaches(each.place)),
        key=lambda each: each.place,
        reverse=listing.newest_first,
    )
    chosen = found[: listing.limit]
    end: bytes | None = None
    if first.more:
        us = min(max(first.found[-1].us, 0), LATEST_US)
        end = us.to_bytes(TIME_BYTES, "big") + _LAST_ID[listing.newest_first]
    if len(found) > len(chosen) or (end is not None and len(chosen) == listing.limit):
        end = chosen[-1].place
    later = _used_again(reader, [each.key for each in chosen])
    read = _sized(reader, [each.at for each in chosen if each.key not in later])
    whole = fitting(read[each.at.place][0] if each.at.place in read else 0 for each in chosen)
    if whole < len(chosen):
        chosen, end = chosen[:whole], chosen[whole - 1].place
    tasks = _records(read[each.at.place][1] for each in chosen if each.at.place in read)
    return ArchivedPage(sorted(tasks, key=listing.place_of, reverse=listing.newest_first), end)


class _First:
    """The first tasks of a listing by their times, and whether there are more.

    Of the last of these times all tasks are there: their places decide which come first.
    """

    def __init__(self, reader: FileReader, listing: ArchiveListing, most: int) -> None:
        self.found: list[_At] = []
        self.more: bool = False
        self._reader = reader
        self._listing = listing
        self._at = _column(listing)
        self._most = most
        # Of the last one, once there are enough.
        self._last_us: int | None = None
        self._session = None if listing.session_id is None else plain_text(listing.session_id)
        self._range = _range(listing)
        files = reader.files.of(TASKS)
        if self._session is not None:
            files = reader.files.having(TASKS, digest_of(self._session))
        newest = listing.newest_first
        in_range = [
            file
            for file in sorted(files, key=lambda file: self._bounds(file)[newest], reverse=newest)
            if self._bounds(file)[0] <= self._range[1] and self._bounds(file)[1] >= self._range[0]
        ]
        for file, groups in self._reader.groups_of(in_range, self._session, self._columns):
            begin, end = self._bounds(file)
            if self._has_enough(end if newest else begin):
                self.more = True
                return
            self._add(file, groups)

    def _bounds(self, file: DataFile) -> tuple[int, int]:
        return (file.ended if self._listing.by_end else file.created) or (0, 0)

    def _has_enough(self, us: int) -> bool:
        """Return whether there are enough tasks that come before a time."""
        if self._last_us is None:
            return False
        return us < self._last_us if self._listing.newest_first else us > self._last_us

    @property
    def _columns(self) -> list[str]:
        listing = self._listing
        columns = [self._at, *(["session_id"] if self._session is not None else [])]
        columns += ["created_at"] if listing.made_between != (None, None) else []
        columns += ["handler"] if listing.handler is not None else []
        return columns + (["status"] if listing.statuses else [])

    def _add(self, file: DataFile, groups: Iterable[tuple[int, Any]]) -> None:
        for group, table in groups:
            us = table[self._at].cast(pa.int64())
            rows = pc.indices_nonzero(self._mask(table, us))
            times = pc.take(us, rows).to_pylist()
            for at_us, row in zip(times, rows.to_pylist(), strict=True):
                if self._has_enough(at_us):
                    self.more = True
                else:
                    self.found.append(_At(at_us, file, group, row))
            self._cut()

    def _mask(self, table: Any, us: Any) -> Any:
        listing = self._listing
        least, most = self._range
        mask = pc.and_(pc.greater_equal(us, least), pc.less_equal(us, most))
        since, before = listing.made_between
        if since is not None:
            mask = pc.and_(mask, pc.greater_equal(_created(table), _us(since)))
        if before is not None:
            mask = pc.and_(mask, pc.less(_created(table), _us(before)))
        if self._session is not None:
            mask = pc.and_(mask, pc.equal(table["session_id"], self._session))
        if listing.handler is not None:
            mask = pc.and_(mask, pc.equal(table["handler"], plain_text(listing.handler)))
        if listing.statuses:
            names = pa.array([status.value for status in listing.statuses])
            mask = pc.and_(mask, pc.is_in(table["status"], value_set=names))
        return mask

    def _cut(self) -> None:
        """Leave as many as are wanted, and those of the last time."""
        newest = self._listing.newest_first
        self.found.sort(key=lambda at: at.us, reverse=newest)
        if len(self.found) >= self._most:
            self._last_us = self.found[self._most - 1].us
            kept = [at for at in self.found if not self._has_enough(at.us)]
            self.more |= len(kept) < len(self.found)
            self.found = kept


def _read(reader: FileReader, found: Sequence[_At]) -> list[tuple[_FoundTask, dict[str, Any]]]:
    read: list[tuple[_FoundTask, dict[str, Any]]] = []
    for table, chosen in _tables(reader, found, _KEYS):
        born = table["born"].cast(pa.int64()).to_pylist()
        columns = table.drop_columns(["born"]).to_pylist()
        for each, born_us, at in zip(columns, born, chosen, strict=True):
            session, task = each["session_id"], each["task_id"]
            place = task_place(text_of(session), text_of(task), moment_of_us(at.us))
            read.append((_FoundTask(place, (session, task, born_us), at), each))
    return read


def _is_wanted(read: tuple[_FoundTask, dict[str, Any]], listing: ArchiveListing) -> bool:
    columns = read[1]
    return listing.matches(
        session_id=text_of(columns["session_id"]),
        handler=text_of(columns["handler"]),
        status=TaskStatus(columns["status"]),
        attributes=json.loads(columns["attributes"]) if listing.attributes else {},
    )


def _sized(reader: FileReader, found: Sequence[_At]) -> dict[tuple[str, int, int], tuple[int, Any]]:
    """Return the row of each task, and how many bytes its record has."""
    read: dict[tuple[str, int, int], tuple[int, Any]] = {}
    for table, chosen in _tables(reader, found, ["session_id", "task_id", "record"]):
        sizes = pc.binary_length(table["record"]).to_pylist()
        for n, (at, size) in enumerate(zip(chosen, sizes, strict=True)):
            read[at.place] = (size, table.slice(n, 1))
    return read


def _records(rows: Iterable[Any]) -> list[ArchivedTask]:
    tasks: list[ArchivedTask] = []
    for row in rows:
        tasks += tasks_of(row.append_column("journal", pa.array(["{}"], pa.string())))
    return tasks


def _tables(
    reader: FileReader, found: Sequence[_At], columns: Sequence[str]
) -> list[tuple[Any, list[_At]]]:
    """Return those columns of tasks, of each file's row group at once."""
    placed: defaultdict[str, dict[int, list[_At]]] = defaultdict(dict)
    files: dict[str, DataFile] = {}
    for at in found:
        files[at.file.name] = at.file
        placed[at.file.name].setdefault(at.group, []).append(at)
    rows = {
        name: {n: [at.row for at in some] for n, some in groups.items()}
        for name, groups in placed.items()
    }
    return [
        (table, placed[file.name][n])
        for file, groups in reader.groups_of(files.values(), None, columns, rows=rows)
        for n, table in groups
    ]


def _used_again(reader: FileReader, keys: Sequence[Task]) -> set[Task]:
    """Return those whose id was used again: a later task has it."""
    first: dict[str, int] = {}
    for session, _, us in keys:
        first[session] = min(us, first.get(session, us))
    asked = [
        (file, session)
        for session, us in first.items()
        for file in reader.files.having(TASKS, digest_of(session))
        if file.most > us
    ]
    latest: dict[tuple[str, str], int] = {}
    for _, table in reader.keys_of(asked, ["session_id", "task_id", "born"]):
        columns = (table["session_id"], table["task_id"], table["born"].cast(pa.int64()))
        for session, task, us in zip(*(each.to_pylist() for each in columns), strict=True):
            latest[session, task] = max(us, latest.get((session, task), us))
    return {key for key in keys if latest.get(key[:2], key[2]) > key[2]}


def _range(listing: ArchiveListing) -> tuple[int, int]:
    """Return the first and the last time that is wanted."""
    least, most = [-(1 << 62)], [1 << 62]
    since, before = listing.bounds
    if since is not None:
        least.append(_us(since))
    if before is not None:
        most.append(_us(before) - 1)
    onward, back = (most, least) if listing.newest_first else (least, most)
    if listing.after is not None:
        # All of a microsecond's places were read: the next one begins behind it.
        done = listing.after[TIME_BYTES:] == _LAST_ID[listing.newest_first]
        step = (-1 if listing.newest_first else 1) if done else 0
        onward.append(place_us(listing.after) + step)
    if listing.until is not None:
        back.append(place_us(listing.until))
    return max(least), min(most)


def _column(listing: ArchiveListing) -> str:
    return "ended_at" if listing.by_end else "created_at"


def _created(table: Any) -> Any:
    return table["created_at"].cast(pa.int64())


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // _US
