"""What cannot be reopened is refused to each of many processes, and nothing of it changes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.chaos.support.crew import Crew, ends, recorded, trails
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, client_of, queue_of
from tests.support.samples import task as make_task
from tests.support.servers.choice import Admin
from tests.support.servers.faults import run_processes, start_process

pytestmark = pytest.mark.worker

_RACING = 3


async def test_racing_retries_are_refused_and_only_the_parents_reopens_a_child(
    store: RedisStateStore, admin: Admin, tmp_path: Path
) -> None:
    settings, stop = store.settings, tmp_path / "stop"
    crew = Crew(settings, tmp_path, program="operated_worker", lease_s=0.4)
    caller: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
    }
    racers: list[children.Process] = []
    async with client_of(store) as client, crew:
        (tmp_path / "mended").touch()
        parent = await client.submit("parent", session_id=SESSION)
        worker = await crew.start()
        await eventually(lambda: recorded(tmp_path, "again"), "its child runs", timeout_s=60)
        (child,) = [each.task_id for each in await client.children(SESSION, parent)]
        await client.cancel(SESSION, parent, hard=True)
        for task in (parent, child):
            await becomes(client, task, TaskStatus.CANCELLED)
        await crew.kill(worker)
        await store.save_task(make_task("saved", session_id=SESSION, status=TaskStatus.FAILED))
        before = admin.contents(settings.namespace)

        tasks = [(SESSION, task) for task in (child, "saved")]
        try:
            for _ in range(_RACING):
                argument = caller | {"tasks": tasks, "stop": str(stop)}
                racers.append(await start_process("race_retries", argument))
            for racer in racers:
                assert racer.stdout is not None
                assert await racer.stdout.readline() == b"tried\n"
            racers[0].kill()
            assert await racers[0].wait() == -signal.SIGKILL
            assert admin.contents(settings.namespace) == before
            # They race on while the parent is reopened, which brings its child.
            options = {"idempotency_key": None, "handler": "parent", "status": "CANCELLED"}
            action = caller | {"action": "retry", "options": options}
            told = await run_processes("operated_worker", [action] * 2)
            assert min(each.get(parent, "gone") for each in told) == "done"
            assert sum(each.get(parent) == "done" for each in told) == 1
            stop.touch()
            ended = await asyncio.gather(*(racer.communicate() for racer in racers[1:]))
        finally:
            await asyncio.gather(*map(children.end, racers))
        for out, err in ended:
            counts = json.loads(out.decode().splitlines()[-1] or err)
            assert counts.pop(f"{child}: RetryRefused") > 0
            assert counts.pop("saved: RetryRefused") > 0
            # Its status is PENDING by then.
            assert set(counts) <= {f"{child}: InvalidTransition"}

        (tmp_path / "go").touch()
        await crew.start()
        assert await client.result(SESSION, parent, timeout_s=60) == "done"
        views = [await client.inspect(SESSION, task) for task in (parent, child)]
        assert [view and view.retries for view in views] == [1, 1]
        rows = await trails(store)
    assert [ends(rows[task]) for task in (parent, child)] == [2, 2]
    saved = await store.tasks.load(SESSION, "saved")
    assert saved is not None
    assert saved.status is TaskStatus.FAILED
