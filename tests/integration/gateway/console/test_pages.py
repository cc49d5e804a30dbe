"""Tasks, found tasks, sessions and the pool as pages: what they show, and what they change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from starlette.applications import Starlette
from starlette.routing import Mount

from redis_state import RedisStateStore
from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.console import shared
from redis_state.gateway.console.pages import PageCall
from redis_state.gateway.console.rendering import write_query
from redis_state.gateway.console.views import find, history, overview, pool, task
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
from redis_state.models.attributes import AttributeValue
from redis_state.scripts import TaskKeys
from redis_state.stores.base import Base
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.testing import eventually
from redis_state.worker import Rate, Schedule
from redis_state.worker.observe.registry import WorkerIdentity, WorkerRecord
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.recorded.journal import Journals
from tests.integration.gateway.console.conftest import AUTH, KEYS, LogIn
from tests.support.browser.console import HERE, Browser, Form, Page
from tests.support.http.event_streams import EventParser
from tests.support.http.gateway import Served, ends, gateway_of, paused
from tests.support.processes.pools import queue_of
from tests.support.tasks.crash_states import given_up

ODD_IDS = ["", "a/b", "..", ".", "é ", "?&=#%00", "\ud800", "{x}"]


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
    wrong = await ann.send(page.form("/steer"), type="USER_MESSAGE", text='{"a": <b>')
    # What was typed is still there.
    assert (wrong.status, 'What you wrote {"a": <b>' in wrong.text) == (422, True)
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
    await console.client.submit("fail", session_id="s", task_id="later")
    await ends(console, "s", "later")
    ended = await ann.send(everything.form("/find/change"))
    assert "done" in ended.text
    assert ended.status == 200
    retried = {each.task_id: each.retries for each in (await console.client.find()).tasks}
    assert (retried["1"], retried["later"]) == (1, 0)
    for bad in ({"action": "eat"}, {"action": "retry"}, {"action": "retry", "chosen": "nonsense"}):
        assert (await ann.send(page.form("/find/change"), **bad)).status == 422
    assert (await ann.get("/find", created_after="soon")).status == 422
    assert (await ann.get("/find", after="nonsense")).status == 400


async def test_a_change_is_of_those_that_its_dry_run_promised(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    await console.client.submit("fail", session_id="s", task_id="f")
    await ends(console, "s", "f")
    await console.client.submit("ask", session_id="s", task_id="a")
    await paused(console, "s", "a")
    form = (await ann.get("/find", session_id="s")).form("/find/change")
    form.add("chosen", "session=s&task=f")
    form.add("chosen", "session=s&task=a")
    would = await ann.send(form, action="retry")
    assert "1 would" in would.text
    assert "1 refused" in would.text
    # Meanwhile the change applies to the other one too.
    assert await console.client.cancel("s", "a")
    done = await ann.send(would.form("/find/change"))
    assert "1 done" in done.text
    view = await console.client.inspect("s", "a")
    assert view is not None
    assert (view.state.status.value, view.retries) == ("CANCELLED", 0)


async def test_a_change_of_many_tasks_with_long_ids_is_confirmed(
    log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await log_in("ann")
    items = [
        find._item({"session": "s" * 200, "task": f"{at:0200}"}) | {"outcome": "would"}
        for at in range(500)
    ]
    changed = list[str]()

    async def would(*_: Any) -> dict[str, Any]:
        return {"items": items, "counts": {"would": 500}, "more": False}

    async def change(_call: Any, _action: Any, path: dict[str, str], _key: Any) -> dict[str, Any]:
        changed.append(path["task"])
        return find._item(path) | {"outcome": "done"}

    monkeypatch.setattr(find, "_all", would)
    monkeypatch.setattr(find, "_do", change)
    page = await ann.get("/find")
    shown = await ann.send(page.form("/find/change"), action="rerun", all="1")
    done = await ann.send(shown.form("/find/change"))
    assert (done.status, changed) == (200, [each["task_id"] for each in items])
    # Another form is no longer than any body.
    large = await ann.send(page.form("/logout"), more="x" * 70_000)
    assert large.status == 413


async def test_a_task_of_any_age_that_fails_is_in_the_last_hour(
    console: Served, log_in: LogIn
) -> None:
    ann, store = await log_in("ann"), console.store
    made, queue = datetime.now(UTC) - timedelta(days=3), queue_of(store.settings)
    context = TaskContextSnapshot(session_id="s", task_id="old", spawned_at=made)
    state = TaskState("old", "s", TaskStatus.PENDING, TaskType.BACKGROUND, 0, context)
    state.created_at = made
    assert await NewTasks(store).create(state, handler="fail", task_input=None)
    await console.client.submit("fail", session_id="s", task_id="new")
    await ends(console, "s", "new")
    await Queue(store, name=queue).put(Job("s", "old", 0, 0, queue))
    await ends(console, "s", "old")
    overview = await ann.get()
    assert "2 in the last 24 hours" in overview.text
    assert "2 failed 0 to 1 hours ago" in overview.text
    assert [each.rpartition("=")[2] for each in overview.links("/task?")] == ["old", "new"]


async def test_who_has_the_same_scopes_shares_what_the_overview_reads(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, rita, rosa = [await log_in(each) for each in ("ann", "rita", "rosa")]
    read = _readers(monkeypatch)
    monkeypatch.setattr(shared, "_SHARED_S", 3600.0)
    # Who has logged in has opened the overview.
    for browser in (ann, ann, rita, rosa):
        assert (await browser.get("/overview-part")).status == 200
    assert read == []
    # A page that is opened shows what is now.
    await ann.get()
    assert read == ["ann"]
    monkeypatch.setattr(shared, "_SHARED_S", 0.0)
    await rita.get("/overview-part")
    assert read == ["ann", "rita"]
    # However many open it at once: one read that had begun, and one behind it for the others.
    await asyncio.gather(*(each.get() for each in (rita, rosa) for _ in range(10)))
    assert len(read) <= 4


async def test_a_hosts_filter_may_show_each_another_overview(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def visible(principal: Principal, update: StateUpdate) -> StateUpdate | None:
        hidden = update.update_type is UpdateType.STATUS_CHANGE and principal.subject == "rosa"
        return None if hidden else update

    monkeypatch.setattr(shared, "_SHARED_S", 3600.0)
    async with gateway_of(store, auth=AUTH, console=True, visible=visible) as served:
        await served.client.submit("fail", session_id="s", task_id="f")
        await ends(served, "s", "f")
        people = {subject: Browser(served.app) for subject in ("rita", "rosa")}
        for subject, browser in people.items():
            await browser.log_in(KEYS[subject])
        parts = {name: (await each.get("/overview-part")).text for name, each in people.items()}
        for browser in people.values():
            await browser.http.aclose()
    assert "the handler's own reason" in parts["rita"]
    assert "1 in the last 24 hours" in parts["rosa"]
    assert "the handler's own reason" not in parts["rosa"]


def _readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return who reads the overview from now on."""
    read, every = list[str](), overview.read_overview

    async def counted(call: PageCall) -> dict[str, Any]:
        read.append(call.principal.subject)
        return await every(call)

    monkeypatch.setattr(overview, "read_overview", counted)
    return read


