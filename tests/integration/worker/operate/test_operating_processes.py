"""What operators do, and features of handlers, while workers and operators are killed (-9)."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TextReader
from tests.chaos.support.crew import Crew, ends, recorded, trails, wrong_move
from tests.processes.workers.killed.operated_worker import KIND, WORDS
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, found_are, queue_of, updates_of
from tests.support.processes.worker_processes import stop
from tests.support.servers.faults import start_process

pytestmark = [pytest.mark.worker, pytest.mark.slow]
_TASKS = 10
_KILLS = 5


@asynccontextmanager
async def killed_all_the_time(settings: Settings, folder: Path) -> AsyncGenerator[None]:
    """Run three workers for the block; kill one after the other."""
    chance, statuses, over = random.Random(5), list[int](), asyncio.Event()
    async with Crew(settings, folder, program="operated_worker", lease_s=0.5) as crew:

        async def kill() -> None:
            # It is not cancelled: a process that is being started would be left.
            while not over.is_set():
                await asyncio.sleep(chance.uniform(0.05, 0.25))
                statuses.append(await crew.kill(chance.choice(crew.alive())))
                await crew.start()

        for _ in range(3):
            await crew.start()
        killing = asyncio.create_task(kill())
        try:
            yield
            await eventually(lambda: len(statuses) > _KILLS, "enough were killed")
        finally:
            over.set()
            await killing
    assert set(statuses) == {-signal.SIGKILL}


async def killed_operator(settings: Settings, action: str, after_s: float) -> None:
    """Have an operator act on all failed tasks, and kill it in the middle."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "action": action,
    }
    process = await start_process("operated_worker", argument)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        await asyncio.sleep(after_s)
        # It may have ended in time; then it has done all.
        assert await stop(process, signal.SIGKILL) in (-signal.SIGKILL, 0)
    finally:
        await children.end(process)


async def test_what_fails_under_kills_is_found_retried_and_copied_once(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    async with client_of(store) as client, killed_all_the_time(settings, tmp_path):
        tasks = [
            await client.submit("flaky", session_id=SESSION, attributes=KIND) for _ in range(_TASKS)
        ]
        await found_are(client, TaskStatus.FAILED, _TASKS, attributes=KIND, handler="flaky")
        for action in ("fork", "rerun"):
            await killed_operator(settings, action, 0.01)
            # A copy may have failed before the next call, which then matches it.
            for _ in range(2):
                await client.bulk(action, idempotency_key="k", attributes=KIND, session_id=SESSION)
        (tmp_path / "mended").touch()
        await killed_operator(settings, "retry", 0.01)

        async def all_complete() -> bool:
            await client.bulk("retry", idempotency_key="k", attributes=KIND, status="FAILED")
            found = await store.list_tasks(SESSION)
            return all(task.status is TaskStatus.COMPLETE for task in found)

        await eventually(all_complete, "all are complete", timeout_s=60)
        views = (await client.find(attributes=KIND, limit=1_000)).tasks
    forks = Counter(view.forked_from.task_id for view in views if view.forked_from)
    reruns = Counter(view.rerun_of.task_id for view in views if view.rerun_of)
    # Every task has a fork; each of both has a rerun.
    assert forks == dict.fromkeys(tasks, 1)
    assert reruns == dict.fromkeys([task.task_id for task in views if not task.rerun_of], 1)
    assert len(views) == 4 * _TASKS
    found = await trails(store)
    for view in views:
        assert ends(found[view.task_id]) <= 2, "failed once, complete once"
        assert found[view.task_id][-1].status == "COMPLETE"
    # A step that is recorded is not done again, and a fork has it from the task it was made from.
    again = Counter(task for task, _ in recorded(tmp_path, "steps"))
    assert not set(again) & {view.task_id for view in views if view.forked_from}


async def test_a_patch_a_text_a_value_a_delay_and_a_sleep_survive_kills(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    async with client_of(store) as client, killed_all_the_time(settings, tmp_path):
        tasks = [
            await client.submit("answer", session_id=SESSION, delay=timedelta(milliseconds=100 * n))
            for n in range(_TASKS)
        ]
        for task in tasks:
            assert await client.result(SESSION, task, timeout_s=60) == [True, "".join(WORDS)]
            assert await client.value(SESSION, task, "text") == "".join(WORDS)
    found = await trails(store)
    for task in tasks:
        assert ends(found[task]) == 1
        assert wrong_move(found[task]) is None
        reader = TextReader()
        for update in await updates_of(store, task):
            reader.feed(update)
        # A killed run's rows are replaced by those of the next one.
        assert [text.text for text in reader.texts.values()] == ["".join(WORDS)]
