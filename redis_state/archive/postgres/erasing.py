"""Erased sessions: a mark for each, and the lock that orders it and what is written.

A writer holds its sessions' locks together with other writers. An erasure holds its session's
alone. So a writer comes before an erasure, which removes what it wrote, or after, and sees the
mark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any, Final

from psycopg import AsyncConnection, AsyncCursor

from redis_state.archive import erased
from redis_state.archive.encoding import moment_of_us
from redis_state.archive.model import ArchiveBatch, RecordKind
from redis_state.archive.postgres.rows import us_of
from redis_state.postgres.text import id_of, id_text

# In one order, so that two who take several do not wait for each other.
_LOCK_TOGETHER: Final = """
SELECT pg_advisory_xact_lock_shared(lock)
FROM (SELECT DISTINCT lock FROM unnest(%s::bigint[]) AS lock ORDER BY lock) AS locks
"""
_LOCK_ALONE: Final = """
SELECT pg_advisory_xact_lock(lock)
FROM (SELECT DISTINCT lock FROM unnest(%s::bigint[]) AS lock ORDER BY lock) AS locks
"""
_MARK: Final = """
INSERT INTO redis_state.erasures AS kept (namespace, session_digest, before)
SELECT %s, digest, %s FROM unnest(%s::bytea[]) AS digest
ON CONFLICT (namespace, session_digest) DO UPDATE
SET before = greatest(kept.before, excluded.before), erased_at = now()
"""
_MARKS: Final = """
SELECT session_digest, before FROM redis_state.erasures
WHERE namespace = %s AND session_digest = ANY(%s)
"""
# Attributes are as `json.dumps` wrote them: no text in them has an unescaped quotation mark, so a
# name with its own is found as it is. Operators of JSON refuse some characters.
_SESSIONS_OF: Final = """
SELECT session_id, min(whole), bool_or(NOT its) FROM (
    SELECT session_id, long_ids->>0 AS whole,
        strpos(attributes::text, %s) > 0 OR strpos(attributes::text, %s) > 0 AS its
    FROM redis_state.tasks
    WHERE namespace = %s AND strpos(attributes::text, %s) > 0
) AS found
GROUP BY session_id HAVING bool_or(its) OR session_id = ANY(%s)
ORDER BY session_id
"""
_OWNERS_WITH: Final = """
SELECT DISTINCT owner, long_ids->>0 FROM redis_state.records
WHERE namespace = %s AND kind = %s
AND EXISTS (SELECT FROM unnest(%s::bytea[]) AS part WHERE position(part IN data) > 0)
"""


async def mark(
    connection: AsyncConnection[Any],
    namespace: str,
    scopes: Iterable[str],
    before_us: int | None,
) -> None:
    """Take the locks of scopes alone, and mark them as erased, within a transaction."""
    digests = list({_digest(namespace, each) for each in scopes})
    await connection.execute(_LOCK_ALONE, [[_lock(digest) for digest in digests]])
    if before_us is not None:
        await connection.execute(_MARK, [namespace, moment_of_us(before_us), digests])


async def marks(cursor: AsyncCursor[Any], namespace: str, scopes: Iterable[str]) -> dict[str, int]:
    """Return up to which time scopes were erased, in us, if any were."""
    digests = {_digest(namespace, each): each for each in scopes}
    await cursor.execute(_MARKS, [namespace, list(digests)])
    return {digests[bytes(digest)]: us_of(before) for digest, before in await cursor.fetchall()}


async def without_erased(
    cursor: AsyncCursor[Any], namespace: str, batch: ArchiveBatch
) -> ArchiveBatch:
    """Take the locks of a batch's sessions, and leave out what was erased of it."""
    scopes = erased.scopes_in(batch)
    locks = [_lock(_digest(namespace, each)) for each in scopes]
    await cursor.execute(_LOCK_TOGETHER, [locks])
    return erased.without_erased(batch, await marks(cursor, namespace, scopes))


async def sessions_of(
    connection: AsyncConnection[Any],
    namespace: str,
    attribute: str,
    value: Any,
    also: Collection[str],
) -> dict[str, bool]:
    """Return the sessions of tasks that have this attribute, each with whether one has another.

    Of the sessions in ``also`` those too that have another value alone.
    """
    name = f"{json.dumps(attribute)}: "
    pair = name + json.dumps(value)
    named = [id_text(each) for each in also]
    found = await connection.execute(_SESSIONS_OF, [f"{pair},", pair + "}", namespace, name, named])
    return {
        id_of(session, None if whole is None else [whole], 0): has_other
        for session, whole, has_other in await found.fetchall()
    }


async def owners_with(
    connection: AsyncConnection[Any], namespace: str, kind: RecordKind, parts: Collection[bytes]
) -> frozenset[str]:
    """Return the owners of records of a kind whose data has any of these bytes."""
    found = await connection.execute(_OWNERS_WITH, [namespace, kind.value, list(parts)])
    return frozenset(
        [
            id_of(owner, None if whole is None else [whole], 0)
            for owner, whole in await found.fetchall()
        ]
    )


def _digest(namespace: str, session_id: str) -> bytes:
    return hashlib.sha256(f"{namespace}\n{id_text(session_id)}".encode()).digest()


def _lock(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)
