"""What of a batch was erased since it was read. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind, SessionRows

# Of which the owner is a session.
OF_SESSIONS: Final = frozenset(
    {RecordKind.TRAJECTORY, RecordKind.AGENT_SESSION, RecordKind.ARTIFACT}
)
# A session's id that another scope may have, or that is one sign shorter than such an id.
_LIKE_A_SCOPE = re.compile(r"~*event:[0-9a-f]{64}")


def session_scope(session_id: str) -> str:
    """Return the name under which the erasure of a session is marked: its id.

    Users choose ids. One that is like the scope of a trace has one more sign here: the erasure of
    such a session is not to keep the events of that trace from being archived.
    """
    return f"~{session_id}" if _LIKE_A_SCOPE.fullmatch(session_id) else session_id


def of_sessions(marks: Mapping[str, int], session_ids: Iterable[str]) -> dict[str, int]:
    """Return the marks of scopes by the ids of their sessions."""
    scopes = {each: session_scope(each) for each in session_ids}
    return {each: marks[scope] for each, scope in scopes.items() if scope in marks}


def scope_of(kind: RecordKind, owner: str) -> str:
    """Return the name under which the erasure of an owner's records is marked.

    It is that of the session, if a session owns them. A trace may have the name of a session.
    """
    if kind in OF_SESSIONS:
        return session_scope(owner)
    return f"{kind.value}:{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()}"


def scopes_in(batch: ArchiveBatch) -> set[str]:
    """Return the scopes of the sessions, and other scopes, that a batch has something of."""
    sessions = {task.session_id for task in batch.tasks}
    sessions |= {rows.session_id for rows in batch.sessions}
    scopes = {scope_of(record.kind, record.owner) for record in batch.records}
    return scopes.union(map(session_scope, sessions))


def without_erased(batch: ArchiveBatch, before: Mapping[str, int]) -> ArchiveBatch:
    """Leave out what is of before its erasure. ``before`` has the times of scopes, in us."""
    if not before:
        return batch
    return ArchiveBatch(
        [task for task in batch.tasks if task.born_us >= _since_us(task.session_id, before)],
        list(_later(batch.sessions, before)),
        [record for record in batch.records if record.born_us >= _erased_us(record, before)],
    )


def _since_us(session_id: str, before: Mapping[str, int]) -> int:
    return before.get(session_scope(session_id), 0)


def _erased_us(record: ArchivedRecord, before: Mapping[str, int]) -> int:
    return before.get(scope_of(record.kind, record.owner), 0)


def _later(sessions: Sequence[SessionRows], before: Mapping[str, int]) -> Iterable[SessionRows]:
    for each in sessions:
        since_us = _since_us(each.session_id, before)
        rows = [row for row in each.rows if row.ms * 1000 >= since_us]
        lost = each.lost_behind
        if lost is not None and lost[1] * 1000 < since_us:
            lost = None
        if rows or lost is not None:
            yield replace(each, rows=rows, lost_behind=lost)
