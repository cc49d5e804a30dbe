"""What the archive has of a task that Redis has no more: its record and its journal."""

from __future__ import annotations

from typing import Any

from redis_state.archive.model import ArchivedTask
from redis_state.errors import CorruptState
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.recorded.journal import (
    StepRecord,
    fetch_result,
    part_name,
    read_entries,
)

# What `read_journal` leaves out: chunks, counts, values, mail, and the ends of children.
_NOT_READ = frozenset(b"versions entries part end value values mail box mailed due asks".split())


async def load_archived(
    store: RedisStateStore, session_id: str, task_id: str
) -> ArchivedTask | None:
    """Return a task that Redis does not have as the archive has it, with its journal.

    None if there is no archive, or none of its tasks has the id. Errors: ArchiveUnavailable.
    """
    if not store.settings.has_archive:
        return None
    reader = store.archive
    return await reader.soon(lambda: reader.archived(session_id, task_id))


class ArchivedJournal:
    """The journal of an archived task."""

    def __init__(self, store: RedisStateStore, task: ArchivedTask) -> None:
        self._payloads = store.base.payloads
        self._task = task
        self._keys = store.tasks.keys(task.session_id, task.task_id)

    def read(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the entries by name. Like `Journals.read`. Errors: ValueError."""
        named = (
            (entry.decode("utf-8", "surrogatepass"), note)
            for entry, note in self._task.journal.items()
            if entry.partition(b":")[0] not in _NOT_READ
        )
        return read_entries(self._payloads, self._task.task_id, named, whole=whole)

    async def result(self, entry: str, note: StepRecord) -> Any:
        """Return a recorded step's result. Errors: CorruptState, PayloadLost."""
        data: bytes | None = None
        if note.chunks:
            names = (part_name(entry, number) for number in range(note.chunks))
            try:
                data = b"".join(self._task.journal[name] for name in names)
            except KeyError:
                gone = f"a chunk of {entry!r} is gone"
                raise CorruptState(self._keys.journal, gone) from None
        return await fetch_result(self._payloads, self._keys, entry, note, data)
