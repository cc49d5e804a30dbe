"""Make few large files of many small ones, and delete what does not count.

New files become one file for each bucket of their month. When a bucket's month has many files below
the size of a large one, they become one. So each row is written again few times.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from redis_state.archive.parquet.files.columns import KINDS, SESSIONS, last_of_each, pa
from redis_state.archive.parquet.files.log import NEW, DataFile, FileLog, LogChange
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import delete_files, put, split

# New files are merged so many at once at most, or of so many bytes.
_AT_ONCE, _BYTES = 512, 64 << 20
_LARGE = 16 << 20
# For so long a reader may still need what counts no more, and a writer what does not count yet.
GRACE = timedelta(minutes=10)
_ATTEMPTS = 5


def compact(log: FileLog, footers: OrderedDict[str, Any], *, few: int) -> int:
    """Merge files; return how many there are fewer. ``few`` files of a bucket stay as they are.

    A crash leaves what was committed, and files that do not count.
    """
    before = len(log.files().by_name)
    for kind in KINDS:
        while _step(log, footers, kind, few):
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


def _step(log: FileLog, footers: OrderedDict[str, Any], kind: str, few: int) -> bool:
    """Merge some files of a kind; return whether there were any."""
    for _ in range(_ATTEMPTS):
        reader = FileReader(log, footers)
        some = next(_mergeable(reader, kind, few), None)
        if some is None:
            return False
        made = _merge(log, reader, some)
        # An entry that touches none of them only takes the number.
        while not log.commit(LogChange(made, [file.name for file in some])):
            if not {file.name for file in some} <= log.files().by_name.keys():
                delete_files(log, [file.name for file in made])
                break
        else:
            return True
    return False


def _mergeable(reader: FileReader, kind: str, few: int) -> Iterator[list[DataFile]]:
    placed: defaultdict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in reader.files.of(kind):
        if file.bucket == NEW or file.bytes < _LARGE:
            placed[file.month, file.bucket].append(file)
    for (_, bucket), files in sorted(placed.items(), reverse=True):
        if bucket == NEW or len(files) > few:
            yield _first(sorted(files, key=lambda file: (file.bytes, file.name)))


def _first(files: Sequence[DataFile]) -> list[DataFile]:
    some: list[DataFile] = []
    for file in files[:_AT_ONCE]:
        if len(some) > 1 and sum(each.bytes for each in some) + file.bytes > _BYTES:
            break
        some.append(file)
    return some


def _merge(log: FileLog, reader: FileReader, some: Sequence[DataFile]) -> list[DataFile]:
    kind, month, bucket = some[0].kind, some[0].month, some[0].bucket
    table = pa.concat_tables([reader.table(file) for file in some])
    if kind == SESSIONS:
        table = last_of_each(table)
    parts = split(table, kind) if bucket == NEW else {bucket: table}
    return [put(log, part, kind, month, into) for into, part in parts.items()]
