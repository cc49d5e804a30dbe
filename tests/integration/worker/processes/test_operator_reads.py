"""Operators of several processes read while tasks move and a worker is killed: then all agree."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.processes import children
from tests.support.processes.pools import client_of, queue_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import start_process

pytestmark = pytest.mark.worker

_READERS = 3
_SESSIONS = ("", "a\x00b", "é", "{x}:*", "s")


class Model:
    """The tasks as they should be."""

    def __init__(self, client: TaskClient) -> None:
        self.tasks: dict[tuple[str, str], TaskStatus] = {}
        self._client = client

    async def submit(self, handler: str, ends: TaskStatus, **options: Any) -> None:
        """Submit a task to each session, which ends as is given."""
        for session in _SESSIONS:
            task = await self._client.submit(handler, session_id=session, **options)
            self.tasks[session, task] = ends

    async def settled(self) -> None:
        """Wait until all are as they should be."""

        async def is_so() -> bool:
            states = [await self._client.get(*task) for task in self.tasks]
            return [state and state.status for state in states] == list(self.tasks.values())

        await eventually(is_so, "all are as they should be", timeout_s=60)

    def read(self, queue: tuple[int, int, int]) -> dict[str, Any]:
        """Write what operators should read."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for (session, _), status in self.tasks.items():
            counts[session][status.value] += 1
        return {
            "sessions": counts,
            "counts": sum(counts.values(), Counter[str]()),
            "found": len(self.tasks),
            "queue": queue,
        }


async def test_what_operators_read_agrees_with_the_tasks_once_all_is_still(
    store: RedisStateStore, tmp_path: Path
) -> None:
    name, still = queue_of(store.settings), tmp_path / "still"
    argument = {
        "url": store.settings.url.get_secret_value(),
        "namespace": store.settings.namespace,
        "queue": name,
        "still": str(still),
    }
    options: dict[str, Any] = {"program": "pool_worker", "lease_s": 0.5}
    many = len(_SESSIONS)
    readers: list[children.Process] = []
    async with client_of(store) as client, worker_process(store.settings, "two", **options):
        try:
            readers += [await start_process("read_operators", argument) for _ in range(_READERS)]
            for reader in readers:
                assert reader.stdout is not None
                assert await reader.stdout.readline() == b"reads\n"
            model = Model(client)
            async with worker_process(store.settings, "one", **options) as one:
                for _ in range(4):
                    await model.submit("who", TaskStatus.COMPLETE)
                await model.submit("ask", TaskStatus.PAUSED)
                await model.submit("nobody's", TaskStatus.FAILED)
                assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
            await model.settled()
            await model.submit("linger", TaskStatus.RUNNING)
            await model.settled()
            await client.queues.pause(name)
            first_ms = await clock_ms(store.base.scripts)
            await model.submit("who", TaskStatus.PENDING)
            then_ms = await clock_ms(store.base.scripts)
            await model.submit("who", TaskStatus.PENDING, limit_key="k")
            await model.submit("who", TaskStatus.PENDING, delay=timedelta(hours=1))
            await model.settled()
            assert all(reader.returncode is None for reader in readers)
            written = tmp_path / "written"
            written.write_text(json.dumps(model.read((2 * many, many, many))), encoding="utf-8")
            written.rename(still)
            ended = await asyncio.gather(*(reader.communicate() for reader in readers))
        finally:
            await asyncio.gather(*map(children.end, readers))
        for reader, (out, err) in zip(readers, ended, strict=True):
            assert reader.returncode == 0, err.decode()
            found = json.loads(out.decode().strip().splitlines()[-1])
            assert found["reads"] > 1
            # The oldest has been due since it was queued.
            assert found["since_ms"][0] <= then_ms
            assert found["since_ms"][1] >= first_ms
