"""Processes that kill themselves at each round trip of an erasure, to Redis and to PostgreSQL.

Like `die_archiving`: another process repeats the call, and nothing may be left.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.backfill import backfill
from redis_state.testing import leaked_keys
from tests.processes.deaths.die_archiving import ArchiverDeath
from tests.processes.deaths.dying import COUNTED, die_at_each_trip, fork, join
from tests.support.erasure import fill, left_over
from tests.support.processes.pools import client_of
from tests.support.tasks.archived.archives import archive_all

GONE = "gone-for-ever"


@dataclass
class ForgettingCase:
    """One death: at which round trip, and what is left once another has repeated the call."""

    settings: Settings
    edge: str
    at: int

    async def prepare(self, _: int) -> None:
        """Fill a session: with a task that waits, one that is archived, and all that hosts save."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await fill(store, GONE, "its-trace")
            for task in ("over", "waits"):
                await client.submit(
                    "nobody", "i" * 2_000, session_id=GONE, task_id=task, attributes={"user": "ann"}
                )
            await client.cancel(GONE, "over")
            await backfill(store)
            archive = open_archive(self.settings)
            await archive.prepare()
            await archive_all(store, archive)
            assert await archive.session(GONE) is not None
            await archive.aclose()

    async def die(self, stated: int) -> None:
        """Erase, and die on the way. To return is to survive."""
        ArchiverDeath(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            COUNTED.set(True)
            await client.forget_user("ann")

    async def recover(self, _: int) -> list[str]:
        """Repeat it; tell what is left."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            # By the user as far as that is known, as an operator would, then by the session.
            reports = [await client.forget_user("ann"), await client.forget(GONE)]
            problems = [f"{report.failed}" for report in reports if report.failed]
            problems += await left_over(store, GONE)
            archive = open_archive(self.settings)
            if await archive.session(GONE) is not None or await archive.sessions_of("user", "ann"):
                problems.append("the archive has it")
            await archive.aclose()
        folder = (self.settings.claim_check_url or "").removeprefix("file://")
        if any(files for _, _, files in os.walk(folder)):
            problems.append("an object is left")
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each ``stride``-th round trip."""

    def case_at(at: int, namespace: str) -> ForgettingCase:
        folder = Path(argument["folder"]) / f"{argument['edge']}-{at}"
        folder.mkdir()
        settings = Settings(
            url=SecretStr(argument["url"]),
            archive_url=SecretStr(argument["archive"]),
            namespace=namespace,
            claim_check_bytes=1_000,
            claim_check_url=f"file://{folder}",
        )
        case = ForgettingCase(settings, argument["edge"], at)
        status, problem = join(*fork(case.prepare))
        assert status == 0, problem
        return case

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
