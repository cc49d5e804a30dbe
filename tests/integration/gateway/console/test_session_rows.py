"""A session's updates on its page, without scripts: the newest, and those before by links."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state.models import StateUpdate, UpdateType
from tests.integration.gateway.console.conftest import LogIn
from tests.support.browser.console import Page
from tests.support.http.gateway import Served, paused

HOUR = timedelta(hours=1)
_TOKEN = re.compile(r"\bs\.[A-Za-z0-9_-]{32}")


async def write(console: Served, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await console.store.save_update(
            StateUpdate(
                session_id="s",
                task_id="t",
                update_id=f"u{number}",
                update_type=UpdateType.PROGRESS,
                content={"row": f"<b>{number}</b>"},
            )
        )


def shown(page: Page) -> list[int]:
    return [int(each) for each in re.findall(r'"row": "<b>(\d+)</b>"', page.text)]


def linked(page: Page, rel: str) -> str | None:
    return next((n["href"] for tag, n in page.elements if tag == "a" and n.get("rel") == rel), None)


async def test_all_rows_are_read_by_links_from_the_newest_back_and_forth(
    console: Served, log_in: LogIn
) -> None:
    await console.client.submit("echo", session_id="s", task_id="t", delay=HOUR)
    begun = len(await console.store.list_updates("s"))
    await write(console, 1, 230)
    ann = await log_in("ann")
    page = await ann.get("/session", session="s")
    assert shown(page) == list(range(131, 231))
    assert linked(page, "next") is None
    seen: list[int] = shown(page)
    while (older := linked(page, "prev")) is not None:
        page = await ann.follow(older)
        assert "sse:connect" not in str(page.elements)
        seen = shown(page) + seen
    assert seen == list(range(1, 231))
    back: list[int] = shown(page)
    while (newer := linked(page, "next")) is not None:
        page = await ann.follow(newer)
        back += shown(page)
    assert back == seen
    assert begun >= 1
    assert (await ann.get("/session", session="s", types="STATUS_CHANGE")).status == 200
    assert shown(await ann.get("/session", session="s", types="STATUS_CHANGE")) == []
    for wrong in ("x", "-1", "0", "9" * 30):
        assert (await ann.get("/session", session="s", before=wrong)).status in (400, 422)


async def test_what_was_dropped_is_shown_as_a_gap(console: Served, log_in: LogIn) -> None:
    await console.client.submit("echo", session_id="s", task_id="t", delay=HOUR)
    begun = len(await console.store.list_updates("s"))
    await write(console, 1, 50)
    rows = console.store.base.keys.updates("s").rows
    cut = await console.store.transport.sender.send("XTRIM", rows, "MAXLEN", 10, repeatable=True)
    assert cut == begun + 40
    ann = await log_in("ann")
    page = await ann.get("/session", session="s")
    assert shown(page) == list(range(41, 51))
    assert f"{begun + 40} rows were dropped" in page.text
    assert linked(page, "prev") is None


async def test_rows_have_no_token_and_only_what_the_caller_may_see(
    console: Served, log_in: LogIn
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    texts = [str(each.content) for each in await console.store.list_updates("s")]
    assert any(_TOKEN.search(text) for text in texts)
    ann, sam = await log_in("ann"), await log_in("sam")
    page: Any = await ann.get("/session", session="s")
    assert "token=[token]" in page.text
    assert not _TOKEN.search(page.text)
    await console.client.submit("ask", session_id="other", task_id="t")
    assert (await sam.get("/session", session="other")).status == 404
