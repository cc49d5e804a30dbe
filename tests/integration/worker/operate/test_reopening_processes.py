"""Dead, failed and cancelled tasks are reopened once, by operators and workers that are killed."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import BulkOutcome, TaskClient
from tests.chaos.support.crew import Crew, ends, recorded, trails
from tests.processes.workers.killed.operated_worker import KIND
from tests.support.processes import children
from tests.support.processes.pools import client_of, queue_of
from tests.support.servers.faults import run_processes, start_process

pytestmark = pytest.mark.slow

_SESSIONS = ("a", "b", "c")
_OVER: dict[str, Any] = {"attributes": KIND, "status": ["FAILED", "CANCELLED"]}
_OPERATORS = 3
# The killed operator reopens so many of all: the last of them without queueing it.
_REOPENED = 4
_Task = tuple[str, str]


async def submit(client: TaskClient, kind: str, *sessions: str) -> list[_Task]:
    return [
        (each, await client.submit("broken", kind, session_id=each, attributes=KIND))
        for each in sessions
    ]


async def found(client: TaskClient, **filters: Any) -> list[_Task]:
    page = await client.find(limit=1_000, **filters)
    return sorted((task.session_id, task.task_id) for task in page.tasks)


async def all_found(client: TaskClient, wanted: list[_Task], **filters: Any) -> None:
    """Wait until exactly these are found."""

    async def so() -> bool:
        return await found(client, **filters) == sorted(wanted)

    await eventually(so, f"{len(wanted)} are found by {filters}", timeout_s=60)


async def dead_letter(client: TaskClient, crew: Crew) -> list[_Task]:
    """Submit a task that takes its workers along, and start workers until it is given up."""
    tasks = await submit(client, "dies", "a")

    async def given_up() -> bool:
        if not crew.alive():
            await crew.start()
        return len(await client.dead()) == len(tasks)

    await eventually(given_up, "it is given up", timeout_s=60)
    return tasks


async def all_kinds(client: TaskClient, crew: Crew, folder: Path) -> list[_Task]:
    """Let tasks be cancelled, fail, and be given up; leave no worker alive."""
    cancelled = await submit(client, "stops", *_SESSIONS)
    for task in cancelled:
        await client.cancel(*task)
    await crew.start()
    failed = await submit(client, "fails", *_SESSIONS)
    await all_found(client, failed, status="FAILED")
    before_deaths = datetime.now(UTC)
    dead = await dead_letter(client, crew)
    assert len(recorded(folder, "deaths")) == len(crew.processes) - 1 > 1
    # A worker that dies before it has written an end into the index leaves that to another's sweep.
    await all_found(client, [*failed, *dead], status="FAILED")
    for name in crew.alive():
        await crew.kill(name)
    await all_found(client, cancelled, status="CANCELLED", handler="broken")
    await all_found(client, dead, created_after=before_deaths)
    await all_found(client, [*cancelled, *failed], created_before=before_deaths)
    return [*cancelled, *failed, *dead]


def retries(client: TaskClient, **options: Any) -> dict[str, Any]:
    """Give the argument of an operator that retries what matches."""
    settings = client.store.settings
    return {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "action": "retry",
        "options": options,
    }


async def dies(argument: dict[str, Any], folder: Path, **death: Any) -> None:
    """Have an operator die in the middle."""
    mark = {"mark": str(folder / "killed")}
    operator = await start_process("operated_worker", argument | death | mark)
    try:
        await operator.communicate()
    finally:
        await children.end(operator)
    assert operator.returncode == -signal.SIGKILL


async def reopen(client: TaskClient, every: list[_Task], folder: Path) -> None:
    """Have an operator die in the middle, look at what is left, and have others race for that."""
    await dies(retries(client, **_OVER), folder, die=_REOPENED)
    left = every[_REOPENED:]
    report = await client.bulk("retry", dry_run=True, **_OVER)
    assert sorted((item.session_id, item.task_id) for item in report.items) == sorted(left)
    assert report.counts[BulkOutcome.WOULD] == len(left)
    # A dry run has changed nothing.
    assert await found(client, **_OVER) == sorted(left)
    racing = retries(client, **_OVER, idempotency_key=None)
    told = await run_processes("operated_worker", [racing] * _OPERATORS)
    outcomes = [outcome for each in told for outcome in each.items()]
    won = Counter(task for task, outcome in outcomes if outcome == "done")
    assert won == {task: 1 for _, task in left}
    assert {outcome for _, outcome in outcomes} <= {"done", "refused"}
    await all_found(client, every, status="PENDING")


async def run_again(client: TaskClient, crew: Crew, every: list[_Task], folder: Path) -> None:
    """Run what was reopened, and kill its worker in the middle of all."""
    (folder / "mended").touch()
    await crew.start()
    await eventually(
        lambda: {task for task, _ in recorded(folder, "again")} == {task for _, task in every},
        "all run, also what was not queued",
        timeout_s=60,
    )
    (victim,) = crew.alive()
    assert await crew.kill(victim) == -signal.SIGKILL
    await crew.start()
    (folder / "go").touch()
    for task in every:
        assert await client.result(*task, timeout_s=60) == "done"


async def judge(client: TaskClient, every: list[_Task], folder: Path) -> None:
    """Compare what operators see with what was done."""
    await all_found(client, every, status="COMPLETE")
    assert await client.dead() == []
    listed = (await client.sessions()).sessions
    complete = Counter(session for session, _ in every)
    assert {each.session_id: +Counter(each.counts) for each in listed} == {
        session: Counter({TaskStatus.COMPLETE: many}) for session, many in complete.items()
    }
    # A recorded step is not done again: neither by a retry nor behind a death.
    assert Counter(task for (task,) in recorded(folder, "before")) == {t: 1 for _, t in every}
    rows = {session: await trails(client.store, session) for session in _SESSIONS}
    for session, task in every:
        view = await client.inspect(session, task)
        assert view is not None
        assert view.retries == 1
        trail = rows[session][task]
        assert ends(trail) == 2, "the first end, and the one after the retry"
        before, after = await client.snapshots(session, task)
        assert (before.attempts, after.attempts) == (1, 1)
        # It began in the last run, and not in the one that was killed in it.
        runs = [row.at_ms for row in trail if row.status == "RUNNING"]
        assert after.began_at is not None
        assert after.began_at.timestamp() * 1000 + 2 >= runs[-1]


async def test_what_is_dead_failed_or_cancelled_is_reopened_once_and_seen_in_all_sessions(
    store: RedisStateStore, tmp_path: Path
) -> None:
    crew = Crew(store.settings, tmp_path, program="operated_worker", lease_s=0.4, max_crashes=1)
    async with client_of(store) as client, crew:
        every = await all_kinds(client, crew, tmp_path)
        await reopen(client, every, tmp_path)
        await run_again(client, crew, every, tmp_path)
        await judge(client, every, tmp_path)


async def test_a_child_that_a_dead_operator_has_reopened_runs_and_the_next_call_reopens_its_parent(
    store: RedisStateStore, tmp_path: Path
) -> None:
    crew = Crew(store.settings, tmp_path, program="operated_worker", lease_s=0.4)
    async with client_of(store) as client, crew:
        first = await crew.start()
        task = ("a", await client.submit("parent", session_id="a"))
        await all_found(client, [task], handler="parent", status="FAILED")
        await crew.kill(first)
        (child,) = [("a", each.task_id) for each in await client.children(*task)]
        argument = retries(client, handler="parent", status="FAILED")
        await dies(argument, tmp_path, script="retry_task", die=2)
        await all_found(client, [child], status="PENDING")
        await all_found(client, [task], status="FAILED")

        (tmp_path / "mended").touch()
        second = await crew.start()
        await eventually(lambda: recorded(tmp_path, "again"), "the child runs", timeout_s=60)
        assert await crew.kill(second) == -signal.SIGKILL
        (told,) = await run_processes("operated_worker", [argument])
        assert told == {task[1]: "done"}
        (tmp_path / "go").touch()
        await crew.start()
        assert await client.result(*task, timeout_s=60) == "done"
        views = [await client.inspect(*each) for each in (task, child)]
        assert [(view.state.status, view.retries) for view in views if view] == [
            (TaskStatus.COMPLETE, 1)
        ] * 2
        assert [each.task_id for each in await client.children(*task)] == [child[1]]
        rows = await trails(store, "a")
    assert [ends(rows[each]) for _, each in (task, child)] == [2, 2]
    assert recorded(tmp_path, "before") == [[child[1]]]
