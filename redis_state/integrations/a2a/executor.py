"""An agent executor that stops its agent as soon as another server ends the task.

The SDK reads a task when its agent writes the next event. An agent that waits for a model or a
person writes nothing. It would continue for hours after another server cancelled the task.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events.event_queue import EventQueue
from a2a.types.a2a_pb2 import Task
from a2a.utils.errors import TaskNotFoundError

from redis_state.errors import CursorGap, NoConnection
from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import status_of, task_of
from redis_state.integrations.a2a.queues import feed_check_s
from redis_state.stores.a2a.task_model import Phase, Ref, VersionedTask
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_FINAL = (Phase.ENDED.encode(), Phase.GONE.encode())


class InterruptibleExecutor(AgentExecutor):
    """Run another executor, and stop it when another server ends or deletes its task.

    The inner executor's ``cancel`` is called first, as the SDK does for a cancel on the server that
    runs it; then its ``execute`` is cancelled, and this server's own subscribers receive the
    task's end. ``stop_s`` is how long each of the two may take. An agent that does not stop by then
    is left behind: what it writes is refused.
    """

    def __init__(self, backend: A2ABackend, inner: AgentExecutor, *, stop_s: float = 10.0) -> None:
        self.backend: A2ABackend = backend
        self.inner: AgentExecutor = inner
        self._stop_s = stop_s

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the inner executor for as long as its task has not ended elsewhere.

        Errors: TaskNotFoundError when the task is deleted meanwhile; else those of the inner one.
        """
        ref = self.backend.ref(context.task_id or "", context.call_context)
        # The place before the look: what comes between the two is heard of.
        cursor = await self.backend.owner.read(ref, self.backend.tasks.log(ref).end)
        found = await self._read(ref)
        if found is not None and found.phase is Phase.GONE:
            raise TaskNotFoundError("Task was deleted")
        if found is not None and found.phase is Phase.ENDED:
            await self._report(task_of(found.body), event_queue)
            return
        agent = asyncio.ensure_future(self.inner.execute(context, event_queue))
        ear = asyncio.ensure_future(self._ended_elsewhere(ref, cursor))
        try:
            await asyncio.wait({agent, ear}, return_when=asyncio.FIRST_COMPLETED)
            if not agent.done() and ear.exception() is not None:
                log.error("ends from elsewhere are not heard of: %s", ear.exception())
                await asyncio.wait({agent})
            if agent.done():
                await agent
                return
            task = await self._ask_to_cancel(ref, context, event_queue)
        finally:
            await self._end(ref, agent, ear)
        if task is None:
            raise TaskNotFoundError("Task was deleted")
        await self._report(task, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ask the inner executor to cancel."""
        await self.inner.cancel(context, event_queue)

    async def _ended_elsewhere(self, ref: Ref, cursor: str) -> None:
        """Return once another server has ended the task. The agent handles its own end."""
        while True:
            try:
                rows = self.backend.tasks.log(ref).follow(
                    after=cursor, reconnect_timeout_s=_PATIENCE_S
                )
                async with aclosing(rows):
                    async for row in rows:
                        cursor = row.cursor
                        gone = row.data[:1] == Phase.GONE.encode()
                        if gone or (row.data[:1] in _FINAL and not self.backend.owner.is_own(row)):
                            return
            except CursorGap as gap:
                found = await self._read(ref)
                if found is not None and found.phase in {Phase.ENDED, Phase.GONE}:
                    return
                cursor = gap.resume_after
            except NoConnection as error:
                log.warning("ends from elsewhere are not heard of at the moment: %s", error)
                await asyncio.sleep(feed_check_s(self.backend))

    async def _ask_to_cancel(
        self, ref: Ref, context: RequestContext, event_queue: EventQueue
    ) -> Task | None:
        """Ask the inner executor, and return the task as it was ended; None if it was deleted."""
        found = await self._read(ref)
        task = task_of(found.body) if found is not None and found.body else None
        if task is not None:
            context.current_task = task
        try:
            async with timeout(self._stop_s):
                await self.inner.cancel(context, event_queue)
        except Exception:
            log.exception("the agent of task %r could not be asked to cancel", ref.task_id)
        return task

    async def _end(self, ref: Ref, *work: asyncio.Future[None]) -> None:
        for each in work:
            each.cancel()
        done, left = await asyncio.wait(work, timeout=self._stop_s)
        await asyncio.gather(*done, return_exceptions=True)
        if left:
            log.error("the agent of task %r does not stop, and is left behind", ref.task_id)

    async def _read(self, ref: Ref) -> VersionedTask | None:
        return await self.backend.owner.read(ref, partial(self.backend.tasks.read, ref))

    async def _report(self, task: Task, event_queue: EventQueue) -> None:
        """End this server's consumer: it then reads the task and closes streams."""
        await event_queue.enqueue_event(status_of(task))


_PATIENCE_S = 3600.0
