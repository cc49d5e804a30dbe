"""Hostile values in every stored string stay text: in pages, in live parts, in SVG and URLs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits
from tests.integration.gateway.console.conftest import AUTH, KEYS
from tests.support.browser.console import Browser, Page
from tests.support.browser.hostile import MOST, PLAIN, Planted, evil, hostile_handlers, plant
from tests.support.http import gateway as support
from tests.support.http.gateway import Served, ends, gateway_of
from tests.support.sizes import sizes

_AT_ONCE = 12
# Attributes whose value a browser may follow.
_LEADS = {"href", "src", "action", "xlink:href", "hx-get", "hx-sse:connect"}
_FIELDS = {"", "id", "data", "event", "retry"}


class Shape(HTMLParser):
    """The elements of a page and their attributes, without any value but those that lead away."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[tuple[str, str]] = set()
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element."""
        self.found.add((tag, ""))
        for name, value in attrs:
            self.found.add((tag, name))
            where = (value or "").strip().lower()
            if name in _LEADS and not where.startswith(("/console", "#")):
                self.found.add((tag, f"{name}={value}"))

    def handle_comment(self, data: str) -> None:
        """Collect a comment: pages have none."""
        self.found.add(("<!--", data))


@pytest.fixture
async def hostile(store: RedisStateStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Serve handlers that store the payload wherever a handler can."""
    handlers = hostile_handlers()
    for name, each in handlers.items():
        monkeypatch.setitem(support.HANDLERS, name, each)
    limits = GatewayLimits(requests_per_s=None)
    async with gateway_of(
        store, handlers=[*handlers], auth=AUTH, console=True, limits=limits
    ) as opened:
        yield opened


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", sizes(12, MOST))
async def test_payloads_in_every_stored_string_stay_text(hostile: Served, count: int) -> None:
    assert MOST >= 500
    ann = Browser(hostile.app)
    await ann.log_in(KEYS["ann"])
    # What pages are made of while nobody is hostile.
    usual = await _shapes(hostile, ann, [PLAIN]) | {("a", "rel")}  # and the link to a next page
    assert {("rect", "class"), ("select", "name"), ("textarea", "name")} <= usual
    for first in range(0, count, _AT_ONCE):
        numbers = [*range(first, min(first + _AT_ONCE, count))]
        assert await _shapes(hostile, ann, numbers) - usual == set()
    await ann.http.aclose()


async def _shapes(served: Served, ann: Browser, numbers: list[int]) -> set[tuple[str, str]]:
    """Store payloads, decide what waits, and look at all pages on the way."""
    planted = await asyncio.gather(*(plant(served, number) for number in numbers))
    plain = ("", "/inbox", "/find", "/sessions", "/schedules", "/workers")
    listed = [await ann.get(each) for each in plain]
    # They are really there: as text, and not as elements.
    for number in numbers:
        assert _words(evil(number, "reason")) in listed[1].text
        in_json = json.dumps(evil(number, "payload"), ensure_ascii=False)
        assert _words(in_json) in listed[1].text
        assert _words(evil(number, "session")) in listed[2].text
        assert _words(evil(number, "schedule")) in listed[4].text
    found = Shape("").found.union(*(Shape(each.source).found for each in listed))
    for visited in await asyncio.gather(*(_visit(served, ann, each) for each in planted)):
        for page in visited:
            assert page.status in (200, 400, 409, 422), page.url
            found |= Shape(page.source).found
    # A live part of a terminal task waits, so that it is not sent too often.
    found = found.union(*await asyncio.gather(*(_live(ann, each) for each in planted)))
    for number in numbers:
        await served.client.schedules.delete(evil(number, "schedule"))
    return found


async def _visit(served: Served, ann: Browser, planted: Planted) -> list[Page]:
    number, session, task = planted.number, planted.session, planted.task
    pages = [
        await ann.get("/task", session=session, task="f"),
        await ann.get("/session", session=session),
        await ann.get("/pause", pause=planted.pause_id),
        await ann.get("/find", handler=evil(number, "filter"), session_id=session),
        await ann.get("/find", after=evil(number, "cursor")),
        await ann.get("/inbox", tag=evil(number, "filter")),
        await ann.get("/login", back=evil(number, "page")),
    ]
    decide, change = pages[2].form("/decide"), pages[3].form("/find/change")
    pages.append(await ann.send(decide, decision="approve", f0="x", f1="9"))
    pages.append(await ann.send(decide, decision="reject", reason=evil(number, "rejection")))
    await ends(served, session, task)
    pages.append(await ann.send(decide, decision="approve", f1="0", f2="", f3=""))
    pages.append(await ann.get("/task", session=session, task=task))
    pages.append(await ann.send(change, action=evil(number, "action")))
    pages.append(await ann.send(change, action="cancel", reason=evil(number, "r"), all="1"))
    return pages


async def _live(ann: Browser, planted: Planted) -> set[tuple[str, str]]:
    asked = {"session": planted.session, "task": planted.task}
    live = await ann.http.get("/console/task/live", params=asked)
    assert {line.partition(":")[0] for line in live.text.split("\n")} <= _FIELDS
    return Shape(live.text.replace("data: ", "")).found


def _words(text: str) -> str:
    """Return text as `Page.text` has it."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    "source",
    [
        "<script>1</script>",
        "<img src=x onerror=1>",
        '<a href="javascript:1">',
        '<p hx-on:load="1">',
        "<form action=//evil.test>",
        '<p style="x">',
        "<!-- -->",
    ],
)
def test_a_shape_has_what_is_not_inert(source: str) -> None:
    usual = Shape('<p><a href="/console/find"></a><form action="/console"></form></p>').found
    assert Shape(source).found - usual


def test_no_two_payloads_are_alike() -> None:
    made: list[Any] = [evil(number, "x") for number in range(MOST)]
    assert len({each.rpartition(" ")[0] for each in made}) == MOST
