"""What of a batch was erased since it was read. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind, SessionRows

# Of which the owner is a session.
OF_SESSIONS: Final = frozenset(
    {RecordKind.TRAJECTORY, RecordKind.AGENT_SESSION, RecordKind.ARTIFACT}
)


def scope_of(kind: RecordKind, owner: str) -> str:
    """Return the name under which the erasure of an owner's records is marked.

    It is the session, if a session owns them. A trace may have the name of a session.
    """
    if kind in OF_SESSIONS:
        return owner
    return f"{kind.value}:{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()}"


def sessions_in(batch: ArchiveBatch) -> set[str]:
    """Return the sessions, and other scopes, that a batch has something of."""
    sessions = {task.session_id for task in batch.tasks}
    sessions |= {rows.session_id for rows in batch.sessions}
    return sessions | {scope_of(record.kind, record.owner) for record in batch.records}


def without_erased(batch: ArchiveBatch, before: Mapping[str, int]) -> ArchiveBatch:
    """Leave out what is of before the erasure of its session. ``before`` has times in us."""
    if not before:
        return batch
    return ArchiveBatch(
        [task for task in batch.tasks if task.born_us >= before.get(task.session_id, 0)],
        list(_later(batch.sessions, before)),
        [record for record in batch.records if record.born_us >= _erased_us(record, before)],
    )


def _erased_us(record: ArchivedRecord, before: Mapping[str, int]) -> int:
    return before.get(scope_of(record.kind, record.owner), 0)


def _later(sessions: Sequence[SessionRows], before: Mapping[str, int]) -> Iterable[SessionRows]:
    for each in sessions:
        since_us = before.get(each.session_id, 0)
        rows = [row for row in each.rows if row.ms * 1000 >= since_us]
        lost = each.lost_behind
        if lost is not None and lost[1] * 1000 < since_us:
            lost = None
        if rows or lost is not None:
            yield replace(each, rows=rows, lost_behind=lost)
