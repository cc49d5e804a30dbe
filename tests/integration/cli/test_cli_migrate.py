"""`redis-state migrate`, as a person and a program use it, and killed while it copies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.transport.transport import Transport
from tests.support.commands import Ran, begin, cli, end
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool
from tests.support.servers.faults import run_server, short_directory
from tests.support.servers.states import assert_alike, state_of

KILLS = 6
KEYS = 400


@pytest.fixture
def source(own_url: str) -> Settings:
    return Settings(url=SecretStr(own_url), namespace="cli")


@pytest.fixture
async def target() -> AsyncIterator[Settings]:
    with short_directory() as directory, run_server(directory) as url:
        yield Settings(url=SecretStr(url), namespace="cli")


def url_of(settings: Settings) -> str:
    return settings.url.get_secret_value()


async def ask(context: Any) -> str:
    await context.step("one", lambda: "done")
    decision = await context.approval("go?", {})
    return "went" if decision.approved else "stayed"


async def test_a_task_that_waits_for_a_decision_ends_at_the_target(
    source: Settings, target: Settings
) -> None:
    run = partial(cli, source, REDIS_STATE_MIGRATE_TO=url_of(target))
    async with RedisStateStore(source) as store:
        async with pool(store, {"ask": ask}) as client:
            paused = await client.submit("ask", session_id=SESSION)
            token = await open_token(store, paused)
        async with client_of(store) as client:
            # No worker has begun it: it is in the queue, which is not moved.
            waiting = await client.submit("ask", session_id=SESSION)
        planned = (await run("migrate", "plan", "--json")).document
        assert planned["kinds"]["task"] == 2
        copied = await run("migrate", "copy")
        assert (copied.status, copied.err) == (0, "")
        assert f"{planned['keys']:,} keys copied" in copied.out
        finished = await run("migrate", "finish", "--delete-source")
        assert finished.status == 0, finished.out
        assert "The migration is finished." in finished.out
        assert state_of(url_of(source), "cli") == {}
    async with RedisStateStore(target) as store, pool(store, {"ask": ask}, lease_s=1) as client:
        await client.approve(token, actor="me")
        done = await becomes(client, paused, TaskStatus.COMPLETE)
        assert done.result == "went"
        await client.approve(await open_token_of(store, waiting), actor="me")
        assert (await becomes(client, waiting, TaskStatus.COMPLETE)).result == "went"


async def open_token_of(store: RedisStateStore, task_id: str) -> str:
    return await open_token(store, task_id)


async def test_a_copy_that_is_killed_leaves_whole_keys_and_the_next_one_ends_it(
    source: Settings, target: Settings
) -> None:
    async with RedisStateStore(source) as store:
        for number in range(KEYS):
            await store.save_memory_state(f"k{number}", {"text": "x" * (number % 7) * 5_000})
    whole, killed = state_of(url_of(source), "cli"), 0
    transport = Transport(target)

    async def copied() -> int:
        return int(await transport.sender.send("DBSIZE", repeatable=True))

    for number in range(KILLS):
        process = await begin(source, "migrate", "copy", "--to", url_of(target))

        async def some_are_there(least: int = (number + 1) * KEYS // 10) -> bool:
            return await copied() > least or process.returncode is not None  # noqa: B023

        await eventually(some_are_there, "some keys are copied")
        killed += process.returncode is None
        process.kill()
        await process.communicate()
        there = state_of(url_of(target), "cli")
        assert {name: content for name, (content, _) in there.items()} == {
            name: whole[name][0] for name in there
        }
    assert killed >= KILLS // 2
    await transport.aclose()
    done = await end(await begin(source, "migrate", "copy", "--to", url_of(target), "--json"))
    assert done.status == 0
    assert done.document["conflicts"]["count"] == 0
    assert_alike(state_of(url_of(source), "cli"), state_of(url_of(target), "cli"))


async def test_it_says_what_stands_in_the_way_and_keeps_passwords_to_itself(
    source: Settings, target: Settings
) -> None:
    run = partial(cli, source)
    async with RedisStateStore(source) as here, RedisStateStore(target) as there:
        await here.save_memory_state("a", {"n": 1})
        await there.save_memory_state("a", {"n": 2})
    to = ("--to", url_of(target))
    planned = await run("migrate", "plan", *to)
    # Servers of the suite keep nothing on their disks.
    assert planned.status == 1
    assert "1 keys from" in planned.out
    assert "The target has 1 keys of this namespace." in planned.out
    assert "persistence: appendonly is no" in planned.out
    left = await run("migrate", "copy", *to)
    assert left.status == 1
    assert "1 were written at the target, and were left alone: cli:v1:{a}:memory" in left.out
    differs = await run("migrate", "check", *to)
    assert differs.status == 1
    assert "1 have another content: cli:v1:{a}:memory" in differs.out
    refused = await run("migrate", "finish", *to)
    assert refused.status == 1
    assert "Nothing was done" in refused.out
    assert (await run("migrate", "copy", "--overwrite", *to)).status == 0
    assert json.loads((await run("migrate", "check", *to, "--json")).out)["equal"]
    same: Ran = await run("migrate", "copy", "--to", url_of(source))
    assert same.status == 2
    assert "are the same server" in same.err
    absent = await run(
        "migrate", "copy", "--to", "redis://:s3cret@127.0.0.1:1", REDIS_STATE_CALL_TIMEOUT_S="0.3"
    )
    assert absent.status == 5
    assert "127.0.0.1:1" in absent.err
    assert "s3cret" not in absent.err
    wrong = await run("migrate", "copy", "--to", "nonsense://x")
    assert wrong.status == 2
    assert "nonsense" in wrong.err
