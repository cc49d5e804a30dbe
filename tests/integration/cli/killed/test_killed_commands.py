"""Commands that are killed in the middle, and typed again: each does its work once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.chaos.support.crew import Crew, recorded, trails
from tests.support.commands import Ran, begin, cli
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, found_are, queue_of

pytestmark = pytest.mark.slow

_NAMES = ("t0", "t1", "t2")


@dataclass
class Terminal:
    """Where an operator types."""

    store: RedisStateStore
    folder: Path
    killed: int = 0

    async def type(self, *words: str) -> Any:
        """Run a command; return its document."""
        ran: Ran = await cli(self.store.settings, *words, "--json")
        assert ran.status == 0, ran.err
        return ran.document

    async def type_twice(
        self, *words: str, before: str = "queue_job", after: str = "", number: int = 1
    ) -> Any:
        """Run a command that dies at a script, and run it again; return the second's document."""
        self.killed += 1
        mark = self.folder / f"killed {self.killed}"
        death = {"when": "after" if after else "before", "script": after or before}
        process = await begin(
            self.store.settings,
            *words,
            environment={"DIE": json.dumps(death | {"mark": str(mark), "number": number})},
            program="deaths/die_in_command.py",
        )
        try:
            _, errors = await process.communicate()
        finally:
            await children.end(process)
        assert process.returncode == -signal.SIGKILL, errors.decode()
        return await self.type(*words)


async def all_are_complete(store: RedisStateStore, many: int, session: str = SESSION) -> list[str]:
    async def complete() -> bool:
        tasks = await store.list_tasks(session)
        return len(tasks) == many and {task.status for task in tasks} == {TaskStatus.COMPLETE}

    await eventually(complete, f"{many} tasks are complete", timeout_s=60)
    return [task.task_id for task in await store.list_tasks(session)]


async def test_tasks_are_submitted_copied_and_retried_once_by_commands_that_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    name, typed = queue_of(store.settings), Terminal(store, tmp_path)
    one_key = ("--yes", "--idempotency-key", "k")
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="operated_worker", lease_s=0.5) as crew,
    ):
        for task in _NAMES:
            await typed.type_twice("submit", "twice", "-s", SESSION, "--id", task, "--queue", name)
        await crew.start()
        assert sorted(await all_are_complete(store, 3)) == sorted(_NAMES)
        await found_are(client, TaskStatus.COMPLETE, 3, handler="twice")
        await typed.type_twice("rerun", "--handler", "twice", *one_key, number=2)
        fork = ("fork", SESSION, "t0", "--before", "second", "--id", "f0")
        await typed.type_twice(*fork)
        every = await all_are_complete(store, 7)

        for task in _NAMES:
            await typed.type(
                "submit", "broken", "-s", SESSION, "--id", f"b {task}", "--queue", name
            )
        await found_are(client, TaskStatus.FAILED, 3, handler="broken")
        for made in ("mended", "go"):
            (tmp_path / made).touch()
        await typed.type_twice("retry", "--status", "FAILED", *one_key, number=2)
        await all_are_complete(store, 10)
        found = (await client.find(handler="broken")).tasks
        assert [task.retries for task in found] == [1] * 3
        copies = Counter(
            task.rerun_of.task_id
            for task in (await client.find(handler="twice")).tasks
            if task.rerun_of
        )
        assert copies == dict.fromkeys(_NAMES, 1)
        moves = {
            task: [row.status for row in trail] for task, trail in (await trails(store)).items()
        }
    assert {*map(tuple, (moves[task] for task in every))} == {("PENDING", "RUNNING", "COMPLETE")}
    first, second = (
        Counter(task for (task,) in recorded(tmp_path, step)) for step in ("first", "second")
    )
    assert first == {task: 1 for task in every if task != "f0"}
    assert second == dict.fromkeys(every, 1)


async def test_queues_and_schedules_are_changed_once_by_commands_that_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    name, typed = queue_of(store.settings), Terminal(store, tmp_path)
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="operated_worker", lease_s=0.5) as crew,
    ):
        await typed.type_twice("queues", "pause", name, after="set_flow")
        await typed.type_twice("queues", "limit", name, "--running", "1", after="set_flow")
        await crew.start()
        create = ("schedules", "create", "s", "none", "of-s", "--every", "1h", "--queue", name)
        made = await typed.type_twice(*create, after="save_schedule")
        edit = ("schedules", "edit", "s", "--handler", "twice", "--priority", "2")
        edited = await typed.type_twice(*edit, after="save_schedule")
        assert (edited["handler"], edited["priority"]) == ("twice", 2)
        assert edited["revision"] != made["revision"]
        trigger = ("schedules", "trigger", "s", "--idempotency-key", "k")
        triggered = (await typed.type_twice(*trigger))["task_id"]
        fill = ("schedules", "backfill", "s", "2026-01-01", "2026-01-01T04:00+00:00")
        filled = [each["task_id"] for each in await typed.type_twice(*fill, number=3)]
        assert (await typed.type_twice("schedules", "pause", "s", after="save_schedule"))["paused"]
        every = [triggered, *filled]
        # The pause holds for the worker too, and so does what the queue tells of it.
        states = {task.task_id: task.status for task in await store.list_tasks("of-s")}
        assert states == dict.fromkeys(every, TaskStatus.PENDING)

        async def all_wait() -> bool:
            queue = await client.queues.get(name)
            return (queue.waiting, queue.running, queue.paused) == (len(every), 0, True)

        # Also what was not queued by the callers that died.
        await eventually(all_wait, "all wait", timeout_s=60)
        assert (await client.queues.get(name)).limit == 1
        await typed.type_twice("queues", "resume", name, after="set_flow")
        await all_are_complete(store, len(every), "of-s")
        assert (await client.schedules.get("s")).paused
    for step in ("first", "second"):
        assert Counter(task for (task,) in recorded(tmp_path, step)) == dict.fromkeys(every, 1)
