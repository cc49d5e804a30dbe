"""The statements of the archive in PostgreSQL."""

from __future__ import annotations

from typing import Any, Final, LiteralString

from redis_state.archive.encoding import moment_of_us
from redis_state.archive.postgres.rows import RECORD_COLUMNS, ROW_COLUMNS, TASK_COLUMNS
from redis_state.archive.queries import ArchiveQuery
from redis_state.postgres.text import id_text

# What of a task may change: all but its key and its long ids.
_CHANGING: Final = TASK_COLUMNS[4:-1]

INSERT_TASK: Final = f"""
INSERT INTO redis_state.tasks AS kept ({", ".join(TASK_COLUMNS)})
VALUES ({", ".join(["%s"] * len(TASK_COLUMNS))})
ON CONFLICT (namespace, session_id, task_id, born) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in _CHANGING)}, archived_at = now()
WHERE kept.version < excluded.version OR (kept.version, kept.write) = (%s::bigint, %s::text)
""".encode()  # noqa: S608 - of the columns above

# A row that was lost is there again if the server has it again: a restored backup was undone.
INSERT_ROW: Final = f"""
INSERT INTO redis_state.updates AS kept ({", ".join(ROW_COLUMNS)})
VALUES ({", ".join(["%s"] * len(ROW_COLUMNS))})
ON CONFLICT (namespace, session_id, at, n) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in ROW_COLUMNS[4:])}, lost = false
WHERE kept.lost
""".encode()  # noqa: S608 - of the columns above

# All but its key and its long ids.
_OF_STATE: Final = RECORD_COLUMNS[6:-1]

INSERT_RECORD: Final = f"""
INSERT INTO redis_state.records AS kept ({", ".join(RECORD_COLUMNS)})
VALUES ({", ".join(["%s"] * len(RECORD_COLUMNS))})
ON CONFLICT (namespace, kind, owner, born, n, key) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in _OF_STATE)}, archived_at = now()
WHERE kept.version < excluded.version OR (kept.version, kept.write) = (%s::bigint, %s::text)
""".encode()  # noqa: S608 - of the columns above

RECORDS: Final = """
SELECT owner, key, born, n, version, write, at, data, long_ids FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY born, n, key) - octet_length(data) AS before
    FROM (
        SELECT owner, key, born, n, version, write, at, data, long_ids FROM redis_state.records
        WHERE namespace = %s AND kind = %s AND owner = %s AND (born, n, key) > (%s, %s, %s)
            AND key = coalesce(%s::text, key)
        ORDER BY born, n, key LIMIT %s) AS counted) AS page
WHERE before < %s ORDER BY born, n, key
"""
LAST_RECORDS: Final = """
SELECT owner, last.born, last.n, last.key, last.long_ids
FROM unnest(%s::text[]) AS wanted (owner) CROSS JOIN LATERAL (
    SELECT born, n, key, long_ids FROM redis_state.records AS kept
    WHERE kept.namespace = %s AND kept.kind = %s AND kept.owner = wanted.owner
        AND kept.born < coalesce(%s::timestamptz, 'infinity')
    ORDER BY born DESC, n DESC, key DESC LIMIT 1) AS last
"""
FORGET_RECORDS: Final = """
DELETE FROM redis_state.records WHERE namespace = %s AND kind = %s AND owner = ANY(%s)
"""
COUNT_RECORDS: Final = """
SELECT count(*) FROM redis_state.records WHERE namespace = %s AND kind = %s AND owner = ANY(%s)
"""
FIRST_PLACES: Final = """
SELECT DISTINCT ON (key) key, born, n FROM redis_state.records
WHERE namespace = %s AND kind = %s AND owner = %s AND key = ANY(%s) ORDER BY key, born, n
"""
SHARED_TRACES: Final = """
SELECT trace FROM unnest(%s::text[]) AS wanted (trace)
WHERE EXISTS (
    SELECT 1 FROM redis_state.tasks
    WHERE namespace = %s AND trace_id = wanted.trace AND session_id <> ALL(%s::text[]))
OR EXISTS (
    SELECT 1 FROM redis_state.records
    WHERE namespace = %s AND kind = 'trajectory' AND key = wanted.trace
        AND owner <> ALL(%s::text[]))
"""
RECORDS_OF_SESSION: Final = """
SELECT kind, count(*) FROM redis_state.records
WHERE namespace = %s AND owner = %s AND kind IN ('trajectory', 'agent_session', 'artifact')
GROUP BY kind
"""
RECORD_COUNTS: Final = """
SELECT kind, count(*) FROM redis_state.records WHERE namespace = %s GROUP BY kind
"""

