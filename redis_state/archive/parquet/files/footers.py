"""What a process keeps of files from call to call: they never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Mapping
from typing import Any

from redis_state.archive.parquet.files.columns import OWNERS, SCHEMAS, Task
from redis_state.archive.parquet.files.data_files import NEW, DataFile
from redis_state.archive.parquet.files.owners import OWNERS_ENTRY, OwnerFilter

# A footer has some 20 KB, a filter 1.25 KB for a thousand owners, a new file's tasks some 6 KB.
_FOOTERS, _FILTERS, _TASKS = 512, 8192, 512


class Footer:
    """What a file says of itself: which of its row groups may have rows of an owner."""

    def __init__(self, metadata: Any, kind: str) -> None:
        self.metadata: Any = metadata
        self.owners: OwnerFilter | None = None
        self._place = SCHEMAS[kind].names.index(OWNERS[kind])
        about: dict[bytes, bytes] = metadata.metadata or {}
        if OWNERS_ENTRY in about:
            self.owners = OwnerFilter.read(about[OWNERS_ENTRY])

    def groups(self, owner: str | None, only: Container[int] | None = None) -> list[int]:
        """Return the numbers of the row groups that may have rows of an owner, of all for None."""
        if owner is not None and self.owners is not None and owner not in self.owners:
            return []
        chosen = range(self.metadata.num_row_groups)
        return [n for n in chosen if (only is None or n in only) and self._may_have(n, owner)]

    def _may_have(self, n: int, owner: str | None) -> bool:
        if owner is None:
            return True
        seen = self.metadata.row_group(n).column(self._place).statistics
        return seen is None or not seen.has_min_max or bool(seen.min <= owner <= seen.max)


class Footers:
    """The footers of the compacted files that were read last, and the filters of many more.

    Of a new file the log has the owners, and it soon counts no more. Of new files of tasks the keys
    are kept, with version and write: busy sessions have tasks in all of them. All threads of a
    process share them, also one that nobody waits for any more: a file's name is never used again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._filters: OrderedDict[str, OwnerFilter] = OrderedDict()
        self._tasks: OrderedDict[str, Mapping[Task, tuple[int, str]]] = OrderedDict()

    def may_have(self, file: DataFile, owner: str) -> bool:
        """Return whether a file may have rows of an owner, by its filter if that is known."""
        with self._lock:
            known = self._filters.get(file.name)
            if known is None:
                return True
            self._filters.move_to_end(file.name)
        return owner in known

    def tasks(self, file: DataFile) -> Mapping[Task, tuple[int, str]] | None:
        """Return the tasks of a file if they are known: version and write of each."""
        with self._lock:
            known = self._tasks.get(file.name)
            if known is not None:
                self._tasks.move_to_end(file.name)
        return known

    def keep_tasks(self, file: DataFile, tasks: Mapping[Task, tuple[int, str]]) -> None:
        """Keep the tasks of a file."""
        with self._lock:
            _keep(self._tasks, file.name, tasks, most=_TASKS)

    def metadata(self, file: DataFile) -> Any:
        """Return what is known of a file's footer, for pyarrow; None for nothing."""
        with self._lock:
            known = self._footers.get(file.name)
        return None if known is None else known.metadata

    def of(self, file: DataFile, opened: Any) -> Footer:
        """Return the footer of an open file, and keep it."""
        with self._lock:
            footer = self._footers.get(file.name)
        if footer is None:
            footer = Footer(opened.metadata, file.kind)
        if file.bucket != NEW:
            with self._lock:
                _keep(self._footers, file.name, footer, most=_FOOTERS)
                if footer.owners is not None:
                    _keep(self._filters, file.name, footer.owners, most=_FILTERS)
        return footer


def _keep(kept: OrderedDict[str, Any], name: str, what: Any, *, most: int) -> None:
    kept[name] = what
    kept.move_to_end(name)
    if len(kept) > most:
        kept.popitem(last=False)
