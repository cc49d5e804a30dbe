"""The page of one task: what is sent again while it runs, what it costs, which rows it shows."""

from __future__ import annotations

import asyncio
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.console.views import history, task
from redis_state.gateway.console.views.history import ShownRows
from redis_state.gateway.console.views.live import write_message
from redis_state.gateway.streaming.reading import read_events
from redis_state.models import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.scripts import TaskKeys
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.testing import eventually
from redis_state.worker.tasks.recorded.journal import Journals
from tests.integration.gateway.console.conftest import LogIn
from tests.support.browser.console import Browser
from tests.support.http.event_streams import EventParser
from tests.support.http.gateway import Served, ends, paused


async def test_a_live_task_is_sent_again_until_it_is_terminal(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    await console.client.submit("ask", session_id="s", task_id="a")
    pause_id = await paused(console, "s", "a")
    stream = asyncio.create_task(_events(ann, "/task/live?session=s&task=a&after=$"))
    await asyncio.sleep(0)
    await console.client.approve(pause_id, actor="zoe")
    events = await stream
    assert events[-1].name == "end"
    parts = [each for each in events if each.name == "message"]
    assert "COMPLETE" in parts[-1].text
    # Ended already, a stream says so at once.
    assert (await _events(ann, "/task/live?session=s&task=a&after=$"))[-1].name == "end"
    assert (await ann.get("/task/live", session="s", task="a", after="bad")).status == 400


async def test_a_task_of_many_rows_shows_its_newest_and_all_of_its_runs(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several pages of rows, without thousands of them.
    monkeypatch.setattr(history, "_PAGE", 40)
    ann = await log_in("ann")
    await console.client.submit("ask", session_id="s", task_id="a")
    pause_id = await paused(console, "s", "a")
    await asyncio.gather(*(console.store.save_update(_progress(n)) for n in range(150)))
    page = await ann.get("/task", session="s", task="a")
    (live,) = [named["hx-sse:connect"] for _, named in page.elements if "hx-sse:connect" in named]
    stream = asyncio.create_task(_events(ann, live.removeprefix("/console")))
    await asyncio.sleep(0)
    await console.client.approve(pause_id, actor="zoe")
    await ends(console, "s", "a")
    parts = [each for each in await stream if each.name == "message"]
    for shown in ((await ann.get("/task", session="s", task="a")).text, parts[-1].text):
        assert "approved by zoe" in shown
        assert "run 2" in shown
        assert shown.count("row 1") >= 20
        assert "row 90" not in shown
        assert "so far" not in shown
    # The stream began where the page had ended: it has not sent the rows again.
    assert len(parts) < 10


async def test_a_page_reads_rows_for_a_while_and_says_that_there_are_more(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PAGE", 40)
    monkeypatch.setattr(history, "_LONGEST_S", 0.0)
    ann = await log_in("ann")
    await console.client.submit("ask", session_id="s", task_id="a")
    await paused(console, "s", "a")
    await asyncio.gather(*(console.store.save_update(_progress(n)) for n in range(60)))
    page = await ann.get("/task", session="s", task="a")
    assert page.status == 200
    assert "There are more than are shown" in page.text


async def test_a_live_task_costs_its_own_tasks_and_not_those_of_its_session(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await log_in("ann")
    await console.client.submit("ask", session_id="s", task_id="a")
    pause_id = await paused(console, "s", "a")
    listed: list[str] = []
    every = TaskStore.list

    async def counted(self: TaskStore, session_id: str) -> list[TaskState]:
        listed.append(session_id)
        return await every(self, session_id)

    monkeypatch.setattr(TaskStore, "list", counted)
    journals, read_journal = list[str](), Journals.read

    async def read_counted(self: Journals, keys: TaskKeys, **named: Any) -> Any:
        journals.append(keys.task_id)
        return await read_journal(self, keys, **named)

    monkeypatch.setattr(Journals, "read", read_counted)
    renders, render = list[int](), ShownRows.read

    async def recorded(self: ShownRows, **named: Any) -> dict[str, Any]:
        found = await render(self, **named)
        renders.append(len(journals))
        return found

    monkeypatch.setattr(ShownRows, "read", recorded)
    monkeypatch.setattr(task, "_AT_MOST_EVERY_S", 0)
    stream = asyncio.create_task(_events(ann, "/task/live?session=s&task=a"))
    for number in range(3):
        await eventually(lambda: len(renders) > number, "the page was sent")  # noqa: B023
        await console.store.save_update(_progress(number))
    await console.client.approve(pause_id, actor="zoe")
    assert (await stream)[-1].name == "end"
    assert len(renders) > 3
    assert listed == ["s"]
    # What a handler says between its steps is read on: its journal is not read again.
    assert renders[0] == renders[1] == renders[2] < renders[-1]


def test_no_value_ends_a_message_of_a_live_part() -> None:
    html = "<b>1</b>\r\revent: end\n\nid: 9\r\n\r\ndata: x"
    written = write_message(html, "1-1").decode()
    assert written.startswith("id: 1-1\ndata: <b>1</b>\n")
    assert written.count("\n\n") == 1
    assert written.endswith("\n\n")
    # An empty line of a value is none of the message.
    assert write_message("a\n\nb", None) == b"data: a\ndata: \ndata: b\n\n"
    assert all(line.startswith(("id: 1-1", "data: ")) for line in written.strip().splitlines())
    assert read_events(b"retry: 5\n\n:\n\n") == []


def _progress(number: int) -> StateUpdate:
    kind, content = UpdateType.PROGRESS, f"row {number}"
    return StateUpdate(session_id="s", task_id="a", update_type=kind, content=content)


async def _events(browser: Browser, path: str) -> list[Any]:
    parser = EventParser()
    async with asyncio.timeout(30), browser.http.stream("GET", f"/console{path}") as response:
        assert response.status_code == 200
        return [each async for chunk in response.aiter_raw() for each in parser.feed(chunk)]


async def test_no_read_of_a_page_outlives_it() -> None:
    reading = set[str]()

    async def rows(**_: Any) -> dict[str, Any]:
        reading.add("rows")
        for _turn in range(20):
            await asyncio.sleep(0)
        reading.clear()
        return {}

    async def tree(**_: Any) -> dict[str, Any]:
        raise HttpProblem(503, "unavailable", "the server is away")

    call: Any = None
    history_of: Any = SimpleNamespace(read=rows)
    tree_of: Any = SimpleNamespace(read=tree)
    with pytest.raises(HttpProblem):
        await task._read(call, history_of, tree_of)
    assert not reading


async def test_times_without_a_zone_are_utc(console: Served, log_in: LogIn) -> None:
    store, plain = console.store, datetime(2026, 1, 1, 12)  # noqa: DTZ001 - as a host may give it
    for task_id, above in (("top", None), ("child", "top")):
        context = TaskContextSnapshot(
            session_id="s", task_id=task_id, spawned_from_task_id=above or "foreground"
        )
        state = TaskState(task_id, "s", TaskStatus.COMPLETE, TaskType.BACKGROUND, 0, context)
        state.created_at = state.updated_at = plain
        await store.save_task(state)
    await store.save_update(_progress(1))
    page = await (await log_in("ann")).get("/task", session="s", task="top")
    assert page.status == 200
    assert "2026-01-01 12:00:00 UTC" in page.text
