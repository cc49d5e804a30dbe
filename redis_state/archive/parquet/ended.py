"""Find archived tasks, the last that ended first: first which they are, then what fits a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from redis_state.archive.model import ArchivedTask
from redis_state.archive.parquet.files.columns import SCHEMAS, TASKS, digest_of, pa, pc, tasks_of
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.reading import FileReader, fitting
from redis_state.archive.queries import ArchiveQuery
from redis_state.postgres.text import plain_text

_ORDER = [
    ("ended_at", "descending"),
    ("session_id", "ascending"),
    ("task_id", "ascending"),
    ("born", "descending"),
]
_KEYS = ["session_id", "task_id", "born", "ended_at", "status", "handler", "trace_id"]
_WHOLE = ["session_id", "task_id", "record", "journal"]


class _EndedAt(NamedTuple):
    """Where a task is: its file, its row group there, and its row in it."""

    file: str
    group: int
    row: int


def ended_tasks(reader: FileReader, query: ArchiveQuery) -> list[ArchivedTask]:
    """Return tasks in the order of their ends, of 4 MiB or one task.

    In memory are the keys of all tasks of a few files at a time, and then one whole row group of
    each.
    """
    session = None if query.session_id is None else plain_text(query.session_id)
    of = reader.files.of(TASKS)
    files = of if session is None else reader.files.having(TASKS, digest_of(session))
    keys = SCHEMAS[TASKS].empty_table().select(_KEYS)
    for name, kind in (("file", pa.string()), ("group", pa.int64()), ("row", pa.int64())):
        keys = keys.append_column(name, pa.array([], kind))
    ordered = sorted(files, key=_bounds, reverse=True)
    least = None if query.ended_after is None else _us(query.ended_after)
    in_range = [file for file in ordered if least is None or _bounds(file)[1] >= least]
    for file, groups in reader.groups_of(in_range, session, _KEYS):
        if keys.num_rows >= query.limit:
            last = keys["ended_at"].cast(pa.int64())[query.limit - 1].as_py()
            if _bounds(file)[1] < last:
                continue
        for found in _matching(file, groups, session, query):
            keys = pa.concat_tables([keys, found]).sort_by(_ORDER).slice(0, query.limit)
    places = [
        _EndedAt(*at)
        for at in zip(*(keys[name].to_pylist() for name in _EndedAt._fields), strict=True)
    ]
    named = {file.name: file for file in files}
    sizes: dict[_EndedAt, int] = {}
    for table, some in _tables(reader, named, places, _WHOLE[2:]):
        each = pc.add(*(pc.binary_length(table[name]) for name in _WHOLE[2:]))
        sizes |= zip(some, each.to_pylist(), strict=True)
    places = places[: fitting(sizes[at] for at in places)]
    tasks: dict[_EndedAt, ArchivedTask] = {}
    for table, some in _tables(reader, named, places, _WHOLE):
        tasks |= zip(some, tasks_of(table), strict=True)
    return [tasks[at] for at in places]


def _bounds(file: DataFile) -> tuple[int, int]:
    return file.ended or (0, 0)


def _matching(
    file: DataFile, groups: Iterable[tuple[int, Any]], session: str | None, query: ArchiveQuery
) -> Iterator[Any]:
    for group, table in groups:
        found = table.append_column("file", pa.array([file.name] * table.num_rows, pa.string()))
        found = found.append_column("group", pa.array([group] * table.num_rows, pa.int64()))
        found = found.append_column("row", pa.array(range(table.num_rows), pa.int64()))
        # What has no value is not equal to one.
        found = found.filter(_mask(table, session, query))
        if found.num_rows:
            yield found


def _tables(
    reader: FileReader,
    named: dict[str, DataFile],
    places: Sequence[_EndedAt],
    columns: Sequence[str],
) -> Iterator[tuple[Any, list[_EndedAt]]]:
    """Yield columns of tasks, those of one row group at a time. Some are read ahead."""
    wanted: defaultdict[str, defaultdict[int, list[_EndedAt]]]
    wanted = defaultdict(lambda: defaultdict(list))
    for at in places:
        wanted[at.file][at.group].append(at)
    files = [named[name] for name in wanted]
    rows = {
        name: {n: [at.row for at in some] for n, some in groups.items()}
        for name, groups in wanted.items()
    }
    for file, groups in reader.groups_of(files, None, columns, rows=rows):
        for group, table in groups:
            yield table, wanted[file.name][group]


def _mask(table: Any, session: str | None, query: ArchiveQuery) -> Any:
    mask: Any = pa.array([True] * table.num_rows)
    for column, value in (
        ("session_id", session),
        ("task_id", None if query.task_id is None else plain_text(query.task_id)),
        ("handler", None if query.handler is None else plain_text(query.handler)),
        ("trace_id", None if query.trace_id is None else plain_text(query.trace_id)),
    ):
        if value is not None:
            mask = pc.and_(mask, pc.equal(table[column], value))
    if query.statuses:
        wanted = pa.array([status.value for status in query.statuses])
        mask = pc.and_(mask, pc.is_in(table["status"], value_set=wanted))
    ended = table["ended_at"].cast(pa.int64())
    if query.ended_after is not None:
        mask = pc.and_(mask, pc.greater_equal(ended, _us(query.ended_after)))
    if query.ended_before is not None:
        mask = pc.and_(mask, pc.less(ended, _us(query.ended_before)))
    if query.after is not None:
        at, *ids, born_us = query.after
        behind = pc.less(table["born"].cast(pa.int64()), born_us)
        for column, value in zip(("task_id", "session_id"), reversed(ids), strict=True):
            plain = plain_text(value)
            behind = pc.or_(
                pc.greater(table[column], plain), pc.and_(pc.equal(table[column], plain), behind)
            )
        same = pc.and_(pc.equal(ended, _us(at)), behind)
        mask = pc.and_(mask, pc.or_(pc.less(ended, _us(at)), same))
    return mask


def _us(at: datetime) -> int:
    return int(pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py())
