"""Retention of records: each class has a lifetime of its own, and a file may have several classes.

The log says of each file which classes it has, and from when to when their states are. So a file
is read only if it has both what has expired and what stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from redis_state.archive.model import RecordKind
from redis_state.archive.parquet.counting import classes_of
from redis_state.archive.parquet.files.columns import RECORDS, pa, pc
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import FileChanges
from redis_state.archive.retention import RetentionReport

# A file of so many bytes is written again only if such a part of it has expired.
_LARGE, _PART = 1 << 20, 8


def is_left(file: DataFile, expired: int, report: RetentionReport) -> bool:
    """Return whether too few rows of a large file have expired to write it again; report that."""
    if file.bytes < _LARGE or expired * _PART >= file.rows:
        return False
    report.left[file.name] = f"is written again once 1/{_PART} of it has expired"
    return True


class RecordExpiry:
    """What one call of `retain` changes of records.

    ``may_read`` says whether the call may read a file: what it may not is left to a later call.
    ``stays`` is called with a file that was read and stays as it is.
    """

    def __init__(
        self,
        reader: FileReader,
        changes: FileChanges,
        report: RetentionReport,
        *,
        may_read: Callable[[DataFile], bool],
        stays: Callable[[DataFile], None],
    ) -> None:
        self._reader = reader
        self._changes = changes
        self._report = report
        self._may_read = may_read
        self._stays = stays

    def expire(self, moments: Mapping[str, int]) -> None:
        """Remove of each class that has a moment, in us, what is of before it."""
        before = {kind.value: moments[kind.what] for kind in RecordKind if kind.what in moments}
        for kind in before:
            self._report.add(RecordKind(kind).what, 0)
        months: defaultdict[str, list[DataFile]] = defaultdict(list)
        for file in self._reader.files.of(RECORDS) if before else ():
            months[file.month].append(file)
        for _, files in sorted(months.items()):
            total: Counter[str] = Counter()
            for file in files:
                total.update(self._expire(file, before))
            whole = all(file.name in self._changes.gone for file in files)
            for kind, rows in total.items():
                self._report.add(RecordKind(kind).what, rows, partitions=int(whole))

    def _expire(self, file: DataFile, before: Mapping[str, int]) -> Mapping[str, int]:
        """Remove what has expired of a file; return how much of each class."""
        # Of an older entry its classes are read in the file.
        is_read = file.classes is None
        if is_read and not self._may_read(file):
            return {}
        held = classes_of(self._reader, file)
        over = {kind: us for kind, us in before.items() if kind in held and held[kind][1] < us}
        if over and over.keys() == held.keys() and all(held[k][2] < us for k, us in over.items()):
            self._changes.gone[file.name] = file
            return {kind: held[kind][0] for kind in over}
        if not over:
            if is_read:
                self._stays(file)
            return {}
        if not is_read and not self._may_read(file):
            return {}
        found = self._count(file, over)
        if is_left(file, sum(found.values()), self._report):
            self._stays(file)
            return {}
        self._changes.edit(file).expired.update(over)
        return found

    def _count(self, file: DataFile, over: Mapping[str, int]) -> dict[str, int]:
        table = self._reader.keys(file, None, ["kind", "at"])
        at = table["at"].cast(pa.int64())
        return {
            kind: pc.sum(pc.and_(pc.equal(table["kind"], kind), pc.less(at, us))).as_py() or 0
            for kind, us in over.items()
        }
