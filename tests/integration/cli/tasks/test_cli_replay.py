"""The commands that hold new code against stored journals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.worker import TaskContext
from tests.processes.workers.replayed_worker import before
from tests.support.commands import begin, cli, end
from tests.support.processes.pools import SESSION, client_of, open_token, pool
from tests.support.tasks.crash_states import send
from tests.support.tasks.runs import make

WORKER = "tests.processes.workers.replayed_worker"


@pytest.fixture
async def waiting(store: RedisStateStore) -> RedisStateStore:
    """Leave three tasks that wait for a decision, in two sessions."""
    async with pool(store, {"order": before, "other": before}) as client:
        for name, handler, session in (
            ("one", "order", SESSION),
            ("two", "other", SESSION),
        ):
            await client.submit(handler, session_id=session, task_id=name)
            await open_token(store, name)
    return store


async def test_code_that_fits_ends_with_0_and_other_code_with_1(
    waiting: RedisStateStore, settings: Settings
) -> None:
    ran = await end(await begin(settings, "replay", f"{WORKER}:SAME"))
    assert (ran.status, ran.out.strip()) == (0, "2 replayed: 2 fit, 0 diverge, 0 undecided")
    ran = await end(await begin(settings, "replay", f"{WORKER}:CHANGED", "--json"))
    assert ran.status == 1
    found = {one["task_id"]: one for one in ran.document["tasks"]}
    assert (found["one"]["verdict"], found["two"]["verdict"]) == ("diverges", "fits")
    assert (found["one"]["called"], found["one"]["recorded"]) == ("step:weigh#1", ["step:pack#1"])
    assert {name: ran.document[name] for name in ("replayed", "fits", "diverges")} == {
        "replayed": 2,
        "fits": 1,
        "diverges": 1,
    }


async def test_a_person_reads_which_call_does_not_fit(
    waiting: RedisStateStore, settings: Settings
) -> None:
    ran = await cli(settings, "replay", f"{WORKER}:CHANGED")
    assert ran.status == 1
    assert "it calls step:weigh#1 where step:pack#1 is recorded" in ran.out
    assert "1 fit, 1 diverge" in ran.out
    assert "two" not in ran.out
    assert "two" in (await cli(settings, "replay", f"{WORKER}:CHANGED", "--every")).out


async def test_tasks_are_chosen(waiting: RedisStateStore, settings: Settings) -> None:
    async def count(*options: str, status: int = 0) -> int:
        ran = await cli(settings, "replay", f"{WORKER}:worker", "--json", *options)
        assert ran.status == status, ran.err
        return int(ran.document["replayed"])

    assert await count() == 2
    assert await count("--handler", "other") == 1
    assert await count("--session", SESSION, "--task", "one") == 1
    assert await count("--session", SESSION, "--status", "COMPLETE") == 0
    assert await count("--session", "another") == 0
    assert await count("--limit", "1", "--at-once", "1") == 1


async def test_a_limit_counts_the_tasks_that_are_chosen(
    waiting: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(waiting, {"order": before}) as client:
        for name in ("three", "four"):
            await client.submit("order", session_id=SESSION, task_id=name)
            await open_token(waiting, name)
    # As if there were more than one page of them.
    monkeypatch.setattr("redis_state.cli.tasks.listing._PAGE", 1)
    monkeypatch.setattr("redis_state.cli.tasks.replay._LIMIT", 1)
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--handler", "other")
    assert [one["task_id"] for one in ran.document["tasks"]] == ["two"]
    assert (ran.status, ran.document["more"]) == (0, False)
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--handler", "order")
    assert [one["task_id"] for one in ran.document["tasks"]] == ["one"]
    assert (ran.status, ran.document["more"]) == (1, True)
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--limit", "4")
    assert [one["task_id"] for one in ran.document["tasks"]] == ["one", "two", "three", "four"]
    chosen = ("--session", SESSION, "--task", "one", "--handler", "other")
    ran = await cli(settings, "replay", f"{WORKER}:SAME", *chosen)
    assert (ran.status, "no task 'one' of handler 'other'" in ran.err) == (3, True)


async def test_a_replay_that_did_not_look_at_everything_does_not_pass(
    waiting: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json")
    assert (ran.status, ran.document["more"], ran.document["unread"]) == (0, False, [])
    monkeypatch.setattr("redis_state.cli.tasks.replay._LIMIT", 1)
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json")
    assert (ran.status, ran.document["more"], ran.document["replayed"]) == (1, True, 1)
    assert "only the first 1 tasks were replayed" in ran.err
    # Who gives a limit wants no more.
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--limit", "1")
    assert (ran.status, ran.document["more"]) == (0, True)
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--limit", "2")
    assert (ran.status, ran.document["more"]) == (0, False)
    journal = waiting.tasks.keys(SESSION, "two").journal
    await send(waiting, "HSET", journal, "step:pack#1", "damaged")
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--json", "--limit", "2")
    assert (ran.status, ran.document["fits"]) == (1, 1)
    [unread] = ran.document["unread"]
    assert (unread["session_id"], unread["task_id"]) == (SESSION, "two")
    ran = await cli(settings, "replay", f"{WORKER}:SAME", "--limit", "2")
    assert (ran.status, "0 undecided, 1 could not be read" in ran.out) == (1, True)


async def test_a_history_is_exported_and_replayed_without_a_server(
    waiting: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "one.json"
    path.write_text("what others could read")
    path.chmod(0o644)
    assert (await cli(settings, "history", SESSION, "one", "-o", str(path))).status == 0
    assert path.stat().st_mode & 0o077 == 0
    printed = await cli(settings, "history", SESSION, "one")
    assert json.loads(printed.out) == json.loads(path.read_text())
    nowhere = settings.model_copy(update={"url": type(settings.url)("redis://localhost:1/0")})
    for code, status in (("SAME", 0), ("CHANGED", 1)):
        ran = await cli(nowhere, "replay", f"{WORKER}:{code}", "--history", str(path))
        assert ran.status == status, ran.err


@pytest.mark.parametrize(
    ("arguments", "status", "stated"),
    [
        (["replay", "nowhere"], 2, "is not of the form MODULE:HANDLERS"),
        (["replay", "nowhere:HANDLERS"], 2, "cannot be loaded"),
        (["replay", f"{WORKER}:before"], 2, "is neither an AgentWorker nor a mapping"),
        (["replay", f"{WORKER}:NOTHING"], 2, "is neither an AgentWorker nor a mapping"),
        (["replay", f"{WORKER}:SAME", "--task", "t"], 2, "--task needs --session"),
        (["replay", f"{WORKER}:SAME", "--status", "failed"], 2, "--status needs --session"),
        (["replay", f"{WORKER}:SAME", "--history", "none.json"], 2, "path: cannot be read"),
        (["replay", f"{WORKER}:SAME", "-s", "s", "--task", "none"], 3, "has no task 'none'"),
        (["history", "s", "none"], 3, "has no task 'none'"),
    ],
)
async def test_a_wrong_call_is_named(
    settings: Settings, arguments: list[str], status: int, stated: str
) -> None:
    ran = await cli(settings, *arguments)
    assert ran.status == status
    assert stated in ran.out + ran.err


async def test_a_file_that_cannot_be_written_is_named(
    store: RedisStateStore, settings: Settings
) -> None:
    await make(store)
    printed = await cli(settings, "history", SESSION, "t")
    assert await cli(settings, "history", SESSION, "t", "-o", "-") == printed
    ran = await cli(settings, "history", SESSION, "t", "-o", "/nonexistent/file")
    assert (ran.status, "/nonexistent/file cannot be written: No such file" in ran.err) == (2, True)


async def test_many_tasks_are_replayed_a_few_at_a_time(
    store: RedisStateStore, settings: Settings
) -> None:
    async def waits(ctx: TaskContext) -> None:
        await ctx.step("pack", str)
        await ctx.pause()

    async with pool(store, {"order": waits}) as client:
        for number in range(40):
            await client.submit("order", session_id=SESSION, task_id=f"{number}")
        for number in range(40):
            await open_token(store, f"{number}")
    async with client_of(store):
        ran = await cli(settings, "replay", f"{WORKER}:SAME", "--at-once", "4", "--json")
    assert (ran.status, ran.document["fits"]) == (0, 40)
