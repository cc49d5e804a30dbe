"""Hostile values in every stored string stay text: in pages, in live parts, in SVG and URLs."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models.attributes import check_attributes
from tests.support.browser.hostile import (
    MOST,
    PLAIN,
    Hostile,
    Planted,
    Shape,
    evil,
    hostile_gateway,
    shape_of,
)
from tests.support.sizes import sizes

_AT_ONCE = 12
_SIGNS = re.compile("#+")
_FIELDS = {"", "id", "data", "event", "retry"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", sizes(12, MOST))
async def test_payloads_in_every_stored_string_stay_text(
    store: RedisStateStore, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST >= 500
    async with hostile_gateway(store, [PLAIN, *range(count)], monkeypatch) as hostile:
        # What pages are made of while nobody is hostile.
        usual = await _shapes(hostile, [PLAIN]) | {("a", "rel")}  # and the link to a next page
        assert {("rect", "class"), ("select", "name"), ("textarea", "name")} <= usual
        for first in range(0, count, _AT_ONCE):
            numbers = [*range(first, min(first + _AT_ONCE, count))]
            assert await _shapes(hostile, numbers) - usual == set()


async def _shapes(hostile: Hostile, numbers: list[int]) -> set[tuple[str, str]]:
    """Store payloads, decide what waits, and look at all pages on the way."""
    planted = await asyncio.gather(*map(hostile.plant, numbers))
    pages = await hostile.lists(planted[0].person)
    listed = {urlsplit(page.url).path.removeprefix("/console"): page.text for page in pages}
    visited = await asyncio.gather(*map(hostile.visit, planted))
    # A live part of a terminal task waits, so that it is not sent too often.
    live = await asyncio.gather(*map(_live, planted))
    for each, own in zip(planted, visited, strict=True):
        _check_there(each.number, listed, " ".join(page.text for page in own))
        await hostile.remove(each)
    for page in (page for own in visited for page in own):
        assert page.status in (200, 400, 409, 422), page.url
    return shape_of(page.source for own in [pages, *visited] for page in own) | set[
        tuple[str, str]
    ]().union(*live)


def _check_there(number: int, listed: dict[str, str], visited: str) -> None:
    """Check that the payloads are really there: as text, and not as elements."""
    for path, places in _LISTED.items():
        for where in places:
            assert _words(evil(number, where)) in listed[path], (path, where)
    # The journal's places double this sign in names of steps, compensations and children.
    undoubled = _SIGNS.sub("#", visited)
    for where in _VISITED:
        assert _SIGNS.sub("#", _words(evil(number, where))) in undoubled, where
    for where in _AS_JSON:
        written = json.dumps(evil(number, where), ensure_ascii=False)[1:-1]
        assert _words(written) in visited, where


_LISTED = {
    "/inbox": ("reason", "tag", "decider", "delegate", "subject"),
    "/find": ("session", "task", "handler", "description", "attribute", "error"),
    "/sessions": ("session",),
    "/workers": ("worker", "queue", "handler"),
    # A limit key of more than 120 signs, with escapes, is shown by its digest.
    "/queues": ("queue",),
    "/schedules": ("schedule", "of a schedule", "attribute", "limit key"),
}
_VISITED = (
    *("session", "task", "handler", "description", "attribute", "error", "undo", "step", "child"),
    *("of a child", "reason", "pause", "actor", "subject", "queue", "title", "help"),
)
_AS_JSON = (
    *("message", "detail", "thought", "tool", "argument", "key", "published", "name", "payload"),
    *("result", "property"),
)


async def _live(planted: Planted) -> set[tuple[str, str]]:
    asked = {"session": planted.session, "task": planted.task}
    live = await planted.person.http.get("/console/task/live", params=asked)
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


def test_no_two_payloads_are_alike_and_none_is_the_name_of_an_attribute() -> None:
    made: list[Any] = [evil(number, "x") for number in range(MOST)]
    assert len({each.rpartition(" ")[0] for each in made}) == MOST
    for each in made:
        with pytest.raises(InvalidField):
            check_attributes("attributes", {each: 1})