async def test_an_overview_costs_the_same_however_many_tasks_and_pauses_there_are(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_MOST", 4)
    ann, store = await log_in("ann"), console.store
    sender, sent, costs = store.transport.sender, list[Any](), list[int]()
    put = type(sender)._put

    def counted(self: Any, *arguments: Any) -> Any:
        if self is sender:
            sent.append(arguments)
        return put(self, *arguments)

    monkeypatch.setattr(type(sender), "_put", counted)
    for first, behind in ((0, 8), (8, 40)):
        for number in range(first, behind):
            await console.client.submit("fail", session_id="s", task_id=f"f{number}")
            await console.client.submit("ask", session_id="s", task_id=f"a{number}")
        for number in range(first, behind):
            await ends(console, "s", f"f{number}")
            await paused(console, "s", f"a{number}")
        sent.clear()
        assert "4+ in the last 24 hours" in (await ann.get()).text
        costs.append(len(sent))
    few, many = costs
    # Not even one command for each of the 64 that came. A page of tasks may take a second round.
    assert many <= few + 16


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


async def test_lists_of_the_pool_go_on_by_cursor_and_read_their_page(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PAGE", 2)
    ann, sam, store = await log_in("ann"), await log_in("sam"), console.store
    for name in ("\ud800", "beta", "alpha", "c%", "é-last"):
        schedule = Schedule(schedule_id=name, handler="echo", session_id="s", cron="0 3 * * *")
        await console.client.schedules.save(schedule)
        about = WorkerIdentity(f"worker {name}", ["q"], ["echo"], 1, "")
        await WorkerRecord(store, about, WorkerStats()).say()
    read, fetch = list[str](), Base.fetch

    def counted(self: Base, key: str, names: tuple[str, ...] = ()) -> Any:
        if self is store.base:
            read.append(key)
        return fetch(self, key, names)

    monkeypatch.setattr(Base, "fetch", counted)
    # The pool is a worker too.
    for path, count in (("/schedules", 5), ("/workers", 6)):
        link, rows, text = f"/console{path}", list[int](), ""
        while link:
            read.clear()
            page = await ann.follow(link)
            rows.append(sum(1 for _, named in page.elements if "data-item" in named))
            assert len(read) == rows[-1]
            text += page.text
            link = next(iter(page.links("after=")), "")
        assert rows == [2, 2, count - 4]
        at = [text.index(each) for each in ("alpha", "beta", "c%", "é-last")]
        assert at == sorted(at)
        assert (await ann.get(path, after="nonsense")).status == 400
        assert (await sam.get(path)).status == 403
        # A program that asks for no page has all of them.
        listed = (await _api(console, path)).json()
        assert (len(listed[path.strip("/")]), listed["cursor"]) == (count, None)


async def _api(console: Served, path: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS['ann']}"}
    transport = httpx.ASGITransport(console.app)
    async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=headers) as http:
        return await http.get(f"/v1{path}")


async def test_rates_are_shown_with_what_is_used_of_them(console: Served, log_in: LogIn) -> None:
    ann, sam = await log_in("ann"), await log_in("sam")
    assert "No rate was set, and none is used now." in (await ann.get("/queues")).text
    hour, queue = timedelta(hours=1), Queue(console.store)
    await console.client.rates.set("<b>model</b>", Rate(30, hour))
    await console.client.rates.set("unused", Rate(2, hour))
    await take(queue, "<b>model</b>", Rate(60, hour), 4)
    await take(queue, "search", Rate(10, hour), 10)
    await take(queue, "search", Rate(10, hour), 5)
    page = await ann.get("/queues")
    assert "<b>model</b> 30 in 1 h 4 of 30 in 1 h 0 s" in page.text
    assert "search what the code gives 15 of 10 in 1 h 36 min" in page.text
    assert "unused 2 in 1 h - -" in page.text
    assert (await sam.get("/queues")).status == 403


@pytest.mark.parametrize("path", ["/nothing", "/task/more", "/decide", "/static/none.js", "/<b>x"])
async def test_a_wrong_path_below_the_console_is_a_page_for_a_browser(
    console: Served, path: str
) -> None:
    mounted = Starlette(routes=[Mount("/agents", console.app)])
    for app, mount in ((console.app, ""), (mounted, "/agents")):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as http:
            shown = await http.get(
                f"{mount}/console{path}", headers={"accept": "text/html,*/*;q=0.8"}
            )
            assert (shown.status_code, shown.headers["content-type"]) == (
                404,
                "text/html; charset=utf-8",
            )
            page = Page(shown)
            assert "there is no such page" in page.text
            assert path.strip("/") not in page.source
            assert page.links() == ["#main", f"{mount}/console"]
            assert "default-src 'none'" in shown.headers["content-security-policy"]
            # Programs get JSON, and other paths are no pages.
            for asked, accept in ((f"/console{path}", "*/*"), ("/v1/none", "text/html")):
                other = await http.get(f"{mount}{asked}", headers={"accept": accept})
                assert other.status_code == 404
                assert other.json()["error"]["code"] == "not_found"


async def test_the_pool_is_shown_and_paused(console: Served, log_in: LogIn) -> None:
    ann, rita = await log_in("ann"), await log_in("rita")
    await console.client.schedules.save(
        Schedule(
            schedule_id="daily",
            handler="echo",
            session_id="s",
            cron="0 3 * * *",
            attributes={"tenant": "a<b"},
            limit_key="acme",
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
    task_id = odd or "t"
    await console.client.submit("ask", session_id=odd, task_id=task_id)
    await paused(console, odd, task_id)
    listed = await ann.get("/find")
    page = await ann.follow(listed.links("/task?")[0])
    assert page.status == 200
    assert "PAUSED" in page.text
    session = await ann.follow(page.links("/session?")[0])
    assert session.status == 200
    inbox = await ann.get("/inbox")
    assert "Approved" in (await ann.send(inbox.form("/decide"), decision="approve")).text
    await ends(console, odd, task_id)
    chosen = await ann.get("/find")
    boxes = [named["value"] for _, named in chosen.elements if named.get("name") == "chosen"]
    would = await ann.send(chosen.form("/find/change"), action="rerun", chosen=boxes[0])
    assert "1 would" in would.text


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


async def test_dead_letters_are_shown_and_changed_page_by_page(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.gateway.console.views.find.MOST_IN_BULK", 2)
    ann = await log_in("ann")
    await console.client.queues.pause(queue_of(console.store.settings))
    dead = [await given_up(console.store, handler="echo") for _ in range(3)]
    page = await ann.get("/dead")
    assert [task in page.text for task in dead] == [False, True, True]
    (following,) = [link for link in page.links("/dead") if "after=" in link]
    last = await ann.follow(following)
    assert [task in last.text for task in dead] == [True, False, False]
    # What is done to all of these is done to those of this page.
    would = await ann.send(last.form("/dead/change"), action="retry", all="1")
    assert "1 would" in would.text
    assert "1 done" in (await ann.send(would.form("/dead/change"))).text
    assert [each.task_id for each in await console.client.dead()] == [dead[2], dead[1]]
    assert (await ann.get("/dead", after="nonsense")).status == 400


async def test_dead_letters_are_listed_and_changed_after_a_dry_run(
    console: Served, log_in: LogIn
) -> None:
    ann, rita, sam = await log_in("ann"), await log_in("rita"), await log_in("sam")
    assert "No task is given up." in (await ann.get("/dead")).text
    # What is retried waits.
    await console.client.queues.pause(queue_of(console.store.settings))
    dead = [await given_up(console.store, handler="echo") for _ in range(3)]
    await console.client.submit("echo", session_id="s", task_id="alive")
    page = await ann.get("/dead")
    boxes = [named["value"] for _, named in page.elements if named.get("name") == "chosen"]
    assert boxes == [write_query({"session": "s", "task": task}) for task in reversed(dead)]
    assert "alive" not in page.text
    assert "workers in a row died" in page.text
    would = await ann.send(page.form("/dead/change"), action="retry", chosen=boxes[0])
    assert "1 would" in would.text
    done = await ann.send(would.form("/dead/change"))
    assert "1 done" in done.text
    assert [each.task_id for each in await console.client.dead()] == [dead[1], dead[0]]
    back = await ann.follow(done.links("/dead")[-1])
    every = await ann.send(back.form("/dead/change"), action="retry", all="1")
    assert "2 would" in every.text
    assert "2 done" in (await ann.send(every.form("/dead/change"))).text
    assert await console.client.dead() == []
    assert {each.retries for each in (await console.client.find()).tasks} == {0, 1}
    refused = await ann.send(page.form("/dead/change"), action="retry", chosen=boxes[0])
    assert "retry does not apply to it" in refused.text
    assert not [form for form in (await rita.get("/dead")).forms if "dead" in form.action]
    assert (await sam.get("/dead")).status == 403


async def test_a_time_of_a_filter_is_utc_unless_it_has_a_zone(log_in: LogIn) -> None:
    ann = await log_in("ann")
    for given, understood in (
        ("2026-11-24", "2026-11-24T00:00Z"),
        ("2026-11-24 07:30", "2026-11-24T07:30Z"),
        ("2026-11-24T07:30:15.5", "2026-11-24T07:30:15.5Z"),
        ("2026-11-24T07:30-05:00", "2026-11-24T07:30-05:00"),
        ("2026-11-24T07:30+05:00", "2026-11-24T07:30+05:00"),
    ):
        page = await ann.get("/find", created_after=given)
        assert page.status == 200, given
        field = next(named for _, named in page.elements if named.get("id") == "created_after")
        assert field["value"] == understood


async def test_tasks_are_found_and_retried_by_the_times_of_their_ends(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    for name in ("late", "early", "waits"):
        await console.client.submit("fail", session_id="s", task_id=name, delay=timedelta(days=1))
    for name in ("early", "late"):
        await console.client.cancel("s", name)

    def names(page: Any) -> list[str]:
        return [link.rpartition("=")[2] for link in page.links("/task?")]

    page = await ann.get("/find")
    assert (names(page), "last that ended" in page.text) == (["waits", "early", "late"], False)
    page = await ann.get("/find", ended_after="2020-01-01", status="CANCELLED")
    assert (names(page), "last that ended" in page.text) == (["late", "early"], True)
    field = next(named for _, named in page.elements if named.get("id") == "ended_after")
    assert field["value"] == "2020-01-01T00:00Z"
    assert names(await ann.get("/find", ended_before="2020-01-01")) == []
    refused = await ann.get("/find", ended_after="2020-01-01", status="PENDING")
    assert (refused.status, names(refused)) == (422, [])
    shown = await ann.send(page.form("/find/change"), action="retry", all="1")
    assert "2 would" in shown.text
    assert "2 done" in (await ann.send(shown.form("/find/change"))).text


async def test_an_attribute_whose_value_has_commas_is_found(console: Served, log_in: LogIn) -> None:
    about: dict[str, AttributeValue] = {"note": "a,b, c", "n": 1}
    await console.client.submit("echo", session_id="s", task_id="t", attributes=about)
    await console.client.submit("echo", session_id="s", task_id="u", attributes={"n": 1})
    page = await (await log_in("ann")).get("/find", attribute="note=a,b, c, n=1")
    assert [link.rpartition("=")[2] for link in page.links("/task?")] == ["t"]


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
