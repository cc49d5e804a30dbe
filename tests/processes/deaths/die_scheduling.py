"""Processes that kill themselves at each round trip of a look at a schedule, and what others find.

This one never runs an event loop. It forks for each part, see `dying`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import UpdateType
from redis_state.stores.schedules import ScheduleStore
from redis_state.testing import leaked_keys
from redis_state.worker.schedules.client import Schedules
from tests.processes.deaths.dying import COUNTED, Death, Dying, die_at_each
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.schedules import hourly, look_now, running, settled_before

_DUE = 3
# What a schedule of a phase has, and how many of those that are due it submits.
_PHASES: dict[str, tuple[dict[str, Any], int]] = {
    "look": ({"missed": "all"}, _DUE),
    "in-turn": ({"missed": "all", "in_turn": True}, _DUE),
    "trigger": ({"missed": "all"}, 0),
    "skip": ({"missed": "all", "overlap": "skip"}, 1),
    "latest": ({"missed": "latest", "limit_key": "k"}, 1),
    "on-busy": ({"missed": "all", "on_busy": "replace"}, _DUE),
}


class Case(Dying):
    """One death, in a namespace of its own: in a worker's look, or in a client's trigger."""

    async def prepare(self, _: int, /) -> None:
        """Have some occurrences due."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await client.schedules.save(hourly(**_PHASES[self.phase][0]))
            if self.phase != "trigger":
                await settled_before(store, hours=_DUE)

    async def die(self, stated: int, /) -> None:
        """Look, or trigger, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with (
            RedisStateStore(self.settings) as store,
            client_of(store) as client,
            running(store) as runner,
        ):
            COUNTED.set(True)
            if self.phase != "trigger":
                await runner.run_once()
            else:
                await client.schedules.trigger("s", idempotency_key="k")
            COUNTED.set(False)

    async def recover(self, _: int, /) -> list[str]:
        """Have two workers look, and the caller repeat its trigger; tell what is wrong then."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            async with running(store) as one, running(store) as another:
                expected = _PHASES[self.phase][1]
                if self.phase == "trigger":
                    await look_now(store)
                    await asyncio.gather(one.run_once(), another.run_once())
                    expected = len(await store.list_tasks(SESSION))
                    await client.schedules.trigger("s", idempotency_key="k")
                    expected = max(expected, 1)
                for _ in range(2):
                    # The last hour is due again, while the task of an earlier one waits.
                    await settled_before(store, hours=int(self.phase == "skip"))
                    await asyncio.gather(one.run_once(), another.run_once())
            return await self._problems(store, client.schedules, expected)

    async def _problems(
        self, store: RedisStateStore, schedules: Schedules, expected: int
    ) -> list[str]:
        found = await schedules.get("s")
        stored = await ScheduleStore(store.base).load("s")
        tasks = await store.list_tasks(SESSION)
        made = [
            update.task_id
            for update in await store.list_updates(SESSION)
            if update.update_type is UpdateType.STATUS_CHANGE
            and update.content["status"] == "PENDING"
        ]
        fired = _PHASES[self.phase][1]
        views = [await store.tasks.look(SESSION, task.task_id) for task in tasks]
        waiting = [view.task_id for view in views if view and not view.status.is_terminal]
        newest = sorted(task.task_id for task in tasks)[-1:]
        keys = {view.key for view in views if view is not None}
        return [
            *([] if self.phase != "on-busy" or waiting == newest else [f"waiting: {waiting}"]),
            *([] if self.phase != "latest" or keys == {"k:k"} else [f"keys: {keys}"]),
            *([] if len(tasks) == expected else [f"{len(tasks)} tasks, not {expected}"]),
            *([] if sorted(made) == sorted(t.task_id for t in tasks) else [f"made: {made}"]),
            *([] if found.fired == fired else [f"fired {found.fired}"]),
            *([] if stored is not None and not stored.outbox else ["the outbox is not empty"]),
            *[f"no lifetime: {key}" for key in await leaked_keys(self.settings)],
        ]


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each round trip of each phase."""
    return die_at_each(argument, argument["phases"], Case)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
