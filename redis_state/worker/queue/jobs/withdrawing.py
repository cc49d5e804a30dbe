"""Take the jobs of a session's tasks out of their queues."""

from __future__ import annotations

import asyncio

from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.transport.keys.names import queue_keys
from redis_state.worker.queue.jobs.job_format import payload_key
from redis_state.worker.queue.limits import flow_key
from redis_state.worker.queue.queue import Queue

# In the name of a queue: behind the namespace, the version, the slot and the kind.
_QUEUE_COLONS = 4
# How many jobs one call names. Lua's stack has room for some thousand, a serverless server takes
# fewer arguments still, and the other callers of the queue wait meanwhile.
_SLICE = 1_000


async def withdraw(queue: Queue, store: RedisStateStore, session_id: str) -> None:
    """Remove what the queues have of a session's tasks, also of those that are gone.

    May be repeated. Until the tasks are gone, a sweeper queues again what waits. So repeat it then.
    Errors: CommandRefused without the right to read the names of keys.
    """
    line = flow_key(None, in_turn=session_id)
    await _drop_jobs(queue, store, session_id)
    for task_id in await store.tasks.ids(session_id):
        view = await store.tasks.look(session_id, task_id)
        if view is None or not view.ours:
            continue
        claim = queue.claim_of(session_id, task_id)
        jobs = [f"{claim}:{run}" for run in range(max(0, view.attempts - 1), view.attempts + 2)]
        keys = queue.keys(view.queue)
        await queue.scripts.withdraw_jobs(keys, line=line, jobs=jobs)
        for job in jobs:
            await queue.transport.commands.unlink(payload_key(job))
        now_ms = ms_of(await queue.transport.commands.time())
        await queue.drop_claims(view.queue, [((session_id, task_id), None)], before_ms=now_ms)


async def _drop_jobs(queue: Queue, store: RedisStateStore, session_id: str) -> None:
    """Remove the jobs that have a payload, from whatever queue they are in."""
    space = store.settings.namespace
    # Jobs of all tasks of a session begin alike.
    start = queue.claim_of(session_id, "").removesuffix("%")
    names, queues = set[str](), set[str]()
    for server in await queue.transport.each_primary():
        async for page in server.scan_all(payload_key(f"{start}*")):
            names |= {key.decode() for key in page}
        async for page in server.scan_all(f"{space}:v1:{{queues-*}}:queue:*"):
            # What follows a queue's name are its books.
            queues |= {key.decode() for key in page if key.count(b":") == _QUEUE_COLONS}
    jobs = [name.removeprefix(payload_key("")) for name in sorted(names)]
    line = flow_key(None, in_turn=session_id)
    for key in sorted(queues):
        # Of a queue without such a job the line may still have its turn.
        for first in range(0, max(len(jobs), 1), _SLICE):
            keys, some = queue_keys(key, channel=""), jobs[first : first + _SLICE]
            await queue.scripts.withdraw_jobs(keys, line=line, jobs=some)
    commands, payloads = queue.transport.commands, sorted(names)
    for first in range(0, len(payloads), _SLICE):
        some = payloads[first : first + _SLICE]
        await asyncio.gather(*(commands.unlink(name) for name in some))
