"""The examination of all servers that keep a namespace, and of its pool."""

from __future__ import annotations

from redis_state.doctor.durable_events import durable_event_findings
from redis_state.doctor.finding import Finding
from redis_state.doctor.orphans import orphan_findings
from redis_state.doctor.pool import (
    queue_findings,
    queue_settings,
    schedule_findings,
    version_findings,
)
from redis_state.doctor.server import Examination
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.transport.diagnostics import Diagnostics

# A queue that loses its history is written again by the workers.
_REPAIRED = ("persistence", "replicas", "lifetimes")
_FAST = {"guarantee": "fast", "guarantee_replicas": None}


async def examine(settings: Settings) -> list[Finding]:
    """Ask every server that keeps the settings' namespace.

    Errors: NoConnection if one of them cannot be reached.
    """
    # A server that cannot promise what the settings want is examined all the same.
    async with RedisStateStore(settings.model_copy(update=_FAST)) as store:
        found: list[Finding] = []
        for address, sender in await store.transport.each_server():
            found += await Examination(settings, address, Diagnostics(sender)).all()
        found += await _of_the_queues_own(settings, {each.server for each in found})
        found += [answer async for answer in queue_findings(store)]
        found += [answer async for answer in orphan_findings(store)]
        found += [answer async for answer in version_findings(store)]
        found += [answer async for answer in durable_event_findings(store)]
        return [*found, *[answer async for answer in schedule_findings(store)]]


async def _of_the_queues_own(settings: Settings, examined: set[str]) -> list[Finding]:
    """Ask the servers of a ``queue_url``, if they are others."""
    queues = queue_settings(settings)
    if queues is None:
        return []
    found: list[Finding] = []
    async with RedisStateStore(queues) as store:
        for address, sender in await store.transport.each_server():
            if str(address) not in examined:
                ask = Diagnostics(sender)
                found += await Examination(queues, address, ask, leaving=_REPAIRED).all()
    return found
