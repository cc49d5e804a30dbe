"""The console in Chromium: tabs, live parts, keys, the policy. Skipped where there is none.

CONSOLE_PICTURES=docs/guides in the environment keeps pictures of the overview and of a task there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from redis_state import RedisStateStore
from redis_state.cli.servers.dev_browser import page_to
from redis_state.gateway import ConsoleOptions, create_gateway
from redis_state.worker import Rate, Schedule, TaskClient, TaskContext
from tests.integration.gateway.console.conftest import AUTH, KEYS
from tests.support.browser.chromium import CHROMIUM, Chromium, People
from tests.support.browser.hostile import (
    MOST,
    PLAIN,
    Hostile,
    Planted,
    evil,
    hostile_gateway,
    shape_of,
)
from tests.support.http import gateway
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import Served, ends, links, paused
from tests.support.processes import pools
from tests.support.processes.pools import queue_of
from tests.support.processes.worker_processes import begin, stop, worker_process
from tests.support.servers.faults import Proxy
from tests.support.tasks.crash_states import given_up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it, or set CHROMIUM"),
]
# Functions: the policy of the pages lets nobody evaluate a text.
_LIVE = "() => document.querySelector('[data-connection]').textContent == 'live'"
_AT_ONCE = 6
_IN_A_TEST = 60
# Shows pages, each in a frame, and returns what they are once they are loaded.
_FRAMES = 40
_FRAMED = """async sources => {
    const shown = source => new Promise(done => {
        const frame = document.createElement("iframe");
        frame.onload = () => done(frame);
        frame.srcdoc = source;
        document.body.append(frame);
    });
    const frames = await Promise.all(sources.map(shown));
    await new Promise(done => setTimeout(done));
    const found = frames.map(frame => frame.contentDocument.documentElement.outerHTML);
    frames.forEach(frame => frame.remove());
    return found;
}"""
_BROKEN = _LIVE.replace("==", "!=")
_FOCUSED = "() => document.activeElement.querySelector('td:nth-child(2)').innerText"
_ROWS = "() => [...document.querySelectorAll('.rows li')].map(each => each.innerText)"


async def test_two_tabs_approve_and_the_later_one_shows_who(
    console: Served, people: People
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann, bob = await people.tab(), await people.tab(KEYS["bob"])
    await people.go(ann, "/inbox")
    await people.run(ann.fill("#credential", KEYS["ann"]))
    await people.run(ann.click("button.primary"))
    await people.go(bob, "/inbox")
    await people.run(ann.click("button[value=approve]"))
    await people.run(ann.wait_for_selector(".said"))
    await people.run(bob.click("button[value=approve]"))
    await people.run(bob.wait_for_selector(".problem"))
    assert "Approved by ann" in await people.run(bob.inner_text("main"))
    assert (await ends(console, "s", "t")).result["by"] == "ann"
    assert people.complaints == []


async def test_a_page_is_live_however_late_its_scripts_come(
    console: Served, people: People
) -> None:
    rita = await people.tab(KEYS["rita"])

    async def come_late(route: Any) -> None:
        # All that the page does by then is done.
        await rita.wait_for_function("() => window.htmx")
        for _ in range(5):
            await rita.evaluate("() => new Promise(done => setTimeout(done))")
        await route.continue_()

    await console.client.submit("echo", session_id="s", task_id="before")
    await people.run(rita.route("**/hx-sse.min.js", come_late))
    await people.go(rita, "/session", session="s")
    await people.sees(rita, _LIVE)
    await console.client.submit("echo", session_id="s", task_id="t")
    await people.sees(rita, _ends("t"))


@pytest.mark.full
async def test_an_open_page_follows_its_task_and_keys_move_in_the_inbox(
    console: Served, people: People
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(console, "s", "t")
    ann, tail = await people.tab(KEYS["ann"]), await people.tab(KEYS["rita"])
    await people.go(ann, "/inbox")
    await people.run(ann.keyboard.press("j"))
    await people.run(ann.keyboard.press("a"))
    assert await people.run(ann.evaluate("document.activeElement.value")) == "approve"
    await people.run(ann.keyboard.press("r"))
    assert await people.run(ann.evaluate("document.activeElement.name")) == "reason"
    await people.go(ann, "/task", session="s", task="t")
    await people.sees(ann, _LIVE)
    await people.go(tail, "/session", session="s")
    await people.run(tail.wait_for_selector(".rows li:nth-child(4)"))
    await console.client.approve(pause_id, actor="zoe")
    await people.run(ann.wait_for_selector(".status.complete"))
    assert "approved by zoe" in await people.run(ann.inner_html("main"))
    await people.sees(tail, f"{_ROWS}.join().includes('COMPLETE')")
    assert people.complaints == []


@pytest.mark.full
async def test_keys_move_among_tasks_and_reach_the_search(console: Served, people: People) -> None:
    for task_id in ("first", "second", "third"):
        await console.client.submit("echo", session_id="s", task_id=task_id)
    ann = await people.tab(KEYS["ann"])
    await people.go(ann, "/find")
    seen: list[str] = []
    for key in "jjjjkk":
        await people.run(ann.keyboard.press(key))
        seen.append(await people.run(ann.evaluate(_FOCUSED)))
    third, second, first = "third in s", "second in s", "first in s"
    assert seen == [third, second, first, first, second, third]
    await people.run(ann.keyboard.press("/"))
    assert await people.run(ann.evaluate("document.activeElement.id")) == "handler"
    # Who writes presses no keys of the page.
    await people.run(ann.keyboard.type("a/j"))
    assert await people.run(ann.input_value("#handler")) == "a/j"
    # Where there is nothing to fill in, it is the link to the search.
    await people.go(ann, "/workers")
    await people.run(ann.keyboard.press("/"))
    assert await people.run(ann.evaluate("document.activeElement.textContent")) == "Find"
    assert people.complaints == []


@pytest.mark.full
async def test_without_javascript_pages_are_read_and_a_form_decides(
    console: Served, people: People
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann = await people.tab(KEYS["ann"], java_script_enabled=False)
    for path, words in (
        ("", "wait for a decision"),
        ("/find", "PAUSED"),
        ("/sessions", "1 PAUSED"),
        ("/session", "PAUSED"),
        ("/task", "Runs and steps"),
        ("/workers", "serves"),
        ("/inbox", "refund?"),
    ):
        named = {"session": "s", "task": "t"} if path in ("/session", "/task") else {}
        await people.go(ann, path, **named)
        assert words in await people.run(ann.inner_text("main"))
    await people.run(ann.click("button[value=approve]"))
    assert "Approved." in await people.run(ann.inner_text(".said"))
    assert (await ends(console, "s", "t")).result["by"] == "ann"


@pytest.mark.full
@pytest.mark.parametrize("offline_s", [0, 30])
async def test_who_was_offline_catches_up_without_a_gap_or_a_repeat(
    console: Served, chromium: Chromium, offline_s: float
) -> None:
    async with (
        serving_asgi(console.app, stop=console.app.end_streams) as port,
        Proxy(f"redis://127.0.0.1:{port}/0") as network,
        chromium.people(console.app, f"http://127.0.0.1:{network.port}") as people,
    ):
        await console.client.submit("echo", session_id="s", task_id="before")
        rita, other = await people.tab(KEYS["rita"]), await people.tab(KEYS["rita"])
        await people.go(rita, "/session", session="s")
        await people.sees(rita, _ends("before"))
        await people.run(rita.context.set_offline(True))
        # Offline, a browser keeps what is open already, or is being opened.
        network.refuse()
        assert network.cut() > 0
        await people.sees(rita, _BROKEN)
        for number in range(10):
            await console.client.submit("echo", session_id="s", task_id=f"meanwhile-{number}")
            await ends(console, "s", f"meanwhile-{number}")
        # As long as is promised.
        await asyncio.sleep(offline_s)
        assert "meanwhile" not in str(await people.run(rita.evaluate(_ROWS)))
        network.refuse(refusing=False)
        await people.run(rita.context.set_offline(False))
        await console.client.submit("echo", session_id="s", task_id="after")
        await people.sees(rita, _ends("after"))
        await people.go(other, "/session", session="s")
        await people.sees(other, _ends("after"))
        rows = await people.run(rita.evaluate(_ROWS))
        assert rows == await people.run(other.evaluate(_ROWS))
        assert len(rows) == len(set(rows)) == 12 * 3
        # The browser says itself that the network is gone.
        expected = ("net::ERR_", "htmx:sse:error")
        assert [each for each in people.complaints if not any(t in each for t in expected)] == []


def _ends(task_id: str) -> str:
    """Write the condition that the tail shows the end of a task."""
    return f"{_ROWS}.some(each => each.includes('{task_id}') && each.includes('COMPLETE'))"


@pytest.mark.full
async def test_a_worker_is_killed_while_its_waterfall_is_shown(
    store: RedisStateStore, chromium: Chromium
) -> None:
    app = create_gateway(store, auth=AUTH, console=True, queue=queue_of(store.settings))
    options = {"program": "pool_worker", "lease_s": 1.0}
    async with (
        TaskClient(store, queue=queue_of(store.settings)) as client,
        serving_asgi(app, stop=app.end_streams) as port,
        chromium.people(app, f"http://127.0.0.1:{port}") as people,
        worker_process(store.settings, "first", **options) as first,
    ):
        task = await begin(client, store, "linger")
        ann = await people.tab(KEYS["ann"])
        await people.go(ann, "/task", session="s", task=task)
        await people.sees(ann, _LIVE)
        assert await people.run(ann.locator(".waterfall .run").count()) == 1
        await stop(first, signal.SIGKILL)
        async with worker_process(store.settings, "second", **options):
            await people.run(ann.wait_for_selector(".status.complete"))
        assert await people.run(ann.locator(".waterfall .run").count()) == 2
        assert await people.run(ann.locator(".waterfall .takeover").count()) == 1
        table = await people.run(ann.inner_html("details"))
        assert "first, taken over" in table
        assert "second" in table
        assert people.complaints == []
    await app.aclose()


def _numbers() -> list[Any]:
    """List the first payloads; then all of them for `make test-full`, in parts that end soon."""
    parts = [range(n, min(n + _IN_A_TEST, MOST)) for n in range(0, MOST, _IN_A_TEST)]
    marks = [pytest.mark.full, pytest.mark.timeout(1_800)]
    full = [pytest.param(each, id=f"from-{each.start}", marks=marks) for each in parts]
    return [pytest.param(range(_AT_ONCE), id="first", marks=pytest.mark.timeout(600)), *full]


@pytest.mark.parametrize("of", _numbers())
async def test_a_browser_runs_no_payload_and_asks_nobody_else(
    store: RedisStateStore, chromium: Chromium, monkeypatch: pytest.MonkeyPatch, of: range
) -> None:
    async with (
        hostile_gateway(store, [PLAIN, *of], monkeypatch) as hostile,
        serving_asgi(hostile.served.app, stop=hostile.served.app.end_streams) as port,
        chromium.people(hostile.served.app, f"http://127.0.0.1:{port}") as people,
    ):
        tab = await people.tab(hostile.keys[evil(PLAIN, "subject")])
        judge = await people.tab()
        await people.run(judge.route("**/judge", _blank))
        await people.run(judge.route("**/live?*", _no_news))
        # A page asks for these each few seconds, and this window has not logged in.
        for part in ("**/overview-part", "**/inbox-count*"):
            await people.run(judge.route(part, _blank))
        usual = await _judged(people, judge, hostile, [await hostile.plant(PLAIN)]) | {("a", "rel")}
        assert ("svg", "viewbox") in usual
        for first in range(0, len(of), _AT_ONCE):
            numbers = [*of[first : first + _AT_ONCE]]
            planted = await asyncio.gather(*map(hostile.plant, numbers))
            # Under the policy of the pages, as people see them.
            for path in hostile.paths:
                await people.go(tab, path)
            named = {"session": planted[0].session, "task": planted[0].task}
            await people.go(tab, "/task", **named)
            await people.go(tab, "/session", session=planted[0].session)
            await people.run(tab.wait_for_selector(".rows li:nth-child(6)"))
            await people.run(tab.goto("about:blank"))
            assert await _judged(people, judge, hostile, planted) - usual == set()
            assert people.complaints == [], numbers


async def _judged(
    people: People, judge: Any, hostile: Hostile, planted: list[Planted]
) -> set[tuple[str, str]]:
    """Return what Chromium makes of all pages of payloads: in frames, without any policy."""
    pages = await hostile.lists(planted[0].person)
    for own in await asyncio.gather(*map(hostile.visit, planted)):
        pages += own
    for each in planted:
        await hostile.remove(each)
    await people.run(judge.goto(f"{people.base}/judge"))
    found: list[str] = []
    for first in range(0, len(pages), _FRAMES):
        sources = [page.source for page in pages[first : first + _FRAMES]]
        found += await people.run(judge.evaluate(_FRAMED, sources))
    return shape_of(found)


async def _blank(route: Any) -> None:
    await route.fulfill(content_type="text/html", body="<!doctype html><body>")


async def _no_news(route: Any) -> None:
    await route.fulfill(content_type="text/event-stream", body="")


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(console: Served, people: People, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="no axe: axe-playwright-python")
    script = await asyncio.to_thread(
        Path(axe.__file__).with_name("axe.min.js").read_text, encoding="utf-8"
    )
    for handler, task_id in (("fill_in", "t"), ("fail", "f"), ("vote", "v"), ("parent", "p")):
        await console.client.submit(handler, session_id="s", task_id=task_id)
    await console.client.submit("echo", "long " * 4_000, session_id="s", task_id="e")
    await ends(console, "s", "e")
    pause_id = await paused(console, "s", "t")
    await paused(console, "s", "v")
    await ends(console, "s", "f")
    await ends(console, "s", "p")
    await console.client.schedules.save(
        Schedule(schedule_id="daily", handler="echo", session_id="s", cron="0 3 * * *")
    )
    await given_up(console.store, handler="echo")
    await console.client.rates.set("model", Rate(30, timedelta(hours=1)))
    await console.client.queues.limit("tasks", running=4, per_key=2)
    found = list[str]()

    async def examine(page: Any, *shows: str) -> None:
        text = await people.run(page.content())
        assert [each for each in shows if each not in text] == []
        await people.run(page.evaluate(script))
        result = await people.run(page.evaluate("axe.run({resultTypes: ['violations']})"))
        assert len(result["passes"]) > 5
        found.extend(
            f"{page.url}: {each['impact']} {each['id']} {each['nodes'][0]['html'][:200]}"
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        )

    nobody = await people.tab(color_scheme=scheme)
    await people.go(nobody, "/login")
    await examine(nobody, 'id="credential"')
    # The link page of a person without a login, which has a style of its own.
    link = links.mint(pause_id, actor="bob")
    await people.run(nobody.goto(f"{people.base}/v1/hooks/{link}"))
    await examine(nobody, "<form")
    ann = await people.tab(KEYS["ann"], color_scheme=scheme)
    pages: list[tuple[str, dict[str, str], str]] = [
        *((each, {}, "") for each in ("", "/inbox", "/sessions")),
        ("/workers", {}, "serves"),
        ("/queues", {}, "30 in 1 h"),
        ("/find", {}, 'name="chosen"'),
        ("/dead", {}, 'name="chosen"'),
        ("/schedules", {}, "daily"),
        *(("/task", {"session": "s", "task": task}, "") for task in ("t", "f", "p", "e")),
        ("/task", {"session": "s", "task": "none"}, "404"),
        ("/session", {"session": "s"}, ""),
        ("/pause", {"pause": pause_id}, "<form"),
    ]
    for path, query, shows in pages:
        await people.go(ann, path, **query)
        await examine(ann, shows)
    # What is given up is FAILED too: it is retried first.
    for path in ("/dead", "/find"):
        await people.go(ann, path)
        await people.run(ann.select_option("#action", "retry"))
        await people.run(ann.check("[name=all]"))
        await people.run(ann.click("form:has(#action) button"))
        await people.run(ann.wait_for_selector("main button.danger"))
        await examine(ann, "Dry run")
        await people.run(ann.click("main button.danger"))
        await people.run(ann.wait_for_selector("h1:has-text('Done')"))
        await examine(ann)
    rows = console.store.base.keys.updates("s").rows
    assert await console.store.transport.sender.send("XTRIM", rows, "MAXLEN", 2, repeatable=True)
    await people.go(ann, "/session", session="s")
    await examine(ann, 'class="gap"')
    assert found == []


@pytest.mark.full
async def test_a_token_of_the_address_is_nowhere_afterwards(
    store: RedisStateStore, chromium: Chromium
) -> None:
    app = create_gateway(store, auth=AUTH, console=ConsoleOptions(login_by_url=True))
    async with (
        serving_asgi(app, stop=app.end_streams) as port,
        chromium.people(app, f"http://127.0.0.1:{port}") as people,
    ):
        ann = await people.tab()
        await people.run(ann.goto(f"{people.base}/?token={KEYS['ann']}"))
        for path in ("/find", "/inbox"):
            await people.run(ann.click(f"nav a[href$='{path}']"))
            await people.run(ann.wait_for_url(f"**{path}"))
        kept = "JSON.stringify([location.href, document.referrer, performance.getEntries()])"
        seen = [await people.run(ann.evaluate(kept)), await people.run(ann.content())]
        for _ in range(3):
            await people.run(ann.go_back())
            seen += [ann.url, await people.run(ann.evaluate(kept))]
        assert "about:blank" in seen
        assert KEYS["ann"] not in str(seen)
        # A script of the page cannot read the cookie either.
        await people.go(ann, "")
        assert await people.run(ann.evaluate("document.cookie")) == ""
        assert people.complaints == []
    await app.aclose()


async def test_a_page_of_a_private_folder_logs_in_by_itself(
    store: RedisStateStore, chromium: Chromium, tmp_path: Path
) -> None:
    app = create_gateway(store, auth=AUTH, console=ConsoleOptions(login_by_url=True))
    async with (
        serving_asgi(app, stop=app.end_streams) as port,
        chromium.people(app, f"http://127.0.0.1:{port}") as people,
    ):
        ann = await people.tab()
        with page_to(f"{people.base}/?token={KEYS['ann']}", tmp_path) as page:
            await people.run(ann.goto(page))
            await people.run(ann.wait_for_selector("text=Overview"))
            await people.run(ann.wait_for_selector("nav .who"))
        history = "JSON.stringify([location.href, document.referrer, performance.getEntries()])"
        assert KEYS["ann"] not in await people.run(ann.evaluate(history))
        await people.run(ann.go_back())
        assert KEYS["ann"] not in ann.url
        assert [each for each in people.complaints if "file:" not in each] == []
    await app.aclose()


async def _refund(ctx: TaskContext) -> str:
    """Do what a user's agent does, for a picture."""

    async def work(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    await ctx.step("find the order", work, 2_000)
    await ctx.progress("the order was paid twice", order="A-1042")
    await ctx.step("ask the model", work, 9_000)
    pause = await ctx.open_pause("Refund 40 EUR?", {"order": "A-1042"}, tags=["finance"])
    decision = await ctx.wait_for(pause)
    await ctx.step("refund", work, 4_000)
    return f"refunded, approved by {decision.actor}"


@pytest.fixture
def pool_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the queue and a handler as a user would."""
    monkeypatch.setitem(gateway.HANDLERS, "refund", _refund)

    def queue_of(_: object) -> str:
        return "support"

    for module in (pools, gateway):
        monkeypatch.setattr(module, "queue_of", queue_of)


@pytest.mark.full
async def test_pages_for_pictures(pool_of_a_user: None, console: Served, people: People) -> None:
    pauses = list[str]()
    for number in range(4):
        await console.client.submit("refund", session_id=f"customer-{number}", task_id="refund")
        pauses.append(await paused(console, f"customer-{number}", "refund"))
    await console.client.approve(pauses[3], actor="ann")
    await ends(console, "customer-3", "refund")
    for number in range(3):
        await console.client.submit("fail", session_id="nightly", task_id=f"import-{number}")
        await ends(console, "nightly", f"import-{number}")
    ann = await people.tab(KEYS["ann"])
    task = {"session": "customer-3", "task": "refund"}
    pages: list[tuple[str, str, dict[str, str], str]] = [
        ("console.png", "", {}, "3 wait for a decision"),
        ("task.png", "/task", task, "find the order"),
    ]
    for name, path, query, shows in pages:
        await people.go(ann, path, **query)
        await people.run(ann.wait_for_selector(f"main:has-text('{shows}')"))
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert await people.run(ann.evaluate(wide))
        taken = await people.run(ann.screenshot())
        assert taken.startswith(b"\x89PNG")
        if folder := os.environ.get("CONSOLE_PICTURES"):
            await asyncio.to_thread(Path(folder, name).write_bytes, taken)
    assert people.complaints == []
