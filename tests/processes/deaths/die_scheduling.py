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


class Case(Dying):
    """One death, in a namespace of its own: in a worker's look, or in a client's trigger."""

    async def prepare(self, _: int, /) -> None:
        """Have some occurrences due."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            in_turn = self.phase == "in-turn"
            await client.schedules.save(hourly(missed="all", in_turn=in_turn))
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
                expected = _DUE
                if self.phase == "trigger":
                    await look_now(store)
                    await asyncio.gather(one.run_once(), another.run_once())
                    expected = len(await store.list_tasks(SESSION))
                    await client.schedules.trigger("s", idempotency_key="k")
                    expected = max(expected, 1)
                for _ in range(2):
                    await look_now(store)
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
        fired = 0 if self.phase == "trigger" else _DUE
        return [
            *([] if len(tasks) == expected else [f"{len(tasks)} tasks, not {expected}"]),
            *([] if sorted(made) == sorted(t.task_id for t in tasks) else [f"made: {made}"]),
            *([] if found.fired == fired else [f"fired {found.fired}"]),
            *([] if stored is not None and not stored.outbox else ["the outbox is not empty"]),
            *[f"no lifetime: {key}" for key in await leaked_keys(self.settings)],
        ]


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each round trip of each phase."""
    return die_at_each(argument, ("look", "in-turn", "trigger"), Case)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
