"""The tables of audit events: each migration is applied once."""

from __future__ import annotations

SCHEMA = "redis_state_events"

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE redis_state_events.events (
        namespace text NOT NULL,
        trace_id text NOT NULL,
        event_id text NOT NULL,
        n bigint GENERATED ALWAYS AS IDENTITY,
        ts double precision,
        kind text,
        node_name text,
        node_id text,
        data bytea NOT NULL,
        saved_at timestamptz NOT NULL,
        long_ids json,
        PRIMARY KEY (namespace, trace_id, event_id)
    );
    CREATE INDEX events_in_order ON redis_state_events.events (namespace, trace_id, n);
    CREATE INDEX events_by_kind ON redis_state_events.events (namespace, kind, saved_at);
    CREATE INDEX events_by_time ON redis_state_events.events (namespace, saved_at);
    CREATE TABLE redis_state_events.traces (
        namespace text NOT NULL,
        trace_id text NOT NULL,
        last_n bigint NOT NULL DEFAULT 0,
        last_ms bigint NOT NULL DEFAULT 0,
        clears bigint NOT NULL DEFAULT 0,
        cleared_at timestamptz,
        PRIMARY KEY (namespace, trace_id)
    );
    CREATE INDEX traces_cleared ON redis_state_events.traces (namespace, cleared_at)
        WHERE cleared_at IS NOT NULL;
    """,
    # Which places of logs may have expired.
    """
    CREATE INDEX traces_by_time ON redis_state_events.traces (namespace, last_ms);
    """,
)
