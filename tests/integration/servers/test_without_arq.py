"""What the extra ``pool`` brings is enough for a worker, on any redis-py that the package takes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("stamina", reason="needs the pool extra")

import redis

from redis_state import Settings
from tests.support.processes.pools import queue_of
from tests.support.servers.faults import PROCESSES, run_python

pytestmark = pytest.mark.server


@pytest.mark.role("any", why="the doctor asks what a worker may not")
async def test_a_worker_needs_no_arq_but_for_what_is_arqs(settings: Settings) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
    }
    out = await run_python(str(PROCESSES / "workers" / "without_arq.py"), json.dumps(argument))
    made = json.loads(out.splitlines()[-1])
    assert made["result"] == "done True"
    assert made["redis"] == redis.__version__
    assert {"queue", "jobs", "tasks"} <= set(made["questions"])
    assert made["imported"] == []
    runner, cron = made["refused"]
    assert runner == "arq's own runner needs arq: pip install 'redis_state[worker]'"
    assert cron == "a cron job needs arq: pip install 'redis_state[worker]'"
