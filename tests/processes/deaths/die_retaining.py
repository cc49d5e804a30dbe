"""Processes that kill themselves at each round trip of a retention, to Redis and PostgreSQL."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.postgres import retention
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.retaining import Retainer
from redis_state.models.tasks import utc_now
from redis_state.testing import leaked_keys
from tests.processes.deaths.die_archiving import ArchiverDeath
from tests.processes.deaths.dying import COUNTED, die_at_each_trip, fork, join
from tests.support.tasks.archived.retained import RETENTION, Retained, next_round


@dataclass
class RetainingCase:
    """One death: at which round trip, and what became of the archive."""

    url: str
    settings: Settings
    edge: str
    at: int
    now: datetime = field(default_factory=utc_now)

    @property
    def _retained(self) -> Retained:
        return Retained(self.url, self.settings.namespace, self.now)

    def _open(self) -> PostgresArchive:
        return PostgresArchive(self.url, namespace=self.settings.namespace)

    async def prepare(self, _: int) -> None:
        """Have an archive of which a part is over."""
        await self._retained.fill()

    async def die(self, stated: int) -> None:
        """Die in a round. To return is to survive."""
        ArchiverDeath(self.at, self.edge, stated).plant()
        # In several calls, between which the lease is renewed.
        retention._PIECE, retention._MOST = 1, 4
        archive = self._open()
        async with RedisStateStore(self.settings) as store:
            COUNTED.set(True)
            await Retainer(store, archive).run_once()
        await archive.aclose()

    async def recover(self, _: int) -> list[str]:
        """Do the rest; tell what is lost before that, and what is wrong then."""
        problems = [f"between: {each}" for each in await self._retained.problems(done=False)]
        archive = self._open()
        async with RedisStateStore(self.settings) as store:
            begun = await store.transport.commands.exists(store.base.keys.archive_retention())
            again = await Retainer(store, archive).run_once()
            if (again is None) != bool(begun):
                problems.append(f"the lease is there: {begun}, and the next round: {again}")
            if again is None and await next_round(store, archive) is None:
                problems.append("the next round did not come")
        await archive.aclose()
        problems += await self._retained.problems(done=True)
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each round trip, or at each ``stride``-th of them."""

    def case_at(at: int, namespace: str) -> RetainingCase:
        settings = Settings(
            url=SecretStr(argument["url"]), namespace=namespace, archive_retention={**RETENTION}
        )
        case = RetainingCase(argument["archive"], settings, argument["edge"], at)
        status, problem = join(*fork(case.prepare))
        assert status == 0, problem
        return case

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
