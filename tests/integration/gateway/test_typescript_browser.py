"""The TypeScript client in Chromium: `make test-typescript` builds it, and runs these tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, UpdateType
from tests.support.browser.chromium import CHROMIUM, Chromium, People, chromium_started
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import Served, ends, gateway_of, paused, tokens
from tests.support.servers.faults import Proxy

CLIENT = Path(__file__).parents[3] / "clients" / "typescript"
BUILT, NEEDED = CLIENT / "dist", CLIENT / "node_modules" / "openapi-fetch" / "dist"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it, or set CHROMIUM"),
    pytest.mark.skipif(not BUILT.is_dir(), reason="it is not built: make test-typescript"),
]

PAGE = """<!doctype html>
<link rel="icon" href="data:,">
<script type="importmap">
{"imports": {"openapi-fetch": "/needed/index.mjs", "redis-state-client": "/client/index.js"}}
</script>
<script type="module">
import * as client from "redis-state-client";
window.gateway = client.createGatewayClient({ baseUrl: "/agents", token: () => window.token });
window.seen = [];
window.follow = async (session, last, after) => {
  const stream = window.gateway.events(session, after === undefined ? {} : { after });
  for await (const event of stream) {
    if (event.kind !== "update") throw new Error(event.kind);
    window.seen.push(event.update.content);
    if (event.update.content === last) return stream.cursor;
  }
};
</script>
"""
READY = "() => window.follow !== undefined"
SUBMIT = """async ([session, task]) => (await window.gateway.api.POST("/v1/tasks", {
  body: { handler: "ask", session_id: session, input: null },
  params: { header: { "Idempotency-Key": task } },
})).data"""
DECIDE = """async (pause) => {
  const { data, error, response } = await window.gateway.api.POST("/v1/pauses/{pause}/decision", {
    params: { path: { pause } }, body: { approved: true, value: null },
  });
  return [response.status, (data ?? error.error).by];
}"""
# Not a line break: Starlette's Mount, in front of the gateway here, has no route for one.
ODD = ("a/b \u00e9%", "\u65e5\u672c {x}*?[a]", "a\ttab \\ '\"", "a?b#c&d=+", "x" * 300)
ROWS, CUTS = 60, 5


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Start one browser for all tests here."""
    with chromium_started() as started:
        yield started


@pytest.fixture
async def served(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve handlers, and a gateway of the store."""
    async with gateway_of(store, handlers=["ask"]) as opened:
        yield opened


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[Proxy]:
    """Serve a page with the client, and the gateway beside it, behind links that can be cut."""

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse(PAGE)

    app = Starlette(
        routes=[
            Route("/", page),
            Mount("/client", StaticFiles(directory=BUILT)),
            Mount("/needed", StaticFiles(directory=NEEDED)),
            Mount("/agents", served.app),
        ]
    )
    async with (
        serving_asgi(app, stop=served.app.end_streams) as port,
        Proxy(f"redis://127.0.0.1:{port}") as proxy,
    ):
        yield proxy


@pytest.fixture
async def people(served: Served, proxy: Proxy, chromium: Chromium) -> AsyncIterator[People]:
    """Let people open the page."""
    async with chromium.people(served.app, f"http://127.0.0.1:{proxy.port}") as people:
        yield people


async def open_page(people: People, subject: str) -> Any:
    """Open the page of a person who may do everything."""
    page = await people.tab()
    await people.run(page.goto(f"{people.base}/"))
    await people.sees(page, READY)
    token = tokens.mint(subject, ["admin:*"])
    await people.run(page.evaluate("token => { window.token = token; }", token))
    return page


async def write(store: RedisStateStore, session: str, rows: range) -> None:
    """Publish numbers."""
    for n in rows:
        row = StateUpdate(
            session_id=session,
            task_id="t",
            update_id=f"row {n}",
            update_type=UpdateType.PROGRESS,
            content=n,
        )
        await store.save_update(row)


async def test_a_stream_has_every_row_once_though_links_are_cut(
    served: Served, proxy: Proxy, people: People
) -> None:
    page = await open_page(people, "ann")
    last, follow = ROWS - 1, "([session, last]) => window.follow(session, last)"
    following = asyncio.create_task(people.run(page.evaluate(follow, ["s", last])))
    cut, each = 0, ROWS // (CUTS + 1)
    for number in range(CUTS):
        await write(served.store, "s", range(number * each, (number + 1) * each))
        await people.sees(page, f"() => window.seen.length == {(number + 1) * each}")
        if number == CUTS // 2:
            await people.run(page.context.set_offline(True))
            await write(served.store, "s", range((number + 1) * each, (number + 1) * each + 2))
            await people.run(page.context.set_offline(False))
        cut += proxy.cut()
    await write(served.store, "s", range(CUTS * each, ROWS))
    cursor = await following
    assert cut >= CUTS
    assert await people.run(page.evaluate("() => window.seen")) == list(range(ROWS))
    # Another page reads on where this one stopped.
    await write(served.store, "s", range(ROWS, ROWS + 3))
    other = await open_page(people, "bob")
    go_on = "([session, last, after]) => window.follow(session, last, after)"
    await people.run(other.evaluate(go_on, ["s", ROWS + 2, cursor]))
    assert await people.run(other.evaluate("() => window.seen")) == [ROWS, ROWS + 1, ROWS + 2]
    # The browser writes of each connection that broke, and of nothing else.
    lost = ("Failed to load resource: net::ERR_",)
    assert [said for said in people.complaints if not said.startswith(lost)] == []


@pytest.mark.parametrize("name", ODD)
async def test_ids_are_any_text(served: Served, people: People, name: str) -> None:
    page = await open_page(people, "ann")
    made = await people.run(page.evaluate(SUBMIT, [name, "a key"]))
    assert (made["session_id"], made["created"]) == (name, True)
    assert (await people.run(page.evaluate(SUBMIT, [name, "a key"])))["created"] is False
    await paused(served, name, made["task_id"])
    task = "([session, last]) => window.follow(session, last)"
    following = asyncio.create_task(people.run(page.evaluate(task, [name, 7])))
    await write(served.store, name, range(7, 8))
    await following
    assert people.complaints == []


async def test_the_second_page_to_decide_learns_who_was_first(
    served: Served, people: People
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause = await paused(served, "s", "t")
    pages = [await open_page(people, subject) for subject in ("ann", "bob")]
    outcomes = await asyncio.gather(*(people.run(page.evaluate(DECIDE, pause)) for page in pages))
    assert sorted(status for status, _ in outcomes) == [200, 409]
    (winner,) = {by for _, by in outcomes}
    assert ["ann", "bob"][[status for status, _ in outcomes].index(200)] == winner
    assert (await ends(served, "s", "t")).result["by"] == winner
    assert people.complaints == []
