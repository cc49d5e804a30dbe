"""What operators do, and features of handlers, while workers and operators are killed (-9)."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient, TextReader
from redis_state.worker.tasks.views.stream import TaskView
from tests.chaos.support.crew import Crew, ends, recorded, trails, wrong_move
from tests.processes.workers.killed.operated_worker import KIND, PHASES, WORDS
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, found_are, queue_of, updates_of
from tests.support.processes.worker_processes import stop
from tests.support.servers.faults import start_process

pytestmark = [pytest.mark.worker, pytest.mark.slow]
_TASKS = 10
_FEW = 6
_KILLS = 5
_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


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


async def killed_operator(settings: Settings, action: str, after_s: float, **options: Any) -> None:
    """Have an operator act on all tasks that match, and kill it in the middle."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "action": action,
        "options": options or {"attributes": KIND},
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
        ordered = [view.task_id for view in sorted(views, key=lambda view: view.updated_at)]

        async def listed_by_their_ends() -> bool:
            asked: dict[str, Any] = {"ended_after": _LONG_AGO, "newest_first": False}
            page = await client.find(status="COMPLETE", limit=1_000, **asked)
            counted = await client.count(ended_after=_LONG_AGO)
            ended = sum(counted.values())
            return [task.task_id for task in page.tasks] == ordered and ended == len(ordered)

        await eventually(listed_by_their_ends, "each has the place of its last end", timeout_s=60)
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


async def test_attributes_running_steps_rates_cancels_and_forks_are_right_under_kills(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    async with client_of(store) as client, killed_all_the_time(settings, tmp_path):
        await asyncio.gather(
            _journeys(store, client, tmp_path),
            _starts_at_a_rate(client, tmp_path),
            _cancels(store, client),
            _forks(store, client, tmp_path),
        )


async def _journeys(store: RedisStateStore, client: TaskClient, folder: Path) -> None:
    """Attributes never go back, and no step of a dead run is shown as one of the next run."""
    session, seen = "travel", list[TaskView]()
    tasks = [await client.submit("travel", session_id=session) for _ in range(_FEW)]

    async def all_have_ended() -> bool:
        views = [await client.inspect(session, task) for task in tasks]
        seen.extend(view for view in views if view is not None)
        if any(view.running for view in seen if view.attempts > 1):
            # The run that follows a dead one was shown.
            (folder / "arrive").touch()
        return all(view is not None and view.state.status.is_terminal for view in views)

    await eventually(all_have_ended, "all are over", timeout_s=60)
    rows, last = await trails(store, session), {"phase": PHASES - 1}
    for task in tasks:
        assert await client.result(session, task) == last
        views = [view for view in seen if view.state.task_id == task]
        phases = [int(str(view.attributes.get("phase", -1))) for view in views]
        assert phases == sorted(phases)
        runs = [row.at_ms for row in rows[task] if row.status == "RUNNING"]
        for view in views:
            for step in view.running:
                # Two counts of whole milliseconds.
                assert step.began_at.timestamp() * 1000 + 2 >= runs[view.attempts - 1]

    async def found_under(phase: int) -> set[str]:
        page = await client.find(attributes={"phase": phase}, session_id=session)
        return {found.task_id for found in page.tasks}

    async def index_is_right() -> bool:
        found = [await found_under(phase) for phase in range(PHASES)]
        return found == [set()] * (PHASES - 1) + [set(tasks)]

    await eventually(index_is_right, "each is found under its last phase alone", timeout_s=60)


async def _starts_at_a_rate(client: TaskClient, folder: Path) -> None:
    """No more runs of a key have begun, at any moment, than its rate allows since it was set."""
    rate, since_s = Rate(4, timedelta(seconds=1)), time.time()
    await client.queues.limit(queue_of(client.store.settings), rate=rate)
    tasks = [
        await client.submit("limited", session_id="limited", limit_key="acme") for _ in range(_FEW)
    ]
    for task in tasks:
        await client.result("limited", task, timeout_s=60)
    begun = sorted(at_s for (at_s,) in recorded(folder, "begun"))
    assert len(begun) >= _FEW
    for count, at_s in enumerate(begun, start=1):
        assert count <= rate.limit + rate.limit * (at_s - since_s) / rate.per.total_seconds()


async def _cancels(store: RedisStateStore, client: TaskClient) -> None:
    """What a dead operator has cancelled in part, the next call cancels whole; each once."""
    session = "held"
    tasks = [await client.submit("held", session_id=session) for _ in range(_FEW)]
    options: Any = {"session_id": session, "reason": "over"}
    await killed_operator(store.settings, "cancel", 0.01, **options)
    await client.bulk("cancel", idempotency_key="k", **options)

    async def all_are_cancelled() -> bool:
        found = await store.list_tasks(session)
        return all(task.status is TaskStatus.CANCELLED for task in found)

    await eventually(all_are_cancelled, "all are cancelled", timeout_s=60)
    found = await trails(store, session)
    assert [ends(found[task]) for task in tasks] == [1] * _FEW


async def _forks(store: RedisStateStore, client: TaskClient, folder: Path) -> None:
    """A fork before a step does that step and none before it, also if its operator dies."""
    session = "twice"
    tasks = [await client.submit("twice", session_id=session) for _ in range(_FEW)]
    for task in tasks:
        await client.result(session, task, timeout_s=60)
    options: Any = {"session_id": session, "before": "second"}
    await killed_operator(store.settings, "fork", 0.01, **options)
    await client.bulk("fork", idempotency_key="k", **options)
    views = (await client.find(session_id=session, limit=1_000)).tasks
    forks = {view.task_id: view.forked_from for view in views if view.forked_from}
    assert Counter(made.task_id for made in forks.values()) == dict.fromkeys(tasks, 1)
    for fork in forks:
        await client.result(session, fork, timeout_s=60)
    first, second = ({task for (task,) in recorded(folder, step)} for step in ("first", "second"))
    assert first == set(tasks)
    assert second == {*tasks, *forks}
