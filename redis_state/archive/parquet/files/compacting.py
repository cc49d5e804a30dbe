"""Make few large files of many small ones, and delete what does not count.

New files become one file for each bucket of their month. When a bucket's month has many files below
the size of a large one, they become one. So each row is written again few times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from redis_state.archive.parquet.files.columns import KINDS, SESSIONS, last_of_each, pa
from redis_state.archive.parquet.files.data_files import NEW, DataFile
from redis_state.archive.parquet.files.footers import Footers
from redis_state.archive.parquet.files.log import FileLog, LogChange
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import delete_files, put, split

# New files are merged so many at once at most, or of so many bytes in memory.
_AT_ONCE, _BYTES = 512, 64 << 20
_LARGE = 16 << 20
# For so long a reader may still need what counts no more, and a writer what does not count yet.
GRACE = timedelta(minutes=10)
_ATTEMPTS = 5
_Read = tuple[DataFile, Any]


def compact(log: FileLog, footers: Footers, *, few: int) -> int:
    """Merge files; return how many there are fewer. ``few`` files of a bucket stay as they are.

    A crash leaves what was committed, and files that do not count.
    """
    before = len(log.files().by_name)
    # What is missing, and what is large in memory although it is a small file.
    left = set(log.missing())
    for kind in KINDS:
        while _step(log, footers, kind, few, left):
            pass
    return before - len(log.files().by_name)


def clean(log: FileLog, *, grace: timedelta = GRACE) -> int:
    """Delete files that do not count, and entries that nobody reads; return how many files."""
    files, before = log.files(), log.now() - grace
    log.write_whole(files)
    log.clean(before)
    names = {f"{log.folder}/{name}" for name in files.by_name}
    recent = {f"{log.folder}/{name}" for name, at in files.removed.items() if at >= before}
    over = [
        each.name
        for kind in KINDS
        for each in log.objects.names(f"{log.folder}/{kind}")
        if each.name not in names and each.name not in recent and each.at < before
    ]
    log.objects.delete(over)
    return len(over)


def _step(log: FileLog, footers: Footers, kind: str, few: int, left: set[str]) -> bool:
    """Merge some files of a kind; return whether there were any. ``left`` ones stay as they are."""
    for _ in range(_ATTEMPTS):
        reader = FileReader(log, footers)
        some = next(_mergeable(reader, kind, few, left), None)
        if some is None:
            return False
        made = _merge(log, kind, some)
        names = [file.name for file, _ in some]
        # An entry that touches none of them only takes the number.
        files = reader.named
        while not log.commit(LogChange(made, names), files):
            files = log.files()
            if not set(names) <= files.by_name.keys():
                delete_files(log, [file.name for file in made])
                break
        else:
            return True
    return False


def _mergeable(reader: FileReader, kind: str, few: int, left: set[str]) -> Iterator[list[_Read]]:
    """Yield files that become one, each with its table."""
    placed: defaultdict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in reader.files.of(kind):
        if file.name not in left and (file.bucket == NEW or file.bytes < _LARGE):
            placed[file.month, file.bucket].append(file)
    for (_, bucket), files in sorted(placed.items(), reverse=True):
        while bucket == NEW or len(files) > few:
            some = _first(reader, sorted(files, key=lambda file: (file.bytes, file.name)), left)
            if len(some) > (bucket != NEW):
                yield some
                break
            files = [file for file in files if file.name not in left]  # noqa: PLW2901


def _first(reader: FileReader, files: Sequence[DataFile], left: set[str]) -> list[_Read]:
    """Read the first files that have some `_BYTES` in memory together."""
    some: list[_Read] = []
    free = _BYTES
    for file in files[:_AT_ONCE]:
        # A new file has what one call wrote, and must be read whatever its size.
        table = reader.table_within(file, free if some or file.bucket != NEW else None)
        if table is None:
            if not some:
                left.add(file.name)
                continue
            break
        some.append((file, table))
        free -= table.nbytes
    if len(some) == 1 and some[0][0].bucket != NEW:
        # No other one fits beside it.
        left.add(some[0][0].name)
    return some


def _merge(log: FileLog, kind: str, some: Sequence[_Read]) -> list[DataFile]:
    month, bucket = some[0][0].month, some[0][0].bucket
    table = pa.concat_tables([table for _, table in some])
    if kind == SESSIONS:
        table = last_of_each(table)
    parts = split(table, kind) if bucket == NEW else {bucket: table}
    return [put(log, part, kind, month, into) for into, part in parts.items()]
