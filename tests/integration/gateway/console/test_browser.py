"""The console in Chromium: two tabs, live parts, keys, the policy. Skipped where there is none.

CONSOLE_PICTURE=docs/benchmarks/console.png in the environment keeps a picture of the overview.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from tests.integration.gateway.console.conftest import KEYS
from tests.support.asgi_servers import serving_asgi
from tests.support.gateway import Served, ends, paused

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it, or set CHROMIUM"),
]
_PATIENCE_MS = 20_000


@dataclass
class Chromium:
    """A browser with a window for each person."""

    base: str
    open: Callable[[str], Awaitable[Any]]
    complaints: list[str] = field(default_factory=list[str])


@pytest.fixture
async def chromium(console: Served) -> AsyncIterator[Chromium]:
    """Serve the console on a port, and start a browser."""
    async_playwright: Any = import_module("playwright.async_api").async_playwright
    async with (
        serving_asgi(console.app, stop=console.app.end_streams) as port,
        async_playwright() as playwright,
    ):
        started = await playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=["--no-sandbox"]
        )
        base = f"http://127.0.0.1:{port}"

        async def tab(subject: str) -> Any:
            context = await started.new_context(viewport={"width": 1200, "height": 800})
            page = await context.new_page()
            page.set_default_timeout(_PATIENCE_MS)
            page.on("console", partial(_note, opened.complaints))
            page.on("pageerror", partial(_note_error, opened.complaints))
            page.on("dialog", partial(_note_error, opened.complaints))
            await page.goto(f"{base}/console")
            await page.fill("#credential", KEYS[subject])
            await page.click("button.primary")
            await page.wait_for_selector("nav a")
            return page

        opened = Chromium(base, tab)
        yield opened
        await started.close()


def _note(complaints: list[str], message: Any) -> None:
    # An answer of 409 is one that a person reads.
    if message.type == "error" and "409" not in message.text:
        complaints.append(message.text)


def _note_error(complaints: list[str], error: Any) -> None:
    complaints.append(str(error))


async def test_two_tabs_approve_and_the_later_one_shows_who(
    console: Served, chromium: Chromium
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann, bob = await chromium.open("ann"), await chromium.open("bob")
    for tab in (ann, bob):
        await tab.goto(f"{chromium.base}/console/inbox")
    await ann.click("button[value=approve]")
    await ann.wait_for_selector(".said")
    await bob.click("button[value=approve]")
    await bob.wait_for_selector(".problem")
    assert "Approved by ann" in await bob.inner_text("main")
    assert (await ends(console, "s", "t")).result["by"] == "ann"
    assert chromium.complaints == []


async def test_an_open_page_follows_its_task_and_keys_move_in_the_inbox(
    console: Served, chromium: Chromium
) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    await console.client.submit("ask", session_id="s", task_id="t", description=hostile)
    pause_id = await paused(console, "s", "t")
    ann = await chromium.open("ann")
    await ann.goto(f"{chromium.base}/console/inbox")
    await ann.keyboard.press("j")
    await ann.keyboard.press("a")
    focused = "document.activeElement.value"
    assert await ann.evaluate(focused) == "approve"
    await ann.keyboard.press("r")
    assert await ann.evaluate("document.activeElement.name") == "reason"
    await ann.goto(f"{chromium.base}/console/task?session=s&task=t")
    await ann.wait_for_function("document.querySelector('[data-connection]').textContent == 'live'")
    tail = await chromium.open("rita")
    await tail.goto(f"{chromium.base}/console/session?session=s")
    await tail.wait_for_selector(".rows li:nth-child(4)")
    await console.client.approve(pause_id, actor="zoe")
    await ann.wait_for_selector(".status.complete")
    assert "approved by zoe" in await ann.inner_html("main")
    await tail.wait_for_function("document.querySelector('.rows').innerText.includes('COMPLETE')")
    assert chromium.complaints == []


async def test_the_overview_for_a_picture(console: Served, chromium: Chromium) -> None:
    for number in range(4):
        await console.client.submit("ask", session_id=f"customer-{number}", task_id="refund")
        await console.client.submit("echo", session_id=f"customer-{number}", task_id="report")
        await paused(console, f"customer-{number}", "refund")
    for number in range(3):
        await console.client.submit("fail", session_id="nightly", task_id=f"import-{number}")
        await ends(console, "nightly", f"import-{number}")
    ann = await chromium.open("ann")
    await ann.goto(f"{chromium.base}/console")
    await ann.wait_for_selector(".cards")
    assert "4 wait for a decision" in await ann.inner_text("main")
    assert await ann.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    picture = os.environ.get("CONSOLE_PICTURE")
    taken = await ann.screenshot()
    assert taken.startswith(b"\x89PNG")
    if picture:
        await asyncio.to_thread(Path(picture).write_bytes, taken)
    assert chromium.complaints == []
