"""Tasks that wait for a thread that another task has: in a slot of their worker, for a while."""

from __future__ import annotations

import asyncio
import hashlib
import logging

from redis_state.errors import ThreadClaimed
from redis_state.integrations.langgraph.saver import RedisSaver
from redis_state.integrations.langgraph.threads.claims import Run, ThreadClaim
from redis_state.transport.keys import graph_task
from redis_state.worker import TaskContext
from redis_state.worker.tasks.execution.exits import TaskHandedBack

# Between two looks at the claim: the next wait is twice as long, up to the longest. That is short,
# or a task that came last would get the thread before those that wait.
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.2
# A look more than the lease is long: the last one finds what has expired by then.
PAST_LEASE_S = 1.0

log: logging.Logger = logging.getLogger(__name__)


class BusyThreads:
    """Claim threads for the tasks of one handler."""

    def __init__(self) -> None:
        self._warned = False

    async def claimed(
        self, saver: RedisSaver, ctx: TaskContext, thread_id: str, lease_s: float
    ) -> ThreadClaim:
        """Return a claim that can be entered: wait while another task has the thread.

        Errors: TaskHandedBack after `lease_s` and a second, when a dead worker's has expired.
        """
        name = hashlib.sha256(task_name(ctx).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        run = Run(name, ctx.epoch)
        claim = saver.claim(thread_id, lease_s=lease_s)
        now = asyncio.get_running_loop().time
        until, wait_s = now() + lease_s + PAST_LEASE_S, FIRST_WAIT_S
        while True:
            try:
                await claim.take(run)
            except ThreadClaimed as busy:
                self._warn(ctx)
                expires = now() + busy.left_ms / 1000
            else:
                return claim
            holder = await claim.holder()
            # A claim that nobody gave back, and that has not expired, is only read.
            while holder[0]:
                if now() > until:
                    raise TaskHandedBack(f"thread {thread_id!r} is busy") from None
                await ctx.checkpoint()
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                if now() >= expires or await claim.holder() != holder:
                    break

    def _warn(self, ctx: TaskContext) -> None:
        if ctx.in_turn or self._warned:
            return
        self._warned = True
        log.warning(
            "a task waits in its worker's slot for another task of its graph's thread. Submit them "
            "with in_turn=True: then it waits in the queue"
        )


def task_name(ctx: TaskContext) -> str:
    """Return a task's name, as its thread's claim and its checkpoints have it."""
    return graph_task(ctx.task.session_id, ctx.task.task_id)