NEW_SESSION: Final = """
INSERT INTO redis_state.sessions (namespace, session_id, last_at, last_n, long_ids)
VALUES (%s, %s, 'epoch', 0, %s) ON CONFLICT DO NOTHING
"""
LOCK_SESSION: Final = """
SELECT last_at, last_n FROM redis_state.sessions
WHERE namespace = %s AND session_id = %s FOR UPDATE
"""
MOVE_SESSION: Final = """
UPDATE redis_state.sessions SET last_at = %s, last_n = %s WHERE namespace = %s AND session_id = %s
"""
LOSE_ROWS: Final = """
UPDATE redis_state.updates SET lost = true
WHERE namespace = %s AND session_id = %s AND (at, n) > (%s, %s) AND NOT lost
"""

LAST_ROWS: Final = """
SELECT session_id, last_at, last_n FROM redis_state.sessions
WHERE namespace = %s AND session_id = ANY(%s)
"""
HAS_ROW: Final = """
SELECT 1 FROM redis_state.updates
WHERE namespace = %s AND session_id = %s AND at = %s AND n = %s AND NOT lost
"""
ROWS_AFTER: Final = """
SELECT at, n, task_id, row_id, data, long_ids FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY at, n) - octet_length(data) AS before FROM (
        SELECT at, n, task_id, row_id, data, long_ids FROM redis_state.updates
        WHERE namespace = %s AND session_id = %s AND (at, n) > (%s, %s) AND NOT lost
        ORDER BY at, n LIMIT %s) AS counted) AS page
WHERE before < %s ORDER BY at, n
"""

_NEWEST_FIRST: Final = "ORDER BY ended_at DESC, session_id, task_id, born DESC"
TASKS: Final = f"""
SELECT session_id, task_id, long_ids, record, journal FROM (
    SELECT *, sum(own) OVER ({_NEWEST_FIRST}) - own AS before FROM (
        SELECT session_id, task_id, long_ids, ended_at, born, record::text, journal::text,
            octet_length(record::text) + octet_length(journal::text) AS own
        FROM redis_state.tasks WHERE {{conditions}} {_NEWEST_FIRST} LIMIT %s) AS counted) AS page
WHERE before < %s {_NEWEST_FIRST}
"""  # noqa: S608 - of the text above
# Behind a task in that order.
_AFTER: Final = """
(ended_at < %s OR ended_at = %s AND (session_id > %s OR session_id = %s AND (task_id > %s
    OR task_id = %s AND born < %s)))
"""

