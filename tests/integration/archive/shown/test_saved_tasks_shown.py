"""Archived tasks that a host has saved, as commands and the console show them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.gateway import create_gateway
from redis_state.models import TaskStatus
from tests.support.browser.console import Browser, keys_for
from tests.support.commands import Ran, cli
from tests.support.processes.pools import SESSION, queue_of
from tests.support.samples import task as make_task
from tests.support.tasks.archived.archives import archive_all, let_expire
from tests.support.tasks.archived.saved_tasks import save_to_end

pytestmark = pytest.mark.worker


async def left(live: RedisStateStore, archive: Archive) -> None:
    """Have two tasks of a host end, be archived, and expire."""
    await save_to_end(live, "good")
    await save_to_end(live, "bad", TaskStatus.FAILED)
    await archive_all(live, archive)
    await let_expire(live, "good", "bad")


@pytest.mark.exhaustive
async def test_commands_show_archived_tasks_of_a_host(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    await left(live, archive)

    async def run(*arguments: str) -> Ran:
        return await cli(live.settings, *arguments, REDIS_STATE_ARCHIVE_URL=archive_url)

    for option in ("--archived", "--archived-only"):
        found = (await run("find", option, "--json")).document["tasks"]
        assert {(each["task_id"], each["handler"], each["archived"]) for each in found} == {
            ("good", None, True),
            ("bad", None, True),
        }
        (line,) = [one for one in (await run("find", option)).out.splitlines() if "good" in one]
        assert ("COMPLETE archived" in line, " - " in line) == (True, True)
    assert (await run("find", "--archived-only", "--handler", "h", "--json")).document[
        "tasks"
    ] == []
    listed = (await run("archive", "tasks", "--status", "FAILED", "--json")).document
    assert [(each["task_id"], each["handler"]) for each in listed] == [("bad", None)]
    assert " - " in (await run("archive", "tasks", "--status", "FAILED")).out
    shown = (await run("show", SESSION, "good", "--json")).document
    assert (shown["archived"], shown["handler"], shown["result"]) == (True, None, {"of": "good"})
    assert "archived" in (await run("show", SESSION, "good")).out
    whole = (await run("archive", "show", SESSION, "good", "--json")).document
    assert [each["content"] for each in whole["updates"]] == [{"n": 0}, {"n": 1}]
    for command, status, text in (("rerun", 4, "no handler"), ("fork", 4, "no handler")):
        ran = await run(command, SESSION, "good")
        assert (ran.status, text in ran.err) == (status, True)
    assert (await run("history", SESSION, "good")).status == 3


async def test_the_console_shows_archived_tasks_of_a_host(
    live: RedisStateStore, archive: Archive
) -> None:
    await left(live, archive)
    auth, keys = keys_for(ann="admin:*")
    app = create_gateway(live, auth=auth, queue=queue_of(live.settings), console=True)
    ann = Browser(app)
    await ann.log_in(keys["ann"])
    for query in ({}, {"archived": "only"}):
        found = await ann.get("/find", **query)
        assert found.status == 200
        assert all(each in found.text for each in ("good", "bad", "archived"))
    assert "good" not in (await ann.get("/find", archived="no")).text
    page = await ann.get("/task", session=SESSION, task="bad")
    assert (page.status, "archived" in page.text, "PROGRESS" in page.text) == (200, True, True)
    assert not [form for form in page.forms if "/task/retry" in form.action]
    # What is refused is not promised.
    (box,) = [
        named["value"]
        for _, named in found.elements
        if named.get("name") == "chosen" and "bad" in named["value"]
    ]
    for action in ("rerun", "fork"):
        would = await ann.send(found.form("/find/change"), action=action, chosen=box)
        assert (would.status, "no handler" in would.text) == (200, True)
        assert not [form for form in would.forms if form.fields.get("confirmed")]
    refused = await ann.send(page.form("/task/rerun"))
    assert (refused.status, "no handler" in refused.text) == (409, True)
    await app.aclose()


async def test_the_console_shows_times_of_a_host_without_a_zone_and_of_no_year(
    live: RedisStateStore, archive: Archive
) -> None:
    times = {
        "naive": datetime(2026, 3, 1, 12),  # noqa: DTZ001 - naive on purpose
        "never": datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-5))),
    }
    for task, at in times.items():
        state = replace(make_task(task), session_id=SESSION, status=TaskStatus.COMPLETE)
        assert await live.tasks.save(replace(state, created_at=at, updated_at=at))
    await archive_all(live, archive)
    await let_expire(live, *times)
    auth, keys = keys_for(ann="admin:*")
    app = create_gateway(live, auth=auth, queue=queue_of(live.settings), console=True)
    ann = Browser(app)
    await ann.log_in(keys["ann"])
    found = await ann.get("/find", archived="only")
    assert (found.status, "naive" in found.text, "never" in found.text) == (200, True, True)
    pages = {task: await ann.get("/task", session=SESSION, task=task) for task in times}
    assert [page.status for page in pages.values()] == [200, 200]
    assert "2026-03-01 12:00:00 UTC" in pages["naive"].text
    assert "9999-12-31T23:30:00-05:00" in pages["never"].text
    await app.aclose()
