"""Callers that are killed: in the middle of a backfill, and after they submitted for later."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.chaos.support.crew import Crew, recorded, trails
from tests.chaos.support.notes import note
from tests.chaos.support.witness import Witness
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, queue_of
from tests.support.processes.worker_processes import stop
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import start_process
from tests.support.tasks.schedules import hourly

pytestmark = pytest.mark.worker

_HOUR_MS = 3_600_000
_OCCURRENCES = 60


def caller(store: RedisStateStore, **options: Any) -> dict[str, Any]:
    return {
        "url": store.settings.url.get_secret_value(),
        "namespace": store.settings.namespace,
        "queue": queue_of(store.settings),
        **options,
    }


async def all_are_complete(store: RedisStateStore, many: int) -> None:
    async def complete() -> bool:
        found = await store.list_tasks(SESSION)
        return len(found) == many and all(task.status is TaskStatus.COMPLETE for task in found)

    await eventually(complete, f"{many} tasks are complete", timeout_s=60)


async def test_two_backfills_of_which_one_is_killed_submit_each_occurrence_once(
    store: RedisStateStore, tmp_path: Path
) -> None:
    schedule = hourly(handler="fire", input="x")
    now_ms = await clock_ms(store.base.scripts)
    until_ms = now_ms // _HOUR_MS * _HOUR_MS
    since_ms = until_ms - _OCCURRENCES * _HOUR_MS
    wanted = [schedule.task_of(at) for at in range(since_ms, until_ms, _HOUR_MS)]
    # One of two makes half of them at least, and so comes to the one before which it dies.
    options = {"die": _OCCURRENCES // 2, "mark": str(tmp_path / "killed"), "schedule": "s"}
    argument = caller(store, since_ms=since_ms, until_ms=until_ms, **options)
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="flow_worker", lease_s=1.0) as crew,
    ):
        await client.schedules.save(schedule, paused=True)
        callers = [await start_process("submit_and_die", argument) for _ in range(2)]
        try:
            outs = [out for out, _ in await asyncio.gather(*(c.communicate() for c in callers))]
        finally:
            await asyncio.gather(*map(children.end, callers))
        statuses = {process.returncode: out for process, out in zip(callers, outs, strict=True)}
        assert set(statuses) == {0, -signal.SIGKILL}
        assert [task for task, _ in json.loads(statuses[0])] == wanted
        for _ in range(2):
            await crew.start()
        # Those that the killed one wrote and did not queue are found too.
        await all_are_complete(store, _OCCURRENCES)
        (again,) = [await start_process("submit_and_die", argument)]
        try:
            out, _ = await again.communicate()
        finally:
            await children.end(again)
        assert json.loads(out) == [[task, "exists"] for task in wanted]
    assert Counter(task for task, _ in recorded(tmp_path, "fired")) == Counter(wanted)
    found = await trails(store)
    moves = {task: [update.status for update in trail] for task, trail in found.items()}
    assert moves == {task: ["PENDING", "RUNNING", "COMPLETE"] for task in wanted}


async def test_a_backfill_one_at_a_time_is_so_though_callers_and_workers_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    many, group = 8, "one"
    schedule = hourly(handler="work", input=group)
    now_ms = await clock_ms(store.base.scripts)
    until_ms = now_ms // _HOUR_MS * _HOUR_MS
    argument = caller(
        store,
        schedule="s",
        since_ms=until_ms - many * _HOUR_MS,
        until_ms=until_ms,
        options={"overlap": "enqueue"},
        die=many // 2,
        mark=str(tmp_path / "killed"),
    )
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="flow_worker", lease_s=1.0) as crew,
    ):
        await client.schedules.save(schedule, paused=True)
        for _ in range(2):
            await crew.start()
        statuses: list[int | None] = []
        for _ in range(2):
            process = await start_process("submit_and_die", argument)
            try:
                await process.communicate()
            finally:
                await children.end(process)
            statuses.append(process.returncode)
        assert statuses == [-signal.SIGKILL, 0]

        def runs_in() -> str | None:
            runs = [line for line in recorded(tmp_path, "runs") if line[0] in ("begin", "end")]
            return runs[-1][3] if runs and runs[-1][0] == "begin" else None

        victim = await eventually(runs_in, "a task runs", timeout_s=60)
        assert victim is not None
        crew.report(victim, signal.SIGKILL)
        note(tmp_path, "runs", "dead", victim)
        await crew.kill(victim)
        await all_are_complete(store, many)
        for name in crew.alive():
            await crew.kill(name)
    witness = Witness(recorded(tmp_path, "runs"), {group: 1})
    assert witness.problems == []
    assert witness.most[group] == 1
    assert len(witness.runs) > many or not witness.killed_while_running()


_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "urgent": {"priority": 5},
    "keyed": {"limit_key": "k"},
    "in turn": {"in_turn": True},
}


async def killed_caller(argument: dict[str, Any]) -> int:
    """Let a caller submit, and kill it if it does not die by itself; return the tasks' time."""
    process = await start_process("submit_and_die", argument)
    try:
        assert process.stdout is not None
        at_ms = json.loads(await process.stdout.readline())
        last = json.loads(await process.stdout.readline() or b"null")
        assert last == (None if "die" in argument else list(argument["tasks"]))
        assert await stop(process, signal.SIGKILL) == -signal.SIGKILL
    finally:
        await children.end(process)
    return int(at_ms)


@pytest.mark.parametrize("dies", ["after its calls", "before it queues"])
async def test_what_a_killed_caller_submitted_for_later_begins_once_and_not_before(
    store: RedisStateStore, tmp_path: Path, dies: str
) -> None:
    if dies == "after its calls":
        arguments = [caller(store, tasks=_KINDS, in_ms=600, stays=True)]
    else:
        # A sweeper finds the task when it is not due yet: it must not begin for that.
        arguments = [
            caller(store, tasks={kind: options}, in_ms=2_600, die=1, mark=str(tmp_path / kind))
            for kind, options in _KINDS.items()
        ]
    async with Crew(store.settings, tmp_path, program="flow_worker", lease_s=1.0) as crew:
        for _ in range(3):
            await crew.start()
        times = await asyncio.gather(*map(killed_caller, arguments))
        await all_are_complete(store, len(_KINDS))
        found = await trails(store)
    due_ms = dict(zip(_KINDS, times if len(times) > 1 else times * len(_KINDS), strict=True))
    for task, at_ms in due_ms.items():
        assert [update.status for update in found[task]] == ["PENDING", "RUNNING", "COMPLETE"]
        assert found[task][1].at_ms >= at_ms
    assert sorted(task for task, _ in recorded(tmp_path, "fired")) == sorted(_KINDS)
