"""Take the jobs of a session's tasks out of their queues."""

from __future__ import annotations

from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.worker.arq.job_format import payload_key
from redis_state.worker.queue.queue import Queue


async def withdraw(queue: Queue, store: RedisStateStore, session_id: str) -> None:
    """Remove what the queues have of a session's tasks. May be repeated.

    What waits under a limit's key stays: a worker that takes it finds no task, and drops it.
    """
    for task_id in await store.tasks.ids(session_id):
        view = await store.tasks.look(session_id, task_id)
        if view is None or not view.ours:
            continue
        claim = queue.claim_of(session_id, task_id)
        jobs = [f"{claim}:{run}" for run in range(max(0, view.attempts - 1), view.attempts + 2)]
        keys = queue.keys(view.queue)
        await queue.scripts.zrem(keys.queue, *jobs)
        for job in jobs:
            await queue.transport.commands.unlink(payload_key(job))
        now_ms = ms_of(await queue.transport.commands.time())
        await queue.drop_claims(view.queue, [((session_id, task_id), None)], before_ms=now_ms)
