"""Jobs of a queue with limits: put, claimed and ended by the scripts alone."""

from __future__ import annotations

from typing import Any

from redis_state.scripts import EndedJob, EndedJobs, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR
from tests.support.scripts.tasks import job_payload, queued_job


async def put(scripts: Scripts, keys: Keys, task: str, key: str = "", **changes: Any) -> None:
    job = queued_job(keys, task, key=key, **changes)
    await scripts.queue_job(keys.queue("q"), payload=job_payload(keys, task), job=job)


async def claim(scripts: Scripts, keys: Keys, limit: int = 100) -> dict[str, bytes]:
    """Claim jobs; give the claim of each task."""
    reply = await scripts.claim_jobs(keys.queue("q"), limit=limit, life_ms=HOUR)
    _, _, _, *rest = reply.facts
    names = [name.decode().rpartition("/")[2].partition(":")[0] for name in rest[::3]]
    return dict(zip(names, rest[2::3], strict=True))


async def end(scripts: Scripts, keys: Keys, task: str, claimed: bytes, **again: int) -> None:
    name = queued_job(keys, task).id.encode()
    job = EndedJob(job_payload(keys, task), name, claimed, again.get("again_ms"))
    await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)


async def claim_places(
    scripts: Scripts, keys: Keys, limit: int = 100
) -> list[tuple[str, bytes, bytes]]:
    """Claim jobs; give the task, the place and the claim of each."""
    reply = await scripts.claim_jobs(keys.queue("q"), limit=limit, life_ms=HOUR)
    _, _, _, *rest = reply.facts
    names = [name.decode().rpartition("/")[2].partition(":")[0] for name in rest[::3]]
    return list(zip(names, rest[1::3], rest[2::3], strict=True))


async def end_at(
    scripts: Scripts, keys: Keys, task: str, place: bytes, claimed: bytes, *, again_ms: int
) -> None:
    name = queued_job(keys, task).id.encode()
    job = EndedJob(job_payload(keys, task), name, claimed, again_ms, place)
    await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)


async def limit(scripts: Scripts, keys: Keys, **settings: str) -> None:
    named = {name.replace("_for_", ":"): value.encode() for name, value in settings.items()}
    await scripts.set_flow(keys.queue("q"), named)
