"""Tasks, sessions and the pool as pages: what they show, and what they change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from starlette.applications import Starlette
from starlette.routing import Mount

from redis_state import RedisStateStore
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.console import shared
from redis_state.gateway.console.pages import PageCall
from redis_state.gateway.console.views import overview, pool
from redis_state.models import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.stores.base import Base
from redis_state.worker import Rate, Schedule
from redis_state.worker.observe.registry import WorkerIdentity, WorkerRecord
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take
from redis_state.worker.tasks.new_tasks import NewTasks
from tests.integration.gateway.console.conftest import AUTH, KEYS, LogIn
from tests.support.browser.console import HERE, Browser, Form, Page
from tests.support.http.gateway import Served, ends, gateway_of, paused
from tests.support.processes.pools import queue_of

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
    second = await ann.follow((await ann.get("/schedules")).links("after=")[0])
    shown = [named["href"] for _, named in second.elements if "after=" in named.get("href", "")]
    for action in ("pause", "resume"):
        second = await ann.send(second.form(f"/schedules/{action}"))
        # It is the second page still, with its rest.
        assert "beta" not in second.text
        assert list(second.links("after=")) == shown


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
