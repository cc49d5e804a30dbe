"""The commands that find tasks and begin them again, against a worker in a process of its own."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.cli.output import print_line
from redis_state.cli.tasks.filters import filters
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import FoundPage, TaskClient
from redis_state.worker.tasks.operate import bulk
from redis_state.worker.tasks.views.finding import find_tasks
from tests.support.commands import begin, cli, end
from tests.support.processes.pools import SESSION, becomes, client_of, queue_of
from tests.support.processes.worker_processes import worker_process
from tests.support.scripts.replies import clock_ms
from tests.support.servers.sets.nodes import subscribers


@pytest.fixture
async def served(settings: Settings, store: RedisStateStore) -> AsyncIterator[TaskClient]:
    """Give a client of a live pool."""
    async with (
        worker_process(settings, "w1", program="family_worker"),
        client_of(store) as client,
    ):
        yield client


async def ids(settings: Settings, *options: str) -> list[str]:
    found = (await cli(settings, "find", "--json", *options)).document
    return [one["task_id"] for one in found["tasks"]]


async def test_a_task_of_a_busy_session_is_refused_and_replaced(settings: Settings) -> None:
    busy = ("submit", "h", "-s", SESSION, "--queue", "nobodys")
    assert (await cli(settings, *busy, "--in-turn", "--id", "a")).out == "a\n"
    refused = await cli(settings, *busy, "--on-busy", "reject", "--id", "b")
    assert (refused.status, refused.out) == (4, "")
    assert "task 'a'" in refused.err
    assert (await cli(settings, *busy, "--on-busy", "replace", "--id", "c")).out == "c\n"
    assert await ids(settings, "--status", "cancelled") == ["a"]
    assert (await cli(settings, *busy, "--on-busy", "wait")).status == 2


async def test_a_task_is_submitted_for_later_and_under_a_limits_key(
    settings: Settings, store: RedisStateStore
) -> None:
    later = ("submit", "h", "-s", SESSION, "--queue", "nobodys")
    assert (await cli(settings, *later, "--delay", "6h", "--id", "a")).out == "a\n"
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(second=0, microsecond=0)
    at = ("--at", f"{tomorrow:%Y-%m-%dT%H:%M}", "--limit-key", "acme", "--id", "b")
    assert (await cli(settings, *later, *at)).out == "b\n"
    waits = [await store.tasks.look(SESSION, name) for name in ("a", "b")]
    due_ms = [0 if view is None else view.due_ms for view in waits]
    assert due_ms[1] == tomorrow.timestamp() * 1000
    six_hours = timedelta(hours=6) / timedelta(milliseconds=1)
    assert abs(due_ms[0] - await clock_ms(store.base.scripts) - six_hours) < 60_000
    assert waits[1] is not None
    assert waits[1].key == "k:acme"
    for wrong in (("--delay", "soon"), ("--at", "noon"), ("--delay", "6h", *at[:2])):
        assert (await cli(settings, *later, *wrong)).status == 2


async def test_an_id_that_another_task_has_is_refused(settings: Settings) -> None:
    here = ("-s", SESSION, "--queue", "nobodys", "--id")
    made = {
        "a": ("submit", "h", "1", *here, "a"),
        "b": ("submit", "h", "1", *here, "b"),
        "r": ("rerun", SESSION, "a", "--id", "r"),
        "f": ("fork", SESSION, "a", "--id", "f"),
    }
    for _ in range(2):
        for task, command in made.items():
            assert (await cli(settings, *command)).out == f"{task}\n"
    for wrong in (
        ("submit", "h", "2", *here, "a"),
        ("submit", "other", "1", *here, "a"),
        ("rerun", SESSION, "b", "--id", "r"),
        ("rerun", SESSION, "a", "--id", "b"),
        ("fork", SESSION, "b", "--id", "f"),
        ("fork", SESSION, "a", "--id", "r"),
    ):
        refused = await cli(settings, *wrong)
        assert (refused.status, refused.out) == (4, "")
        assert "was used before" in refused.err


def test_a_time_without_an_offset_is_utc_wherever_the_machine_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    chosen = dict.fromkeys(("session", "status", "handler", "attribute"))
    ends: dict[str, Any] = {
        "ended_since": "2026-11-27T09:00",
        "ended_until": "2026-11-27T08:00+01:00",
    }
    try:
        found = filters(since="2026-11-27T10:00", until="2026-11-27T12:00+01:00", **ends, **chosen)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.get("created_after") == datetime(2026, 11, 27, 10, tzinfo=UTC)
    assert found.get("created_before") == datetime(2026, 11, 27, 11, tzinfo=UTC)
    assert found.get("ended_after") == datetime(2026, 11, 27, 9, tzinfo=UTC)
    assert found.get("ended_before") == datetime(2026, 11, 27, 7, tzinfo=UTC)


async def test_tasks_are_found_counted_and_retried_by_the_times_of_their_ends(
    served: TaskClient, settings: Settings
) -> None:
    # Made in this order, and ended in the other one.
    for task in ("late", "early"):
        await served.submit("fail", session_id=SESSION, task_id=task, delay=timedelta(days=1))
    waits = await served.submit("fail", session_id=SESSION, delay=timedelta(days=1))
    for task in ("early", "late"):
        await served.cancel(SESSION, task)
    assert await ids(settings) == [waits, "early", "late"]
    assert await ids(settings, "--ended-since", "2h") == ["late", "early"]
    assert await ids(settings, "--ended-since", "2h", "--oldest-first") == ["early", "late"]
    assert await ids(settings, "--ended-until", "2h") == []
    both = ("--ended-since", "1h", "--since", "1h", "--status", "cancelled", "--status", "pending")
    page = await cli(settings, "find", *both, "--limit", "1")
    assert ("ended" in page.out, "made" in page.out, "late" in page.out) == (True, False, True)
    cursor = page.out.rpartition("--after ")[2].strip()
    found = await served.find(ended_after=datetime(2001, 1, 1, tzinfo=UTC), limit=1)
    until = ("--ended-until", found.tasks[0].updated_at.isoformat())
    assert await ids(settings, *until) == ["early"]
    assert (await cli(settings, "find", *until, "--after", cursor)).status == 2
    counts = (await cli(settings, "find", "--count", "--ended-since", "2h", "--json")).document
    assert (counts["CANCELLED"], counts["PENDING"]) == (2, 0)
    dry = await cli(settings, "retry", *until)
    assert (dry.status, dry.out.count("would retry"), "early" in dry.out) == (0, 1, True)
    assert (await cli(settings, "retry", "--ended-until", "2h")).out == "no task matches\n"
    assert (await cli(settings, "retry", *until, "--yes")).status == 0
    assert await ids(settings, "--status", "cancelled", "--ended-since", "2h") == ["late"]


async def test_a_task_is_submitted_found_and_run_again(
    served: TaskClient, settings: Settings
) -> None:
    queue = ("--queue", queue_of(settings))
    made = await end(
        await begin(
            settings,
            "submit",
            "square",
            "7",
            "-s",
            SESSION,
            "-a",
            "tenant=acme",
            "-a",
            "n=5",
            "--id",
            "t",
            "--wait",
            *queue,
        )
    )
    assert (made.status, made.out) == (0, "49\n")
    again = await cli(settings, "submit", "square", "7", "-s", SESSION, "--id", "t", *queue)
    assert again.out == "t\n"
    failed = (await cli(settings, "submit", "fail", "-s", "o\x07dd", *queue)).out.strip()

    async def ended() -> bool:
        return await served.store.tasks.load("o\x07dd", failed) is not None and bool(
            await ids(settings, "--status", "failed")
        )

    await eventually(ended, "the other one has failed")
    assert await ids(settings) == [failed, "t"]
    assert await ids(settings, "--oldest-first", "--limit", "1") == ["t"]
    assert await ids(settings, "-a", "tenant=acme", "-a", "n=5", "--handler", "square") == ["t"]
    assert await ids(settings, "-a", 'n="5"') == []
    assert await ids(settings, "--session", SESSION, "--since", "2h") == ["t"]
    assert await ids(settings, "--until", "2h") == []
    assert await ids(settings, "--until", "0001-01-01") == []
    assert await ids(settings, "--since", "2020-01-01") == [failed, "t"]
    page = await cli(settings, "find", "--limit", "1")
    assert failed in page.out
    assert "\x07" not in page.out
    cursor = page.out.rpartition("--after ")[2].strip()
    assert await ids(settings, "--after", cursor) == ["t"]
    counts = (await cli(settings, "find", "--count", "--json")).document
    assert (counts["COMPLETE"], counts["FAILED"]) == (1, 1)
    assert "COMPLETE" in (await cli(settings, "find", "--count", "--handler", "square")).out
    listed = (await cli(settings, "sessions", "--json")).document["sessions"]
    assert [one["session_id"] for one in listed] == ["o\x07dd", SESSION]
    assert SESSION in (await cli(settings, "sessions")).out
    document = (await cli(settings, "rerun", SESSION, "t", "--json")).document
    assert await served.result(SESSION, document["task_id"]) == 49
    shown = (await cli(settings, "show", SESSION, document["task_id"], "--json")).document
    assert shown["rerun_of"] == {"session_id": SESSION, "task_id": "t"}
    assert shown["attributes"] == {"tenant": "acme", "n": 5}


def test_what_an_output_cannot_write_is_printed_as_an_escape(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_line("half \udcff of a pair")
    assert capsys.readouterr().out == "half \\udcff of a pair\n"


async def test_one_task_is_reopened_or_forked_and_all_that_match_after_a_dry_run(
    served: TaskClient, settings: Settings
) -> None:
    made = [await served.submit("fail", session_id=SESSION) for _ in range(3)]
    for task in made:
        await becomes(served, task, TaskStatus.FAILED)
    done = await cli(settings, "retry", SESSION, made[0], "--idempotency-key", "k")
    assert (done.status, done.out.split(";")[0]) == (0, "reopened")
    await _failed_again(served, made[0], 1)
    dry = await cli(settings, "retry", "--status", "failed")
    assert dry.out.count("would retry") == 3
    assert "--yes" in dry.out
    for arguments in (("--dry-run",), ("--dry-run", "--yes")):
        asked = await cli(settings, "retry", "--status", "failed", *arguments)
        assert (asked.out.count("would retry"), "--yes" in asked.out) == (3, False)
    report = (
        await end(await begin(settings, "retry", "--handler", "fail", "--yes", "--json"))
    ).document
    assert (report["dry_run"], report["counts"]["done"], report["more"]) == (False, 3, False)
    for task, retries in zip(made, (2, 1, 1), strict=True):
        await _failed_again(served, task, retries)
    summed = await served.submit("total", [1, 2], session_id=SESSION)
    await served.result(SESSION, summed)
    shown = await cli(settings, "show", SESSION, summed)
    assert "join square##1#1" in shown.out
    assert " s" in shown.out
    forked = await cli(settings, "fork", SESSION, summed, "--before", "join square#2")
    assert await served.result(SESSION, forked.out.strip()) == 5
    steps = (await cli(settings, "show", SESSION, forked.out.strip(), "--json")).document["steps"]
    assert {step["attempts"] for step in steps} == {1}
    refused = await cli(settings, "fork", "--handler", "square", "--before", "none", "--yes")
    # Two children of the first one, one of the fork; and the sum.
    assert (refused.status, refused.out.count("refused")) == (1, 4)


@pytest.mark.parametrize("as_json", [True, False])
async def test_what_was_changed_before_a_failure_is_reported(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    pages = itertools.count(1)

    async def find(*arguments: Any, **options: Any) -> FoundPage:
        if next(pages) == 2:
            raise BackendUnavailable("the server", "it went away")
        return await find_tasks(*arguments, **options)

    async with client_of(store) as client:
        made = [await client.submit("h", session_id=SESSION) for _ in range(3)]
        monkeypatch.setattr(bulk, "_PAGE", 2)
        monkeypatch.setattr(bulk, "find_tasks", find)
        ran = await cli(settings, "rerun", "--handler", "h", "--yes", *["--json"] * as_json)
        assert (ran.status, next(pages)) == (5, 3)
        copies = {task.task_id for task in await store.list_tasks(SESSION)} - {*made}
    assert "it went away" in ran.err
    if as_json:
        assert (ran.document["more"], ran.document["counts"]["done"]) == (True, 2)
        assert {item["new_task_id"] for item in ran.document["items"]} == copies
    else:
        assert [line.split()[0] for line in ran.out.splitlines()] == ["done", "done"]


async def test_who_interrupts_a_wait_learns_the_task(
    store: RedisStateStore, settings: Settings
) -> None:
    waiting = await begin(settings, "submit", "h", "--wait", "-s", SESSION, "--queue", "nobodys")

    async def submitted() -> str | None:
        return next((task.task_id for task in await store.list_tasks(SESSION)), None)

    task = await eventually(submitted, "the task is submitted")
    # It is known here before the command has its reply.
    channel = store.base.keys.updates(SESSION).channel

    async def watched() -> bool:
        return sum(await subscribers(store.transport, channel)) > 0

    await eventually(watched, "the command waits for the result")
    waiting.send_signal(signal.SIGINT)
    ran = await end(waiting)
    assert (ran.status, ran.out) == (130, "")
    assert f"submitted as task {task!r} of session {SESSION!r}" in ran.err


async def _failed_again(client: TaskClient, task: str, retries: int) -> None:
    async def found() -> bool:
        view = await client.inspect(SESSION, task)
        assert view is not None
        return view.retries == retries and view.state.status is TaskStatus.FAILED

    await eventually(found, f"{task} has failed again")


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (3, ("retry", "s", "none")),
        (3, ("rerun", "s", "none")),
        (3, ("fork", "s", "none")),
        (2, ("retry",)),
        (2, ("retry", "s")),
        (2, ("retry", "s", "t", "--yes")),
        (2, ("retry", "s", "t", "--dry-run")),
        (2, ("retry", "s", "t", "--status", "FAILED")),
        (2, ("retry", "--status", "COMPLETE")),
        (2, ("find", "-a", "tenant")),
        (2, ("find", "-a", "a b=c")),
        (2, ("find", "--since", "yesterday")),
        (2, ("find", "--since", "999999d")),
        (2, ("find", "--until", "0000-01-01")),
        (2, ("find", "--ended-since", "yesterday")),
        (2, ("find", "--ended-until", "1h", "--status", "RUNNING")),
        (2, ("find", "--count", "--ended-since", "1h", "--handler", "h")),
        (2, ("rerun", "s", "t", "--ended-since", "1h")),
        (2, ("find", "--after", "x")),
        (2, ("find", "--count", "--status", "FAILED")),
        (2, ("find", "--count", "--handler", "h", "-s", "s")),
        (2, ("sessions", "--after", "x")),
        (2, ("submit", "h", "{")),
        (2, ("submit", "h", "[" * 100_000)),
        (2, ("submit", "")),
    ],
)
async def test_wrong_calls_have_a_status_and_a_reason(
    settings: Settings, status: int, arguments: tuple[str, ...]
) -> None:
    ran = await cli(settings, *arguments)
    assert ran.status == status, ran.err
    assert "redis-state:" in ran.err
    assert "Traceback" not in ran.err


async def test_a_task_that_cannot_be_reopened_has_its_status(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client:
        task = await client.submit("h", session_id=SESSION)
        for verb, status in (("retry", 4), ("rerun", 0)):
            assert (await cli(settings, verb, SESSION, task)).status == status
        for options in ((), ("--yes",)):
            empty = await cli(settings, "retry", "--status", "FAILED", *options)
            assert (empty.status, empty.out) == (0, "no task matches\n")
