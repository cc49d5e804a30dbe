"""Tasks, found tasks, sessions and the pool as pages: what they show, and what they change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.console.views.live import write_message
from redis_state.gateway.streaming.reading import read_events
from redis_state.worker import Schedule
from tests.integration.gateway.console.conftest import LogIn
from tests.support.browser.console import Browser, Form
from tests.support.http.event_streams import EventParser
from tests.support.http.gateway import Served, ends, paused

ODD_IDS = ["a/b", "..", ".", "é ", "?&=#%00", "\ud800", "{x}"]


async def test_a_task_has_its_runs_steps_pauses_and_children(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    await console.client.submit("parent", session_id="s", task_id="p")
    await console.client.submit("fail", session_id="s", task_id="f")
    await console.client.submit("ask", session_id="s", task_id="a")
    pause_id = await paused(console, "s", "a")
    await ends(console, "s", "p")
    await ends(console, "s", "f")
    parent = await ann.get("/task", session="s", task="p")
    assert "COMPLETE" in parent.text
    assert "Children" in parent.text
    failed = await ann.get("/task", session="s", task="f")
    assert "the handler's own reason" in failed.text
    assert "before#1" in failed.text
    assert {"run", "step"} <= {
        named.get("class") for tag, named in failed.elements if tag == "rect"
    }
    waiting = await ann.get("/task", session="s", task="a")
    assert any(pause_id.partition(":")[2] in each for each in waiting.links("/pause"))
    await console.client.approve(pause_id, actor="zoe")
    await ends(console, "s", "a")
    decided = await ann.get("/task", session="s", task="a")
    assert "approved by zoe" in decided.text
    assert "run 2" in decided.text


async def test_a_task_is_steered_cancelled_retried_rerun_and_forked(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    await console.client.submit("ask", session_id="s", task_id="a")
    await paused(console, "s", "a")
    page = await ann.get("/task", session="s", task="a")
    steered = await ann.send(page.form("/steer"), type="USER_MESSAGE", text="hurry")
    assert "The event was sent." in steered.text
    (event,) = await console.store.list_steering("s", task_id="a")
    assert (event.source, event.payload) == ("ann", {"text": "hurry"})
    # The same form, sent twice, is one event.
    await ann.send(page.form("/steer"), type="USER_MESSAGE", text="hurry")
    assert len(await console.store.list_steering("s", task_id="a")) == 1
    assert (await ann.send(page.form("/steer"), type="APPROVE", text="")).status == 422
    assert (await ann.send(page.form("/steer"), type="USER_MESSAGE", text="{")).status == 422
    cancelled = await ann.send(page.form("/cancel"), reason="enough")
    assert "CANCELLED" in cancelled.text
    assert not [f for f in cancelled.forms if "steer" in f.action]
    retried = await ann.send(cancelled.form("/retry"))
    assert "The task was reopened." in retried.text
    again = await ann.send(cancelled.form("/rerun"))
    twice = await ann.send(cancelled.form("/rerun"))
    assert again.url == twice.url
    assert "task=a&" not in again.url
    forked = await ann.send(cancelled.form("/fork"))
    assert "forked from" in forked.text


async def test_found_tasks_are_changed_after_a_dry_run(console: Served, log_in: LogIn) -> None:
    ann = await log_in("ann")
    for task_id in ("1", "2", "3"):
        await console.client.submit("fail", session_id="s", task_id=task_id)
        await ends(console, "s", task_id)
    await console.client.submit("echo", session_id="s", task_id="e")
    await ends(console, "s", "e")
    page = await ann.get("/find", status="FAILED", session_id="s")
    boxes = [named["value"] for _, named in page.elements if named.get("name") == "chosen"]
    assert len(boxes) == 3
    assert "echo" not in page.text.replace("handlers", "")
    would = await ann.send(page.form("/find/change"), action="rerun", chosen=boxes[0])
    assert "Dry run: rerun" in would.text
    assert "1 would" in would.text
    count = len((await console.client.find(session_id="s")).tasks)
    done = await ann.send(would.form("/find/change"))
    assert "1 done" in done.text
    assert len((await console.client.find(session_id="s")).tasks) == count + 1
    everything = await ann.send(page.form("/find/change"), action="retry", all="1")
    assert "would" in everything.text
    ended = await ann.send(everything.form("/find/change"))
    assert "done" in ended.text
    assert ended.status == 200
    for bad in ({"action": "eat"}, {"action": "retry"}, {"action": "retry", "chosen": "nonsense"}):
        assert (await ann.send(page.form("/find/change"), **bad)).status == 422
    assert (await ann.get("/find", created_after="soon")).status == 422
    assert (await ann.get("/find", after="nonsense")).status == 400


async def test_pages_of_a_list_go_on_by_cursor(console: Served, log_in: LogIn) -> None:
    ann = await log_in("ann")
    for number in range(55):
        await console.client.submit("echo", session_id="s", task_id=f"t{number:02}")
    first = await ann.get("/find", session_id="s")
    (link,) = first.links("after=")
    second = await ann.follow(link)
    seen = {each for page in (first, second) for each in page.links("/task?")}
    assert len(seen) == 55
    assert not second.links("after=")


async def test_the_pool_is_shown_and_paused(console: Served, log_in: LogIn) -> None:
    ann, rita = await log_in("ann"), await log_in("rita")
    await console.client.schedules.save(
        Schedule(
            schedule_id="daily",
            handler="echo",
            session_id="s",
            cron="0 3 * * *",
            attributes={"tenant": "a<b"},
            key="acme",
        )
    )
    assert "serves" in (await rita.get("/workers")).text
    queues = await ann.get("/queues")
    assert "Resume" in (await ann.send(queues.form("/queues/pause"))).text
    queues = await ann.get("/queues")
    resumed = await ann.send(queues.form("/queues/resume"))
    assert not [each for each in resumed.forms if "resume" in each.action]
    page = await ann.get("/schedules")
    assert "key acme, tenant=a<b" in page.text
    assert "paused" in (await ann.send(page.form("/schedules/pause"))).text
    made = await ann.send((await ann.get("/schedules")).form("/schedules/trigger"))
    assert "This is the task of the schedule." in made.text
    assert not [each for each in (await rita.get("/schedules")).forms if "schedules" in each.action]


async def test_a_caller_of_one_session_sees_that_one_only(console: Served, log_in: LogIn) -> None:
    sam = await log_in("sam")
    for session in ("s", "other"):
        await console.client.submit("ask", session_id=session, task_id="t")
        await paused(console, session, "t")
    assert (await sam.get("/task", session="s", task="t")).status == 200
    assert (await sam.get("/session", session="s")).status == 200
    for path in ("/task", "/session", "/task/live", "/session/live"):
        assert (await sam.get(path, session="other", task="t")).status == 404
    assert (await sam.get("/workers")).status == 403
    assert (await sam.get("/schedules")).status == 403
    overview = await sam.get()
    assert overview.status == 200
    assert "Not for you to see." in overview.text
    assert "other" not in (await sam.get("/sessions")).text
    page = await sam.get("/task", session="s", task="t")
    stolen = page.form("/cancel")
    form = Form(stolen.action.replace("session=s", "session=other"), "post", stolen.fields)
    assert (await sam.send(form)).status == 403
    assert (await sam.get("/find")).status == 200


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_odd_ids_are_found_again(console: Served, log_in: LogIn, odd: str) -> None:
    ann = await log_in("ann")
    await console.client.submit("ask", session_id=odd, task_id=odd)
    await paused(console, odd, odd)
    listed = await ann.get("/find")
    page = await ann.follow(listed.links("/task?")[0])
    assert page.status == 200
    assert "PAUSED" in page.text
    session = await ann.follow(page.links("/session?")[0])
    assert session.status == 200
    inbox = await ann.get("/inbox")
    assert "Approved" in (await ann.send(inbox.form("/decide"), decision="approve")).text
    await ends(console, odd, odd)


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


def test_no_value_ends_a_message_of_a_live_part() -> None:
    html = "<b>1</b>\r\revent: end\n\nid: 9\r\n\r\ndata: x"
    written = write_message(html, "1-1").decode()
    assert written.startswith("id: 1-1\ndata: <b>1</b>\n")
    assert written.count("\n\n") == 1
    assert written.endswith("\n\n")
    assert all(line.startswith(("id: 1-1", "data: ")) for line in written.strip().splitlines())
    assert read_events(b"retry: 5\n\n:\n\n") == []


async def _events(browser: Browser, path: str) -> list[Any]:
    parser = EventParser()
    async with asyncio.timeout(30), browser.http.stream("GET", f"/console{path}") as response:
        assert response.status_code == 200
        return [each async for chunk in response.aiter_raw() for each in parser.feed(chunk)]
