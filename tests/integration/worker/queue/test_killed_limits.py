"""Rates and turns of keys are exact while they are changed and workers are killed."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient
from tests.chaos.support.crew import Crew, recorded, trails
from tests.support.processes.pools import SESSION, client_of, queue_of

pytestmark = pytest.mark.worker

_TASKS = 8
_TURNS = {"large": 60, "small": 24}


async def _begun(store: RedisStateStore) -> int:
    """Count the runs that have begun of the key whose rate is changed."""
    rows = await trails(store)
    return sum(row.status == "RUNNING" for trail in rows.values() for row in trail)


async def _stays(client: TaskClient, begun: int, running: int) -> None:
    """Wait until so many have begun and these run; see that a worker which asks gets no more."""
    name = queue_of(client.store.settings)

    async def so() -> bool:
        queue = await client.queues.get(name)
        counts = (await _begun(client.store), queue.running, queue.running + queue.waiting)
        return counts == (begun, running, _TASKS)

    await eventually(so, f"{begun} have begun, and {running} run", timeout_s=60)
    # A key has a rate of its own. This one is claimed behind all that may be.
    asked = await client.submit("work", "asks", session_id="asks", limit_key=f"after {begun}")
    await client.wait("asks", asked, timeout_s=60)
    assert await _begun(client.store) == begun


async def test_a_rate_of_starts_that_is_changed_while_workers_die_is_kept_to_the_last_start(
    store: RedisStateStore, tmp_path: Path
) -> None:
    """The periods are so long that nothing comes back with time: each start is counted."""
    name = queue_of(store.settings)
    crew = Crew(
        store.settings, tmp_path, program="flow_worker", lease_s=0.4, max_tasks=20, part_s=0.0
    )
    async with client_of(store) as client, crew:
        await client.queues.limit(name, rate=Rate(4, timedelta(hours=1)))
        for _ in range(_TASKS):
            await client.submit("hold", "a", session_id=SESSION, limit_key="a")
        # It dies with four claims, none of which has begun: it took the whole hour for them.
        mark = tmp_path / "killed"
        first = await crew.start(die=["before", "start_task", 1, str(mark)])
        assert await crew.processes[first].wait() == -signal.SIGKILL
        assert (await client.queues.get(name)).running == 4
        # Two places of 8 hours are left beside that hour, and a third one when it is given back.
        await client.queues.limit(name, rate=Rate(3, timedelta(days=1)))
        second = await crew.start()
        await _stays(client, begun=3, running=3)
        # What has begun is a start, also if its worker dies: its next run is another one.
        assert await crew.kill(second) == -signal.SIGKILL
        third = await crew.start()
        await _stays(client, begun=3, running=0)
        # One day of seven is taken: of 14 places twelve are left.
        await client.queues.limit(name, rate=Rate(14, timedelta(days=7)))
        await _stays(client, begun=3 + 8, running=_TASKS)
        assert await crew.kill(third) == -signal.SIGKILL
        await crew.start()
        await _stays(client, begun=3 + 12, running=4)
        await client.queues.limit(name, rate=None)
        await _stays(client, begun=3 + 12 + 4, running=_TASKS)
        (tmp_path / "release").touch()
        ended = [await client.wait(SESSION, task, timeout_s=60) for task in await trails(store)]
        assert [state.status for state in ended] == [TaskStatus.COMPLETE] * _TASKS


async def test_no_key_starves_while_the_limit_of_keys_is_changed_and_workers_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    name = queue_of(store.settings)
    crew = Crew(store.settings, tmp_path, program="flow_worker", lease_s=0.4, part_s=0.01)

    def begun() -> list[str]:
        return [line[-1] for line in recorded(tmp_path, "runs") if line[0] == "begin"]

    async def has_begun(key: str, many: int) -> None:
        await eventually(lambda: begun().count(key) >= many, f"{many} of {key} began", timeout_s=60)

    async with client_of(store) as client, crew:
        await client.queues.limit(name, running=3, per_key=1)
        # With one slot it holds nothing but this.
        first = await crew.start(max_tasks=1)
        for _ in range(2):
            await client.submit("hold", "held", session_id=SESSION, limit_key="held")
        await has_begun("held", 1)
        await client.queues.pause(name)
        for key, many in _TURNS.items():
            for _ in range(many):
                await client.submit("work", key, session_id=SESSION, limit_key=key)
        others = [await crew.start() for _ in range(2)]
        await client.queues.resume(name)
        await has_begun("small", 6)
        assert begun().count("held") == 1
        # Now two of each key may run: of three places this one takes a second.
        await client.queues.limit(name, per_key=2)
        for worker in (first, others[0]):
            assert await crew.kill(worker) == -signal.SIGKILL
        await crew.start()
        # The second one, and the first one again; the killed worker may have begun the second.
        await has_begun("held", 3)
        (tmp_path / "release").touch()
        await client.queues.limit(name, per_key=1)
        await has_begun("small", _TURNS["small"])
        await client.queues.limit(name, per_key=None)
        await eventually(lambda: begun().count("large") >= _TURNS["large"], "all ran", timeout_s=60)
    keys = [key for key in begun() if key in _TURNS]
    # While small ones wait. At most three run, so the dead worker's are as many.
    small = [place for place, key in enumerate(keys) if key == "small"]
    turns = keys[: 1 + small[_TURNS["small"] - 4]]
    ahead = [Counter(turns[:place]) for place in range(1, len(turns))]
    assert max(abs(each["large"] - each["small"]) for each in ahead) <= 1 + 2 * 3
