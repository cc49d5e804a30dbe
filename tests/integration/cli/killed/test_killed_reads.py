"""Commands that only read: killed in the middle and typed again, they change nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.worker import Rate, Schedule, TaskContext
from tests.support.commands import begin, cli
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, found_are, pool, queue_of
from tests.support.servers.choice import Admin

pytestmark = pytest.mark.worker


async def _ask(ctx: TaskContext) -> str:
    await ctx.publish_value("part", await ctx.step("draft", lambda: "a text"))
    await ctx.approval("Send it?")
    return "sent"


async def _answer(_: TaskContext) -> str:
    return "done"


# All commands that only read, with their most telling options.
_READS: dict[str, list[str]] = {
    "of tasks": [
        "find --handler ask",
        "sessions",
        "tasks",
        "tasks -s {session}",
        "show {session} a",
        "tree {session}",
        "tail {session} b",
        "value {session} a part",
        "history {session} a",  # always JSON
    ],
    "of the pool": [
        "workers",
        "versions",
        "doctor",
        "queues",
        "queues keys {queue}",
        "schedules list",
        "schedules show nightly",
        "rates",
    ],
}


async def _die(store: RedisStateStore, mark: Path, words: list[str]) -> None:
    """Type a command that dies as it gets its first reply."""
    process = await begin(
        store.settings,
        *words,
        environment={"DIE": json.dumps({"number": 1, "mark": str(mark)})},
        program="deaths/die_in_command.py",
    )
    try:
        out, errors = await process.communicate()
    finally:
        await children.end(process)
    assert (process.returncode, out) == (-signal.SIGKILL, b""), (words, errors.decode())


@pytest.mark.parametrize("commands", _READS.values(), ids=_READS.keys())
async def test_reading_commands_that_are_killed_and_typed_again_change_nothing(
    store: RedisStateStore, admin: Admin, tmp_path: Path, commands: list[str]
) -> None:
    queue = queue_of(store.settings)
    async with pool(store, {"ask": _ask, "answer": _answer}) as client:
        asked = await client.submit("ask", "ann", session_id=SESSION, task_id="a")
        await becomes(client, asked, TaskStatus.PAUSED)
        ended = await client.submit("answer", "ben", session_id=SESSION, task_id="b")
        await client.result(SESSION, ended, timeout_s=60)
        for status in (TaskStatus.PAUSED, TaskStatus.COMPLETE):
            await found_are(client, status, 1)
        await client.queues.pause(queue)
        await client.submit("answer", "eve", session_id=SESSION, task_id="c", limit_key="acme")
        await client.rates.set("model", Rate(5, timedelta(minutes=1)))
        await client.schedules.save(
            Schedule(
                schedule_id="nightly",
                handler="answer",
                session_id="of-s",
                every=timedelta(days=1),
                queue=queue,
            )
        )
    # No worker lives that would change anything.
    before = admin.contents(store.settings.namespace)
    typed = [line.format(session=SESSION, queue=queue).split() for line in commands]
    # Some at once: each is a process.
    for place in range(0, len(typed), 5):
        some = enumerate(typed[place : place + 5], start=place)
        await asyncio.gather(*(_die(store, tmp_path / f"{n}", words) for n, words in some))
    # Each had asked for something.
    assert all((tmp_path / f"{number}").stat().st_size for number in range(len(typed)))
    assert admin.contents(store.settings.namespace) == before
    for words in typed:
        ran = await cli(store.settings, *words, *(["--json"] if words[0] != "history" else []))
        # A doctor has findings in a pool without workers.
        assert ran.status in ((0, 1) if words == ["doctor"] else (0,)), (words, ran.err)
        assert ran.out, words
    assert admin.contents(store.settings.namespace) == before
