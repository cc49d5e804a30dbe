"""Processes that kill themselves at each round trip of a call that gathers an item.

This one never runs an event loop. It forks for each part, see `dying`.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient, TaskContext
from tests.processes.deaths.dying import COUNTED, Death, Dying, die_at_each
from tests.support.processes.pools import SESSION, agent, client_of, serving, statuses

# How many items are there before, of a batch of three or of a burst.
PHASES = {"opens": 0, "adds": 1, "fills": 2, "first": 0, "later": 2}
_BURSTS = ("first", "later")
# A busy machine is slow from what is there before to the call, which must not open another batch.
_AFTER = timedelta(seconds=4)


class Case(Dying):
    """One death, in a namespace of its own."""

    async def prepare(self, _: int, /) -> None:
        """Add what is there before."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            for number in range(PHASES[self.phase]):
                await self._add(client, number)

    async def die(self, stated: int, /) -> None:
        """Add an item, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            COUNTED.set(True)
            await self._add(client, PHASES[self.phase])
            COUNTED.set(False)

    async def recover(self, _: int, /) -> list[str]:
        """Repeat the call, have a worker do the rest, and tell what is wrong."""
        given: list[Any] = []

        async def work(ctx: TaskContext) -> None:
            given.append(ctx.input)

        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await self._add(client, PHASES[self.phase])

            async def ended() -> bool:
                counts = {status: n for status, n in (await client.count()).items() if n}
                tasks = await store.list_tasks(SESSION)
                return counts == {TaskStatus.COMPLETE: len(tasks)}

            problems: list[str] = []
            async with serving(agent(self.settings, {"work": work}, lease_s=0.4)):
                try:
                    await eventually(ended, "all have ended, and the index is exact", timeout_s=60)
                except AssertionError as error:
                    problems.append(str(error))
            for task in await store.list_tasks(SESSION):
                runs = (await statuses(store, task.task_id)).count("RUNNING")
                problems += [] if runs == 1 else [f"{task.task_id} ran {runs} times"]
            items = list(range(PHASES[self.phase] + 1))
            if self.phase in _BURSTS:
                problems += [] if given[-1:] == items[-1:] and len(given) <= 2 else [f"{given}"]
            else:
                every = [item for batch in given for item in batch]
                problems += [] if every == items else [f"{given}"]
            return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]

    async def _add(self, client: TaskClient, number: int) -> None:
        if self.phase in _BURSTS:
            await client.debounce("work", number, session_id=SESSION, wait=_AFTER)
        else:
            await client.batch(
                "work", number, session_id=SESSION, item_id=f"i{number}", most=3, after=_AFTER
            )


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each round trip of each phase."""
    return die_at_each(argument, PHASES, Case)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
