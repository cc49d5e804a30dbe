"""A deploy kills the workers with the old code in the middle of tasks; new code takes them over."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import recorded
from tests.support.processes.pools import SESSION, client_of, updates_of
from tests.support.processes.worker_processes import stop, worker_process

pytestmark = pytest.mark.worker


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


def deployed(folder: Path, deploy: str) -> dict[str, Any]:
    return {
        "program": "deployed_worker",
        "folder": str(folder),
        "deploy": deploy,
        "lease_s": 0.5,
    }


def done(folder: Path, task: str) -> list[tuple[str, str]]:
    """Tell which steps of a task were done, and by which code."""
    return [(step, code) for name, step, code in recorded(folder, "steps") if name == task]


async def hang(folder: Path, *tasks: str, run: int = 1) -> None:
    """Wait until tasks wait for their worker's death."""
    wanted = [[task, run] for task in tasks]

    def all_hang() -> bool:
        found = recorded(folder, "hangs")
        return all(each in found for each in wanted)

    await eventually(all_hang, "the tasks hang")


async def notices(store: RedisStateStore, task: str) -> list[dict[str, Any]]:
    return [
        update.content
        for update in await updates_of(store, task)
        if update.update_type is UpdateType.NOTIFICATION
    ]


@pytest.mark.parametrize("on_changed", ["notify", "fail"])
async def test_new_code_is_found_out_at_its_first_other_call(
    store: RedisStateStore, client: TaskClient, tmp_path: Path, on_changed: str
) -> None:
    async with worker_process(store.settings, "old", **deployed(tmp_path, "old")) as old:
        task = await client.submit("renamed", session_id=SESSION)
        await hang(tmp_path, task)
        assert await stop(old, signal.SIGKILL) == -signal.SIGKILL
    new = deployed(tmp_path, "new") | {"on_changed": on_changed}
    async with worker_process(store.settings, "new", **new):
        ended = await client.wait(SESSION, task, timeout_s=60)
    before = [("a", "old"), ("b", "old")]
    first = [each for each in await notices(store, task) if "called" in each]
    if on_changed == "fail":
        # The new step's work did not begin, and what is recorded was not done again.
        assert done(tmp_path, task) == before
        assert ended.status is TaskStatus.FAILED
        stated = f"the handler of task {task!r} called step:x#1 where another call is recorded"
        assert ended.error == f"HandlerChanged: {stated}: step:b#1"
        return
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "axy")
    assert done(tmp_path, task) == [*before, ("x", "new"), ("y", "new")]
    # It is told once: of the first such call, not of those after it.
    assert [(each["called"], each["recorded"]) for each in first] == [("step:x#1", "step:b#1")]


async def test_a_patch_leaves_old_tasks_on_the_path_that_they_have_passed(
    store: RedisStateStore, client: TaskClient, tmp_path: Path
) -> None:
    async with worker_process(store.settings, "old", **deployed(tmp_path, "old")) as old:
        # One is killed before the point, two behind it.
        before = await client.submit("patched", "first", session_id=SESSION)
        behind = await client.submit("patched", session_id=SESSION)
        again = await client.submit("patched", "again", session_id=SESSION)
        await hang(tmp_path, before, behind, again)
        assert await stop(old, signal.SIGKILL) == -signal.SIGKILL
    async with worker_process(store.settings, "new", **deployed(tmp_path, "new")) as new:
        assert await client.result(SESSION, before, timeout_s=60) == ["new", "new end"]
        assert await client.result(SESSION, behind, timeout_s=60) == ["old", "new end"]
        # The new process dies too: the next one gets the same answers.
        await hang(tmp_path, again, run=2)
        assert await stop(new, signal.SIGKILL) == -signal.SIGKILL
    async with worker_process(store.settings, "next", **deployed(tmp_path, "new")):
        assert await client.result(SESSION, again, timeout_s=60) == ["old", "new end"]
        fresh = await client.submit("patched", "fresh", session_id=SESSION)
        assert await client.result(SESSION, fresh, timeout_s=60) == ["new", "new end"]
    old_path = [("before", "old"), ("old", "old"), ("new end", "new")]
    assert done(tmp_path, behind) == old_path
    assert done(tmp_path, again) == old_path
    assert done(tmp_path, before) == [("before", "old"), ("new", "new"), ("new end", "new")]
    assert done(tmp_path, fresh) == [("before", "new"), ("new", "new"), ("new end", "new")]
    for task in (before, behind, again, fresh):
        assert await notices(store, task) == []
