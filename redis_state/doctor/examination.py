"""The examination of all servers that keep a namespace, and of its pool."""

from __future__ import annotations

from redis_state import limits
from redis_state.doctor.finding import ExamineProgress, Finding
from redis_state.doctor.questions.archive import archive_findings
from redis_state.doctor.questions.durable_events import durable_event_findings
from redis_state.doctor.questions.environment import environment_findings
from redis_state.doctor.questions.orphans import orphan_findings
from redis_state.doctor.questions.pool import (
    queue_findings,
    queue_settings,
    schedule_findings,
    sweep_findings,
    version_findings,
)
from redis_state.doctor.questions.server import Examination
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.transport.diagnostics import Diagnostics

# A queue that loses its history is written again by the workers. Without writes there is none.
_REPAIRED = ("persistence", "replicas", "lifetimes")
# Keys of each server that are examined for their lifetimes.
SAMPLE = 20_000
_FAST = {"guarantee": "fast", "guarantee_replicas": None}


async def examine(
    settings: Settings,
    *,
    sample: int | None = SAMPLE,
    progress: ExamineProgress | None = None,
) -> list[Finding]:
    """Ask every server that keeps the settings' namespace.

    ``sample`` bounds how many keys of each server are examined for their lifetimes; None is all. A
    server has no order of keys, so these are as good as any. ``progress`` is called as they are.
    Errors: NoConnection if one of them cannot be reached.
    """
    if sample is not None:
        limits.count("sample", sample)
    # A server that cannot promise what the settings want is examined all the same.
    async with RedisStateStore(settings.model_copy(update=_FAST)) as store:
        found: list[Finding] = [*environment_findings()]
        for address, sender in await store.transport.each_server():
            ask = Diagnostics(sender)
            found += await Examination(
                settings, address, ask, sample=sample, progress=progress
            ).all()
        found += await _of_the_queues_own(settings, {each.server for each in found})
        found += [answer async for answer in queue_findings(store)]
        found += [answer async for answer in orphan_findings(store)]
        found += [answer async for answer in version_findings(store)]
        found += [answer async for answer in sweep_findings(store)]
        found += [answer async for answer in durable_event_findings(store)]
        found += [answer async for answer in archive_findings(store)]
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
                found += await Examination(
                    queues, address, ask, leaving=_REPAIRED, sample=SAMPLE
                ).all()
    return found
