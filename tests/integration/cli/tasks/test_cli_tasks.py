"""The commands for tasks, against a worker in a process of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.cli.output import form_lines
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import OpenPause, TaskClient
from redis_state.worker.tasks.dead_letters import record_dead
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.commands import Ran, begin, cli, end
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, updates_of
from tests.support.processes.worker_processes import worker_process
from tests.support.tasks.crash_states import given_up
from tests.support.tasks.runs import make, take


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as made:
        yield made


@pytest.fixture
async def served(settings: Settings, client: TaskClient) -> AsyncIterator[TaskClient]:
    """Give a client of a live pool."""
    async with worker_process(settings, "w1", program="family_worker"):
        yield client


async def ask(client: TaskClient, session: str = SESSION) -> tuple[str, str]:
    """Have a task that waits for an approval; return its id and its token."""
    task = await client.submit("ask", session_id=session)
    return task, await open_token(client.store, task)


def stated(ran: Ran, status: int, text: str = "") -> None:
    assert ran.status == status, ran.err
    assert text in ran.out + ran.err


async def test_tasks_are_listed_of_all_sessions_or_of_one(
    served: TaskClient, settings: Settings
) -> None:
    asking, _ = await ask(served)
    failed = await served.submit("fail", session_id=SESSION, description="one that fails")
    other = await served.submit("endless", 0, session_id="another")
    await becomes(served, failed, TaskStatus.FAILED)
    listed = (await end(await begin(settings, "tasks", "--json"))).document
    assert {one["task_id"] for one in listed} == {asking, other}
    listed = (await cli(settings, "tasks", "--json", "--session", SESSION)).document
    assert [one["task_id"] for one in listed] == [asking, failed]
    listed = (await cli(settings, "tasks", "-s", SESSION, "--status", "failed", "--json")).document
    assert [(one["task_id"], one["error"]) for one in listed] == [(failed, "ValueError: no luck")]
    ran = await cli(settings, "tasks", "-s", SESSION, COLUMNS="40")
    for text in (asking, failed, "PAUSED", "FAILED", "one that fails", "ValueError: no luck"):
        assert text in ran.out
    assert len((await cli(settings, "tasks", "--json", "--limit", "1")).document) == 1
    stated(await cli(settings, "tasks", "-s", "none"), 0, "No tasks.")
    exclusive = await cli(settings, "tasks", "--dead", "--paused")
    stated(exclusive, 2, "--dead, --paused and --unserved: one of them")
    await served.cancel("another", other, hard=True)


@pytest.mark.parametrize("choice", [(), ("-s", SESSION)])
async def test_a_list_that_is_cut_off_says_so(
    client: TaskClient, settings: Settings, choice: tuple[str, ...]
) -> None:
    for _ in range(3):
        await client.submit("ask", session_id=SESSION)
    for limit, more in ((2, "there are more than 2: --limit lists more"), (3, "")):
        ran = await cli(settings, "tasks", *choice, "--limit", str(limit), "--json")
        assert len(ran.document) == limit
        assert more in ran.err if more else not ran.err


async def test_dead_tasks_are_listed(client: TaskClient, settings: Settings) -> None:
    store = client.store
    await make(store)
    for _ in range(3):
        await take(store)
    started = await take(store)
    await record_dead(store, SESSION, "t")
    await TaskTransitions(store).dead_letter(SESSION, "t", died=4)
    stated(await cli(settings, "tasks", "--dead", "--json"), 0, "[]")
    lease = store.base.keys.lease(SESSION, "t")
    await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
    assert started.attempts == 4
    assert await TaskTransitions(store).dead_letter(SESSION, "t", died=4)
    (dead,) = (await cli(settings, "tasks", "--dead", "--json", "-s", SESSION)).document
    assert "4 workers in a row died" in dead["error"]
    stated(await cli(settings, "tasks", "--dead", "-s", "another"), 0, "No tasks.")


async def test_dead_tasks_are_all_listed_page_by_page(
    client: TaskClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.cli.tasks.listing._PAGE", 2)
    dead = [await given_up(client.store) for _ in range(5)]
    listed = (await cli(settings, "tasks", "--dead", "--json", "-s", SESSION)).document
    assert [each["task_id"] for each in listed] == dead[::-1]
    (first,) = (await cli(settings, "tasks", "--dead", "--json", "--limit", "1")).document
    assert first["task_id"] == dead[-1]


async def test_filters_choose_among_all_tasks_and_not_among_the_first(
    client: TaskClient, settings: Settings
) -> None:
    store = client.store
    for task in ("first", "second", "third"):
        await make(store, task)
    due = [one.task_id for one in await client.unfinished()]
    await take(store, due[-1])
    (running,) = (
        await cli(settings, "tasks", "--status", "RUNNING", "--limit", "1", "--json")
    ).document
    assert running["task_id"] == due[-1]
    for ended in (("--status", "FAILED"), ("--status", "RUNNING", "--status", "cancelled")):
        stated(await cli(settings, "tasks", *ended), 2, "redis-state find --status")
    for other in ("--paused", "--unserved"):
        stated(await cli(settings, "tasks", other, "--status", "RUNNING"), 2, "--status: not with")
    stated(await cli(settings, "tasks", "--dead", "--status", "FAILED"), 0, "No tasks.")


async def test_a_pause_is_found_and_approved_by_its_id(
    served: TaskClient, settings: Settings
) -> None:
    task, token = await ask(served)
    (pause,) = (await cli(settings, "tasks", "--paused", "--json")).document
    assert (pause["task_id"], pause["pause_id"], pause["tags"]) == (task, token, ["test"])
    ran = await cli(settings, "tasks", "--paused", COLUMNS="40")
    stated(ran, 0, token)
    stated(await cli(settings, "show", SESSION, task), 0, token)
    how = ("--actor", "ann", "--value", '{"n": 1}', "--json")
    ran = await end(await begin(settings, "approve", token, *how))
    assert ran.document["task_id"] == task
    assert await served.result(SESSION, task, timeout_s=60) is True
    ran = await cli(settings, "reject", token)
    stated(ran, 4, "by 'ann'")
    assert token not in ran.out + ran.err
    stated(await cli(settings, "approve", f"{SESSION}.nothing"), 3, "token")
    stated(await cli(settings, "tasks", "--paused"), 0, "No open pauses.")


async def test_a_pause_is_found_by_its_task(served: TaskClient, settings: Settings) -> None:
    task, _ = await ask(served)
    stated(await cli(settings, "approve", SESSION, "none"), 3, "no task 'none'")
    stated(await cli(settings, "approve", SESSION, task, "--pause", "x"), 3, "no such open pause")
    for text in ("yes", "NaN", '{"n": -Infinity}'):
        ran = await cli(settings, "approve", SESSION, task, "--value", text)
        stated(ran, 2, "is not JSON")
    stated(await cli(settings, "reject", SESSION, task), 0, "rejected")
    assert await served.result(SESSION, task, timeout_s=60) is False
    stated(await cli(settings, "reject", SESSION, task), 3, "no such open pause")


async def test_a_form_is_shown_and_two_of_three_fill_it_in(
    served: TaskClient, settings: Settings
) -> None:
    task = await served.submit("refund", session_id=SESSION)
    token = await open_token(served.store, task)
    (pause,) = (await cli(settings, "tasks", "--paused", "--json")).document
    assert pause["schema"]["required"] == ["limit"]
    assert (pause["approvals"], pause["rejections"]) == (2, None)
    assert [one["state"] for one in pause["deciders"]] == ["open"] * 3
    listed = await cli(settings, "tasks", "--paused", "--for", "ann", COLUMNS="40")
    stated(listed, 0, "2 of ann: open, ben: open, cid: open")
    assert "limit (required)" in listed.out
    stated(await cli(settings, "tasks", "--paused", "--for", "eve"), 0, "No open pauses.")
    stated(await cli(settings, "tasks", "--for", "eve"), 2, "--for needs --paused")
    wrong = await cli(settings, "approve", token, "--actor", "ann", "--value", '{"limit": 77}')
    stated(wrong, 2, "$.limit: maximum 9")
    assert 'the form has limit (required): {"type": "integer", "maximum": 9}' in wrong.err
    assert "77" not in wrong.out + wrong.err
    stated(await cli(settings, "approve", token, "--actor", "ann"), 2, "$: type object")
    value = ("--value", '{"limit": 3}')
    ran = await cli(settings, "approve", token, "--actor", "ann", *value)
    stated(
        ran, 0, "approved, one vote (2 of ann: approved, ben: open, cid: open); the task is PAUSED"
    )
    stated(await cli(settings, "reject", token, "--actor", "ann"), 4, "a vote stands")
    stated(await cli(settings, "approve", token, "--actor", "eve", *value), 4, "others are named")
    ran = await cli(settings, "delegate", token, "--to", "dan", "--actor", "ben")
    stated(ran, 0, "delegated to dan")
    ran = await cli(settings, "delegate", SESSION, task, "--to", "dan", "--actor", "ben", "--json")
    states = {one["name"]: (one["state"], one["delegated_to"]) for one in ran.document["deciders"]}
    assert states["ben"] == ("delegated", "dan")
    stated(await cli(settings, "delegate", token, "--to", "ann", "--actor", "cid"), 4, "has voted")
    shown = await cli(settings, "show", SESSION, task)
    stated(shown, 0, "decider       ben  delegated to dan")
    ran = await end(await begin(settings, "approve", token, "--actor", "dan", *value))
    stated(ran, 0, "approved; the task is")
    assert await served.result(SESSION, task, timeout_s=60) == [{"limit": 3}, ["ann", "dan"]]
    stated(await cli(settings, "delegate", token, "--to", "eve", "--actor", "cid"), 4, "dan")


def test_a_form_without_fields_is_shown_as_it_is() -> None:
    now = datetime.now(UTC)
    options: dict[str, Any] = {"payload": None, "tags": (), "on_timeout": "fail", "default": None}
    pause = OpenPause("s", "t", "n", "r", opened_at=now, expires_at=now, token=None, **options)
    assert form_lines(pause) == []
    assert form_lines(replace(pause, schema={"type": "integer"})) == ['value: {"type": "integer"}']
    named = replace(pause, schema={"properties": {"a\x1b": True}})
    assert form_lines(named) == ["a\N{REPLACEMENT CHARACTER}: true"]


@pytest.mark.slow
async def test_of_several_decisions_at_once_one_wins(
    served: TaskClient, settings: Settings
) -> None:
    _, token = await ask(served)
    commands = [
        await begin(settings, "approve" if number % 2 else "reject", token, "--actor", f"p{number}")
        for number in range(4)
    ]
    ended = await asyncio.gather(*map(end, commands))
    assert sorted(one.status for one in ended) == [0] + [4] * 3
    winner = next(number for number, one in enumerate(ended) if one.status == 0)
    assert all(f"p{winner}" in one.err for one in ended if one.status == 4)


async def test_a_task_is_cancelled_with_what_it_has_spawned(
    served: TaskClient, settings: Settings
) -> None:
    task = await served.submit("endless", 1, session_id=SESSION)

    async def both_run() -> bool:
        states = await served.store.list_tasks(SESSION)
        return [one.status.value for one in states] == ["RUNNING"] * 2

    await eventually(both_run, "parent and child run")
    ran = await cli(settings, "tree", SESSION, "--json")
    (root,) = ran.document
    (child,) = root["children"]
    assert (root["task_id"], child["parent"]) == (task, task)
    ran = await cli(settings, "tree", SESSION, task)
    stated(ran, 0, child["task_id"])
    assert ran.out.index(task) < ran.out.index(child["task_id"])
    ran = await end(await begin(settings, "cancel", SESSION, task, "--reason", "enough"))
    stated(ran, 0, "told to cancel")
    await becomes(served, task, TaskStatus.CANCELLED)
    await becomes(served, child["task_id"], TaskStatus.CANCELLED)
    stated(await cli(settings, "cancel", SESSION, task), 4, "the task is CANCELLED")
    stated(await cli(settings, "cancel", SESSION, "none"), 3, "no task 'none'")
    stated(await cli(settings, "tree", "none"), 3, "no tasks")
    stated(await cli(settings, "tree", SESSION, "none"), 3)
    found = (await cli(settings, "show", SESSION, task, "--json")).document
    assert (found["status"], found["error"], found["handler"]) == ("CANCELLED", "enough", "endless")
    assert [one["task_id"] for one in found["children"]] == [child["task_id"]]
    stated(await cli(settings, "show", SESSION, "none"), 3)


async def test_a_task_is_steered(client: TaskClient, settings: Settings) -> None:
    task = await client.submit("ask", session_id=SESSION, priority=1)
    steer = ("steer", SESSION, task)
    stated(await cli(settings, *steer, "redirect", "shorter", "--id", "e1"), 0, "told to REDIRECT")
    stated(await cli(settings, *steer, "redirect", "shorter", "--id", "e1"), 0)
    ran = await cli(settings, *steer, "PRIORITIZE", "7", "--json")
    assert ran.document["priority"] == 7
    note = '{"text": "x", "severity": "note"}'
    stated(await cli(settings, *steer, "inject_context", "--payload", note), 0)
    kinds = [event.event_type for event in await client.store.list_steering(SESSION, task_id=task)]
    assert kinds == [
        SteeringEventType.REDIRECT,
        SteeringEventType.PRIORITIZE,
        SteeringEventType.INJECT_CONTEXT,
    ]
    for wrong, text in (
        (("dance",), "dance"),
        (("prioritize", "soon"), "whole number"),
        (("redirect",), "needs a non-empty"),
        (("redirect", "a", "--payload", "{}"), "one of the two"),
        (("redirect", "--payload", "[]"), "JSON object"),
        (("redirect", "--payload", "{"), "is not JSON"),
        (("approve", "yes"), "takes no TEXT"),
    ):
        stated(await cli(settings, *steer, *wrong), 2, text)
    stated(await cli(settings, "steer", SESSION, "none", "pause"), 3)
    stated(await cli(settings, *steer, "cancel", "enough"), 0, "CANCELLED")
    stated(await cli(settings, *steer, "pause"), 4, "CANCELLED")


async def test_tail_follows_a_task_to_its_end_and_tells_how_it_ended(
    served: TaskClient, settings: Settings
) -> None:
    task, token = await ask(served)
    tailing = await begin(settings, "tail", SESSION, task, "--json")
    assert tailing.stdout is not None
    first = await asyncio.wait_for(tailing.stdout.readline(), 60)
    assert b"PENDING" in first
    await served.approve(token)
    ran = await end(tailing)
    assert ran.status == 0
    reported = [one["content"] for one in ran.lines if one["type"] == "STATUS_CHANGE"]
    assert [one["status"] for one in reported] == [
        "RUNNING",
        "PAUSED",
        "PENDING",
        "RUNNING",
        "COMPLETE",
    ]
    assert len(ran.lines) + 1 == len(await updates_of(served.store, task))
    cursor = ran.lines[-2]["cursor"]
    ran = await cli(settings, "tail", SESSION, task, "--json", "--after", cursor)
    assert [one["content"]["status"] for one in ran.lines] == ["COMPLETE"]
    failed = await served.submit("fail", session_id=SESSION)
    stated(await cli(settings, "tail", SESSION, failed), 1, "no luck")
    stated(await cli(settings, "tail", SESSION, failed, "--no-follow"), 0, "no luck")
    stated(await cli(settings, "tail", SESSION, "none"), 3)


async def test_tail_of_a_session_goes_on_until_it_is_interrupted(
    served: TaskClient, settings: Settings
) -> None:
    task, _ = await ask(served)
    tailing = await begin(settings, "tail", SESSION)
    assert tailing.stdout is not None
    assert task.encode() in await asyncio.wait_for(tailing.stdout.readline(), 60)
    tailing.send_signal(signal.SIGINT)
    ran = await end(tailing)
    stated(ran, 130, "interrupted")
    ran = await cli(settings, "tail", SESSION, "--no-follow", "--json")
    assert len(ran.lines) == len(await updates_of(served.store, task))


async def test_tail_of_a_session_without_updates_says_that_it_waits(
    client: TaskClient, settings: Settings
) -> None:
    tailing = await begin(settings, "tail", "misspelt")
    assert tailing.stderr is not None
    said = await asyncio.wait_for(tailing.stderr.readline(), 60)
    assert b"session 'misspelt' has no updates: waiting for the first" in said
    tailing.send_signal(signal.SIGINT)
    stated(await end(tailing), 130)
    ran = await cli(settings, "tail", "misspelt", "--no-follow")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


async def test_workers_are_listed_with_what_they_run(
    served: TaskClient, settings: Settings
) -> None:
    async def listed() -> list[Any]:
        return (await cli(settings, "workers", "--json")).document  # type: ignore[no-any-return]

    (info,) = await eventually(listed, "the worker is listed")
    assert (info["name"], info["max_tasks"], info["running"]) == ("w1", 10, [])
    assert "endless" in info["handlers"]
    stated(await cli(settings, "workers"), 0, "w1")
    stated(await cli(settings, "workers", "--here"), 0, "w1")


async def test_without_workers_the_list_says_so(settings: Settings) -> None:
    stated(await cli(settings, "workers"), 0, "No worker")
    stated(await cli(settings, "workers", "--json"), 0, "[]")
    stated(await cli(settings, "workers", "--here"), 3, "no worker on")


@pytest.mark.parametrize(
    "command", ["tasks", "show", "tree", "cancel", "tail", "workers", "approve"]
)
async def test_a_server_that_is_away_is_status_5(
    settings: Settings, unused_tcp_port: int, command: str
) -> None:
    positional = {"tasks": 0, "workers": 0, "tree": 1, "approve": 1}.get(command, 2)
    url = f"redis://:s3cret@127.0.0.1:{unused_tcp_port}/0"
    names = ["s.x"] * positional
    ran = await cli(settings, command, *names, "--url", url, REDIS_STATE_CALL_TIMEOUT_S="0.3")
    stated(ran, 5, str(unused_tcp_port))
    assert "s3cret" not in ran.out + ran.err


async def test_tail_of_a_session_tells_of_a_server_that_is_away(
    settings: Settings, unused_tcp_port: int
) -> None:
    url = f"redis://127.0.0.1:{unused_tcp_port}/0"
    ran = await cli(settings, "tail", "s", "--url", url, REDIS_STATE_CALL_TIMEOUT_S="0.3")
    stated(ran, 5, str(unused_tcp_port))


async def test_what_a_terminal_would_obey_is_not_printed(
    client: TaskClient, settings: Settings
) -> None:
    evil = "a\x1b[31mb"
    task = await client.submit("h", session_id=evil, description=evil, task_id=evil)
    for arguments in (("tasks",), ("tasks", "-s", evil), ("tree", evil), ("show", evil, task)):
        ran = await cli(settings, *arguments)
        assert ran.status == 0
        assert "\x1b" not in ran.out
    stated(await cli(settings, "show", evil, "\x1b"), 3)
    assert "\x1b" not in (await cli(settings, "tail", evil, task, "--no-follow")).out


@pytest.mark.parametrize(
    "command", ["tasks", "show", "tree", "tail", "workers", "cancel", "steer", "approve", "reject"]
)
async def test_every_command_explains_itself(settings: Settings, command: str) -> None:
    ran = await cli(settings, command, "--help")
    assert ran.status == 0
    assert "--json" in ran.out


async def test_a_url_beside_the_queue_of_another_servers_tasks_is_refused(
    settings: Settings,
) -> None:
    beside: dict[str, Any] = {"REDIS_STATE_QUEUE_URL": "redis://127.0.0.1:1"}
    ran = await cli(settings, "submit", "h", "--url", "redis://127.0.0.1:2", **beside)
    assert (ran.status, ran.out) == (2, "")
    assert "REDIS_STATE_QUEUE_URL has the queue of that one" in ran.err
    assert "127.0.0.1" not in ran.err
    # That of the environment is no other server.
    url = settings.url.get_secret_value()
    assert (await cli(settings, "show", "s", "t", "--url", url, **beside)).status == 3
