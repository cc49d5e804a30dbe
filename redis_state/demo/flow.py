"""What a demonstration's driver does as an operator: a limit, a schedule, and a look for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from redis_state.models import TaskStatus
from redis_state.worker import Schedule, TaskClient, TaskContext, occurrence_of

KEY = "shown"
KIND = {"kind": "shown"}
TICK = "tick"

_SESSION = "ticks"
_WAIT_S = 20.0
_AGAIN_S = 0.05


async def tick(ctx: TaskContext) -> str:
    """Be the task of a schedule; return which occurrence it is."""
    moment = occurrence_of(ctx.task.task_id)
    return f"{moment:%H:%M:%S}" if moment else "now"


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """What became of it: counts by status of what was found, the occurrences, the most that ran."""

    limit: int
    most_running: int
    found: dict[str, int]
    occurrences: list[str]

    def lines(self) -> Iterator[str]:
        """Describe it for people."""
        most, limit = self.most_running, self.limit
        yield f"{most} ran at a time in all workers together; the limit is {limit}."
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.found.items()))
        yield f"find by an attribute: {counts}."
        many = len(self.occurrences)
        times = "occurrence" if many == 1 else "occurrences"
        yield f"A schedule fired each second: {many} {times}, one task each."


class Flow:
    """The limit, the schedule, and what is seen of the tasks under the limit."""

    def __init__(self, client: TaskClient, queue: str, *, limit: int) -> None:
        self._client = client
        self._queue = queue
        self._limit = limit
        self._running: set[str] = set()
        self._most = 0

    async def begin(self) -> None:
        """Set the limit of the key, and save a schedule that is due each second."""
        await self._client.queues.limit_key(self._queue, KEY, running=self._limit)
        await self._client.schedules.save(
            Schedule(
                schedule_id=TICK,
                handler=TICK,
                session_id=_SESSION,
                every=timedelta(seconds=1),
                missed="all",
            )
        )

    def observe(self, task_id: str, status: str) -> None:
        """Note a task's move. The log has all moves in their order."""
        if status == TaskStatus.RUNNING:
            self._running.add(task_id)
        else:
            self._running.discard(task_id)
        self._most = max(self._most, len(self._running))

    async def finish(self, wanted: Mapping[str, str]) -> tuple[FlowFacts, list[str]]:
        """End the schedule, look for the tasks, and return what there is and what is wrong.

        ``wanted`` is each task's status.
        """
        ticks = await self._ticks()
        found = await self._find(wanted)
        counts: dict[str, int] = {}
        for status in found.values():
            counts[status] = counts.get(status, 0) + 1
        facts = FlowFacts(self._limit, self._most, counts, ticks)
        return facts, list(flow_problems(facts, found, wanted))

    def broken_off(self) -> FlowFacts:
        """Return what was seen, and wait for nothing: of a run that its workers do not finish."""
        return FlowFacts(self._limit, self._most, {}, [])

    async def tidy(self) -> None:
        """Leave nothing on a server that others use."""
        await self._client.schedules.delete(TICK)
        for task in await self._client.store.list_tasks(_SESSION):
            await self._client.cancel(_SESSION, task.task_id)
        await self._client.store.clear_session(_SESSION)
        await self._client.queues.limit_key(self._queue, KEY, running=None)

    async def _ticks(self) -> list[str]:
        """Wait for the first occurrence, pause, and return the results of all that were fired."""
        schedules, loop = self._client.schedules, asyncio.get_running_loop()
        until = loop.time() + _WAIT_S
        while not (await schedules.get(TICK)).fired and loop.time() < until:  # noqa: ASYNC110 - of others
            await asyncio.sleep(_AGAIN_S)
        fired = (await schedules.pause(TICK)).fired
        tasks = await self._client.store.list_tasks(_SESSION)
        while len(tasks) < fired and loop.time() < until:
            await asyncio.sleep(_AGAIN_S)
            tasks = await self._client.store.list_tasks(_SESSION)
        left_s = max(0.0, until - loop.time())
        waits = (
            self._client.result(_SESSION, task.task_id, timeout_s=left_s)
            for task in sorted(tasks, key=lambda task: task.task_id)
        )
        return [str(result) for result in await asyncio.gather(*waits)]

    async def _find(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Find all tasks with the attribute. The index follows a change within moments."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _WAIT_S
        while True:
            page = await self._client.find(attributes=KIND, limit=1_000)
            found = {task.task_id: task.status.value for task in page.tasks}
            if found == wanted or loop.time() > until:
                return found
            await asyncio.sleep(_AGAIN_S)


def flow_problems(
    facts: FlowFacts, found: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[str]:
    """Return what is not as it should be."""
    if facts.most_running > facts.limit:
        yield f"{facts.most_running} ran at a time, the limit is {facts.limit}"
    if found != wanted:
        yield f"find returned {dict(found)}, not {dict(wanted)}"
    if not facts.occurrences:
        yield "the schedule did not fire"
    if len(set(facts.occurrences)) < len(facts.occurrences):
        yield f"an occurrence was submitted twice: {facts.occurrences}"
