"""The pool of workers of this project."""

from __future__ import annotations

from benchmarks.tasks.pool import NAMESPACE
from benchmarks.tasks.process import SESSIONS, SLOTS, Engine, Marks
from redis_state import RedisStateStore, Settings
from redis_state.settings import make_settings
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from redis_state.worker.runs.config import Handler


async def prepare(url: str, marks: Marks) -> Engine:
    """Give a client and a worker of one namespace."""
    return Ours(make_settings(url, namespace=NAMESPACE), marks)


class Ours:
    """Tasks spread over some hundred sessions; all options are the defaults but the slots."""

    settings: str = f"max_tasks={SLOTS}"

    def __init__(self, settings: Settings, marks: Marks) -> None:
        self._settings = settings
        self._marks = marks
        self._client = TaskClient(RedisStateStore(settings))
        # Ahead of what is planted in the queue, if it is.
        self.priority: int = 1000
        self.handlers: dict[str, Handler] = {
            "noop": self._noop,
            "steps5": self._stepping(5),
            "steps40": self._stepping(40),
        }

    async def submit(self, handler: str, number: int) -> None:
        """Submit one task."""
        await self._client.submit(
            handler,
            {"i": number},
            session_id=f"session-{number % SESSIONS}",
            priority=self.priority,
        )

    async def serve(self) -> None:
        """Work until cancelled."""
        worker = AgentWorker(self.handlers, self._settings, max_tasks=SLOTS)
        await worker.serve(handle_signals=False)

    async def _noop(self, context: TaskContext) -> None:
        del context
        self._marks()

    def _stepping(self, steps: int) -> Handler:
        async def handler(context: TaskContext) -> None:
            async def work() -> int:
                return steps

            for _ in range(steps):
                await context.step("work", work)
                self._marks()

        return handler
