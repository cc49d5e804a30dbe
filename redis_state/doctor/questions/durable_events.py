"""The PostgreSQL of durable events: whether it is reached, has its tables, and has all events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.doctor.finding import Finding, Found, Verdict, answered
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout

if TYPE_CHECKING:
    from pydantic import SecretStr

    from redis_state.stores.durable_events.store import DurableEventStore

_QUESTION = "durable events"
_LATE_S = 60.0


async def durable_event_findings(store: RedisStateStore) -> Found:
    """Ask the PostgreSQL that the settings name, and count what waits for it. Write nothing.

    Errors: NoConnection, of Redis.
    """
    url = store.settings.durable_events
    if url is None:
        return
    from redis_state.stores.durable_events.store import (  # noqa: PLC0415 - needs the extra
        DurableEventStore,
    )

    events = store.events
    assert isinstance(events, DurableEventStore)  # noqa: S101 - as the settings want it
    for answers in (_late(events), _tables(events, url, store.settings.connect_timeout_s)):
        async for each in answered(events.address, _QUESTION, answers):
            yield each


async def _late(events: DurableEventStore) -> Found:
    backlog = await events.backlog()
    if backlog.oldest_s > _LATE_S:
        yield Finding(
            events.address,
            _QUESTION,
            Verdict.FINDING,
            f"{backlog.traces} traces wait for {backlog.oldest_s:.0f} s to be moved",
            "their events are in Redis alone",
            "run a process of the namespace, and look at its log",
        )


async def _tables(events: DurableEventStore, url: SecretStr, timeout_s: float) -> Found:
    import psycopg  # noqa: PLC0415 - needs the extra, as the store does

    from redis_state.postgres.connection import close, connect, problem  # noqa: PLC0415
    from redis_state.postgres.migrations import applied_version  # noqa: PLC0415
    from redis_state.stores.durable_events.schema import MIGRATIONS, SCHEMA  # noqa: PLC0415

    try:
        async with timeout(timeout_s):
            opened = await connect(url)
            try:
                async with opened.settled():
                    done = await applied_version(opened, SCHEMA)
            finally:
                await close(opened)
    except (psycopg.Error, OSError, ValueError, TimeoutError) as error:
        # Its text may quote the URL.
        said = problem(error) if isinstance(error, psycopg.Error) else type(error).__name__
        yield Finding(
            events.address,
            _QUESTION,
            Verdict.FINDING,
            f"it cannot be reached, or not be read: {said}",
            "audit events are not saved, or wait in Redis; no history can be read",
            "start it, give its user the rights, or correct REDIS_STATE_DURABLE_EVENTS",
        )
        return
    if done < len(MIGRATIONS):
        yield Finding(
            events.address,
            _QUESTION,
            Verdict.FINDING,
            f"its schema {SCHEMA} is missing" if not done else f"its schema is at version {done}",
            "the first process whose user may create it makes it",
            "start a process whose user has the right CREATE on the database",
        )
        return
    yield Finding(events.address, _QUESTION, Verdict.SOUND, f"reached, schema version {done}")