SESSION: Final = """
SELECT
    (SELECT count(*) FROM redis_state.tasks
        WHERE namespace = %(namespace)s AND session_id = %(session)s),
    (SELECT count(*) FROM redis_state.updates
        WHERE namespace = %(namespace)s AND session_id = %(session)s AND NOT lost),
    last_at, last_n
FROM (VALUES (1)) AS one
LEFT JOIN redis_state.sessions ON namespace = %(namespace)s AND session_id = %(session)s
"""
STATUS: Final = """
SELECT
    (SELECT count(*) FROM redis_state.sessions WHERE namespace = %(namespace)s),
    count(*),
    (SELECT count(*) FROM redis_state.updates WHERE namespace = %(namespace)s AND NOT lost),
    (SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM (
        SELECT relid FROM pg_partition_tree('redis_state.tasks')
        UNION ALL SELECT relid FROM pg_partition_tree('redis_state.records')
        UNION ALL SELECT relid FROM pg_partition_tree('redis_state.updates')) AS parts),
    min(ended_at), max(ended_at)
FROM redis_state.tasks WHERE namespace = %(namespace)s
"""
FORGET: Final[tuple[LiteralString, ...]] = (
    "DELETE FROM redis_state.sessions WHERE namespace = %s AND session_id = %s",
    "DELETE FROM redis_state.updates WHERE namespace = %s AND session_id = %s",
    "DELETE FROM redis_state.tasks WHERE namespace = %s AND session_id = %s",
    """
    DELETE FROM redis_state.records
    WHERE namespace = %s AND owner = %s
        AND kind IN ('trajectory', 'agent_session', 'artifact')
    """,
)

# What the server has, by its own digests of what it would return to a reader.
TASK_DIGESTS: Final = """
SELECT kept.session_id, kept.task_id, kept.born, kept.version, kept.write,
    encode(sha256(convert_to(kept.record::text || E'\\n' || kept.journal::text, 'UTF8')), 'hex')
FROM unnest(%s::text[], %s::text[], %s::timestamptz[]) AS wanted (session_id, task_id, born)
JOIN redis_state.tasks AS kept ON kept.namespace = %s AND kept.session_id = wanted.session_id
    AND kept.task_id = wanted.task_id AND kept.born = wanted.born
"""
ROW_DIGESTS: Final = """
SELECT count(*), encode(sha256(coalesce(string_agg(
    sha256(convert_to(kept.row_id || E'\\n'
        || coalesce(kept.long_ids->>1, kept.task_id) || E'\\n', 'UTF8') || kept.data),
    ''::bytea ORDER BY kept.at, kept.n), ''::bytea)), 'hex')
FROM unnest(%s::timestamptz[], %s::bigint[]) AS wanted (at, n)
JOIN redis_state.updates AS kept ON kept.namespace = %s AND kept.session_id = %s
    AND kept.at = wanted.at AND kept.n = wanted.n AND NOT kept.lost
"""
RECORD_DIGESTS: Final = """
SELECT kept.kind, kept.owner, kept.born, kept.n, kept.key, kept.version, kept.write,
    encode(sha256(kept.data), 'hex')
FROM unnest(%s::text[], %s::text[], %s::timestamptz[], %s::bigint[], %s::text[])
    AS wanted (kind, owner, born, n, key)
JOIN redis_state.records AS kept ON kept.namespace = %s AND kept.kind = wanted.kind
    AND kept.owner = wanted.owner AND kept.born = wanted.born AND kept.n = wanted.n
    AND kept.key = wanted.key
"""


def conditions(namespace: str, query: ArchiveQuery) -> tuple[list[str], list[Any]]:
    """Write what is wanted as conditions and their values."""
    found: list[tuple[str, Any]] = [("namespace = %s", namespace)]
    for column, value in (
        ("session_id", query.session_id),
        ("task_id", query.task_id),
        ("handler", query.handler),
        ("trace_id", query.trace_id),
    ):
        if value is not None:
            found.append((f"{column} = %s", id_text(value)))
    if query.statuses:
        found.append(("status = ANY(%s)", [status.value for status in query.statuses]))
    if query.ended_after is not None:
        found.append(("ended_at >= %s", query.ended_after))
    if query.ended_before is not None:
        found.append(("ended_at < %s", query.ended_before))
    texts, values = [text for text, _ in found], [value for _, value in found]
    if query.after is not None:
        ended_at, session, task, born_us = query.after
        texts.append(_AFTER)
        values += [ended_at] * 2 + [id_text(session)] * 2 + [id_text(task)] * 2
        values.append(moment_of_us(born_us))
    return texts, values
