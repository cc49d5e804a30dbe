"""Keys take turns in a pool of processes: a key with many tasks lets no other one starve."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, recorded
from tests.support.processes.pools import client_of, queue_of

pytestmark = pytest.mark.worker

# Of some forty turns, on a busy machine.
_LOST_TURNS = 2
_TASKS = {"large": 200, "small": 20, "single": 1}


def begun(folder: Path) -> list[tuple[str, str]]:
    """Tell which tasks began, in order: the key and the worker of each."""
    lines = [line for line in recorded(folder, "runs") if line[0] == "begin"]
    return [(group, worker) for _, _, _, worker, group in lines]


async def submit_all(client: TaskClient) -> None:
    """Submit a key's tasks after the other's, the largest first. The single one holds."""
    for key, many in _TASKS.items():
        handler = "hold" if key == "single" else "work"
        await asyncio.gather(
            *(client.submit(handler, key, session_id=key, limit_key=key) for _ in range(many))
        )


@pytest.mark.parametrize("limit", [1, 3])
async def test_keys_take_turns_also_with_a_worker_killed(
    store: RedisStateStore, tmp_path: Path, limit: int
) -> None:
    name = queue_of(store.settings)
    crew = Crew(store.settings, tmp_path, program="flow_worker", lease_s=0.5, part_s=0.0)
    async with client_of(store) as client, crew:
        await client.queues.limit(name, running=limit)
        await client.queues.pause(name)
        await submit_all(client)
        for _ in range(3):
            await crew.start()
        await client.queues.resume(name)

        def counted() -> Counter[str]:
            return Counter(key for key, _ in begun(tmp_path))

        await eventually(lambda: counted()["single"] == 1, "the single one has begun")
        victim = next(worker for key, worker in begun(tmp_path) if key == "single")
        assert await crew.kill(victim) == -signal.SIGKILL
        await crew.start()
        (tmp_path / "release").touch()
        await eventually(
            lambda: counted()["single"] >= 2 and counted()["small"] >= _TASKS["small"],
            "the others are through",
        )
    keys = [key for key, _ in begun(tmp_path)]
    # While small ones wait: the last ones may be what the dead worker had claimed, and come back
    # with its lease.
    small = [place for place, key in enumerate(keys) if key == "small"]
    turns = keys[: 1 + small[_TASKS["small"] - limit - 1]]
    assert set(keys[: 3 * limit]) == set(_TASKS)
    if limit == 1:
        # One runs at a time: so what is written down is the order in which they were claimed. When
        # a worker stands still between a claim and its start, the next key has the turn.
        assert sum(one == other for one, other in pairwise(turns)) <= _LOST_TURNS
    # Handlers that run at once may write in another order; the dead worker's tasks are run again.
    ahead = [Counter(turns[:place]) for place in range(1, len(turns))]
    assert max(abs(each["large"] - each["small"]) for each in ahead) <= 1 + 2 * limit
    assert len(turns) <= 2 * _TASKS["small"] + 4 * limit
