"""What the commands and the doctor say about versions that tasks need."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.doctor import Verdict, examine
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskClient, TaskContext, versioned
from tests.support.commands import begin, cli, end
from tests.support.processes.pools import SESSION, becomes, pool, queue_of

pytestmark = pytest.mark.worker


async def ask(ctx: TaskContext) -> None:
    """Wait for an approval."""
    await ctx.approval("Go on?")


OLD: dict[str, Handler] = {"ask": versioned({"1": ask}, default="1")}
NEW: dict[str, Handler] = {"ask": versioned({"2": ask}, default="2"), "other": ask}


async def leave_parked(client: TaskClient, *tasks: str) -> None:
    """Approve tasks that this worker lacks the version of."""
    for pause in await client.pauses():
        if pause.task_id in tasks:
            assert pause.pause_id is not None
            await client.approve(pause.pause_id)

    async def parked() -> bool:
        return sum(one.waiting for one in await client.unserved()) == len(tasks)

    await eventually(parked, "all are parked")


@pytest.mark.role("any", why="the doctor asks what a worker may not")
async def test_an_operator_sees_which_version_waits_for_whom(
    store: RedisStateStore, settings: Settings
) -> None:
    async with pool(store, OLD, name="old") as client:
        tasks = [await client.submit("ask", session_id=SESSION) for _ in range(3)]
        await asyncio.gather(*(becomes(client, task, TaskStatus.PAUSED) for task in tasks))
    async with pool(store, NEW, name="new") as client:
        await leave_parked(client, *tasks[:2])
        queue = queue_of(settings)
        ran = await cli(settings, "versions", "--json")
        assert {(one["version"], one["tasks"], one["unserved"]) for one in ran.document} == {
            ("1", 3, 2),
            ("2", 0, 0),
        }
        ran = await end(await begin(settings, "versions", "ask"))
        assert [line.split() for line in ran.out.splitlines()[-2:]] == [
            ["ask", "1", "3", "2", "none"],
            ["ask", "2", "0", "0", "new"],
        ]
        ran = await cli(settings, "queues")
        assert f"{queue}: 2 waiting for version 1 of ask, which no worker has" in ran.out
        ran = await cli(settings, "queues", "--json")
        found = {one["name"]: one["unserved"] for one in ran.document}
        assert found[queue] == [{"handler": "ask", "version": "1", "waiting": 2, "workers": []}]
        ran = await cli(settings, "tasks", "--unserved", "--json")
        assert {one["task_id"] for one in ran.document} == set(tasks[:2])
        ran = await cli(settings, "show", SESSION, tasks[0], "--json")
        assert (ran.document["status"], ran.document["version"]) == ("PENDING", "1")
        ran = await cli(settings, "workers", "--json")
        assert [one["versions"] for one in ran.document] == [{"ask": ["2"]}]
        findings = [one for one in await examine(settings) if one.question == "versions"]
        assert [(one.server, one.state) for one in findings] == [(queue, Verdict.FINDING)]
        assert findings[0].says == "2 tasks wait for version '1' of handler 'ask'"
        async with pool(store, OLD, name="again"):
            for task in tasks[:2]:
                await becomes(client, task, TaskStatus.COMPLETE)
            assert [one for one in await examine(settings) if one.question == "versions"] == []


async def test_a_wrong_call_is_refused(settings: Settings) -> None:
    assert (await cli(settings, "tasks", "--dead", "--unserved")).status == 2


async def test_the_terminal_does_not_obey_the_key_of_a_limit(settings: Settings) -> None:
    limit = ("queues", "limit", "q", "--limit-key", "acme\x1b[31m\n", "--running", "1")
    ran = await cli(settings, *limit)
    assert (ran.status, "key acme\ufffd[31m\ufffd: running 1" in ran.out) == (0, True)
    assert "acme\x1b" not in ran.out


async def test_a_change_of_a_queue_that_nobody_uses_warns_of_its_name(settings: Settings) -> None:
    for change in (("pause", "taskss"), ("limit", "taskss", "--running", "1")):
        ran = await cli(settings, "queues", *change, "--json")
        assert (ran.status, [each["name"] for each in ran.document]) == (0, ["taskss"])
        assert "no worker serves the queue 'taskss', and no task is in it" in ran.err
    assert (await cli(settings, "queues", "resume", "taskss")).err == ""
    assert (await cli(settings, "submit", "ask", "-s", SESSION)).status == 0
    assert (await cli(settings, "queues", "pause", "tasks")).err == ""
