"""Processes that kill themselves at each round trip of a call that changes a priority.

This one never runs an event loop. It forks for each part, see `dying`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.processes.deaths.dying import COUNTED, Death, Dying, die_at_each
from tests.support.processes.pools import (
    SESSION,
    agent,
    client_of,
    key_of_queue,
    serving,
    statuses,
)
from tests.support.tasks.crash_states import close_queues, make_due, sweeper_of

# Who comes after: the caller, with the same call; or nobody but a sweeper.
PHASES = ("repeated", "swept")
_TASKS = ("first", "second", "urgent")
_PRIORITY = 7


class Case(Dying):
    """One death, in a namespace of its own."""

    async def prepare(self, _: int, /) -> None:
        """Queue tasks, the one that becomes urgent at the end."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            for name in _TASKS:
                await client.submit("work", session_id=SESSION, task_id=name)

    async def die(self, stated: int, /) -> None:
        """Prioritize the last task, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            COUNTED.set(True)
            await self._prioritize(client)
            COUNTED.set(False)

    async def recover(self, _: int, /) -> list[str]:
        """Have the place made right, and tell what is wrong then."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            if self.phase == "repeated":
                await self._prioritize(client)
            else:
                await make_due(store, watch_entry(SESSION, "urgent"))
                await sweeper_of(store).run_once()
                await close_queues()
            state = await client.get(SESSION, "urgent")
            changed = state is not None and state.priority == _PRIORITY
            problems = [] if changed or self.phase == "swept" else ["its priority is as before"]
            name = key_of_queue(self.settings)
            jobs = await store.transport.commands.zrange_scored(name, 0, -1)
            waiting = [job.rpartition(b"/")[2].partition(b":")[0].decode() for job in jobs[::2]]
            wanted = ["urgent", "first", "second"] if changed else list(_TASKS)
            problems += [] if waiting == wanted else [f"the queue has {waiting}"]
            return problems + await self._run_all(store, client)

    async def _run_all(self, store: RedisStateStore, client: TaskClient) -> list[str]:
        async def work(_: TaskContext) -> None: ...

        problems: list[str] = []

        async def ended() -> bool:
            counts = {status: n for status, n in (await client.count()).items() if n}
            return counts == {TaskStatus.COMPLETE: len(_TASKS)}

        async with serving(agent(self.settings, {"work": work}, lease_s=0.4)):
            try:
                await eventually(ended, "all have ended", timeout_s=60)
            except AssertionError as error:
                problems.append(str(error))
        for task in _TASKS:
            runs = (await statuses(store, task)).count("RUNNING")
            problems += [] if runs == 1 else [f"{task} ran {runs} times"]
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]

    async def _prioritize(self, client: TaskClient) -> None:
        payload = {"priority": _PRIORITY}
        await client.steer(
            SESSION, "urgent", SteeringEventType.PRIORITIZE, payload, event_id="urgent"
        )


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each round trip of each phase."""
    return die_at_each(argument, PHASES, Case)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
