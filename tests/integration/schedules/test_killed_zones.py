"""A schedule by the clocks of a place, over the days when they change, while processes are killed.

Each of its occurrences is one task: those that were missed, and those that a caller makes up for.
"""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Schedule, TaskClient, occurrence_of
from tests.chaos.support.crew import Crew, recorded, trails
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, queue_of
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import start_process
from tests.support.tasks.schedules import settled_before

pytestmark = pytest.mark.worker

_ZONE = ZoneInfo("Europe/Berlin")
_DAY = timedelta(days=1)
# In the first night the clocks skip the hour from 2, in the second they repeat it.
_SPRING = (date(2026, 3, 27), date(2026, 3, 31))
_AUTUMN = (date(2026, 10, 23), date(2026, 10, 27))


def nightly(**options: Any) -> Schedule:
    given: dict[str, Any] = {"handler": "fire", "session_id": SESSION, "input": "x"}
    return Schedule(schedule_id="s", cron="30 2 * * *", timezone="Europe/Berlin", **given | options)


def nights(first: date, until: date) -> list[datetime]:
    """Tell when it is half past two of each night: right after an hour that is skipped."""
    found: list[datetime] = []
    for number in range((until - first).days):
        day = first + number * _DAY
        at = datetime(day.year, day.month, day.day, 2, 30, tzinfo=_ZONE).astimezone(UTC)
        skipped = at.astimezone(_ZONE).hour != 2
        found.append(at.replace(minute=0) if skipped else at)
    return found


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=_ZONE)


async def all_are_complete(store: RedisStateStore, many: int) -> list[datetime]:
    """Wait until there are so many tasks and all are complete; return their occurrences."""

    async def complete() -> bool:
        tasks = await store.list_tasks(SESSION)
        return len(tasks) == many and {task.status for task in tasks} == {TaskStatus.COMPLETE}

    await eventually(complete, f"{many} tasks are complete", timeout_s=60)
    found = [occurrence_of(task.task_id) for task in await store.list_tasks(SESSION)]
    return sorted(at for at in found if at)


async def each_ran_once(store: RedisStateStore, folder: Path, many: int) -> None:
    """Each was submitted once and ended once. A step that a kill cut off is done again."""
    fired = Counter(task for task, _ in recorded(folder, "fired"))
    assert len(fired) == many
    rows = await trails(store)
    for task, times in fired.items():
        moves = Counter(row.status for row in rows[task])
        assert (moves["PENDING"], moves["COMPLETE"]) == (1, 1)
        assert times <= moves["RUNNING"]


def before_last_change(today: date) -> date:
    """Tell the day that is five days before the clocks were last changed."""
    day = today
    while midnight(day).utcoffset() == midnight(today).utcoffset():
        day -= _DAY
    return day - 5 * _DAY


async def missing(client: TaskClient, wanted: list[datetime], since: datetime) -> int:
    """Compare what a dry run says with what a killed caller has left; count what is missing."""
    before = {task.task_id for task in await client.store.list_tasks(SESSION)}
    until = wanted[-1] + timedelta(seconds=1)
    planned = await client.schedules.backfill("s", since, until, dry_run=True)
    assert [each.at for each in planned] == wanted
    states = {each.task_id: each.state for each in planned}
    assert states == {task: "exists" if task in before else "missing" for task in states}
    # Nothing was submitted by it.
    assert {task.task_id for task in await client.store.list_tasks(SESSION)} == before
    return Counter(states.values())["missing"]


async def test_a_backfill_over_both_changes_of_the_clocks_is_whole_though_callers_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="flow_worker", lease_s=0.5) as crew,
    ):
        await client.schedules.save(nightly(), paused=True)
        for _ in range(2):
            await crew.start()
        # The first caller dies while it writes the tasks, the second while it queues them.
        deaths = (("create_task", *_SPRING), ("queue_job", *_AUTUMN))
        for script, first, until in deaths:
            argument: dict[str, Any] = {
                "url": store.settings.url.get_secret_value(),
                "namespace": store.settings.namespace,
                "queue": queue_of(store.settings),
                "schedule": "s",
                "since_ms": round(midnight(first).timestamp() * 1000),
                "until_ms": round(midnight(until).timestamp() * 1000),
                "script": script,
                "die": 2,
                "mark": str(tmp_path / f"killed at {script}"),
            }
            for status in (-signal.SIGKILL, 0):
                process = await start_process("submit_and_die", argument)
                try:
                    await process.communicate()
                finally:
                    await children.end(process)
                assert process.returncode == status
                left = await missing(client, nights(first, until), midnight(first))
                assert not left or status
                assert left or not status or script != "create_task"
            assert await crew.kill(crew.alive()[0]) == -signal.SIGKILL
            await crew.start()
        wanted = nights(*_SPRING) + nights(*_AUTUMN)
        assert await all_are_complete(store, len(wanted)) == wanted
    # In the first of the nights it is right after the hour that is skipped.
    assert (wanted[2].hour, wanted[2].minute) == (1, 0)
    await each_ran_once(store, tmp_path, len(wanted))


async def test_what_was_missed_over_a_change_of_the_clocks_is_made_up_for_once(
    store: RedisStateStore, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    options: dict[str, Any] = {"program": "flow_worker", "lease_s": 0.5}
    async with client_of(store) as client, Crew(store.settings, tmp_path, **options) as crew:
        await client.schedules.save(nightly(missed="all", max_missed=1_000))
        now_ms = await clock_ms(store.base.scripts)
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(_ZONE)
        first = before_last_change(now.date())
        await settled_before(store, ms=now_ms - round(midnight(first).timestamp() * 1000))
        every = [at for at in nights(first, now.date() + _DAY) if at <= now]
        # Who submits them dies when some are written, and others are only decided on.
        die = ["before", "create_task", 3, str(mark)]
        names = [await crew.start(die=die) for _ in range(3)]

        def dead() -> list[str]:
            return [name for name in names if name not in crew.alive()]

        await eventually(dead, "one has died", timeout_s=60)
        assert mark.exists()
        assert len(await store.list_tasks(SESSION)) < len(every)
        assert await crew.kill(crew.alive()[0]) == -signal.SIGKILL
        await crew.start()
        assert await all_are_complete(store, len(every)) == every
    hours = {(after - at) / timedelta(hours=1) for at, after in pairwise(every)}
    assert hours - {24} in ({25}, {23.5})
    await each_ran_once(store, tmp_path, len(every))
