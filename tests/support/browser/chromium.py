"""A Chromium of this machine, driven by playwright, for all tests of a module.

It takes seconds to start, and playwright belongs to the loop that started it, while each test has a
loop of its own. So it lives in a thread, and tests send it what to do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, TypeVar

from redis_state.gateway.console.login.logins import COOKIE
from redis_state.gateway.console.rendering import write_query
from redis_state.testing import eventually
from tests.support.browser.console import Browser

T = TypeVar("T")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
_PATIENCE_MS = 30_000
_START_S = 60


class Chromium:
    """A running browser."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._browser: Any = None
        self._playwright: Any = None

    async def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Do something with a page, in the loop of the browser."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(doing, self._loop))

    @asynccontextmanager
    async def people(self, app: Any, base: str) -> AsyncGenerator[People]:
        """Let people look at an application at this address, for the length of the block."""
        people = People(self, app, base)
        try:
            yield people
        finally:
            for context in people.contexts:
                await self.run(context.close())

    async def new_context(self, **options: Any) -> Any:
        """Make a window with cookies of its own. To be awaited in the loop of the browser."""
        return await self._browser.new_context(**options)

    async def start(self) -> None:
        """Start the browser."""
        self._playwright = await import_module("playwright.async_api").async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=CHROMIUM,
            headless=True,
            args=["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"],
        )

    async def stop(self) -> None:
        """End it."""
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()


class People:
    """Windows of a browser, and what went wrong in them."""

    def __init__(self, chromium: Chromium, app: Any, base: str) -> None:
        self.base = base
        self.contexts: list[Any] = []
        # Errors, refusals of the policy, dialogs, and requests to other places.
        self.complaints: list[str] = []
        self._chromium = chromium
        self._app = app
        self.run = chromium.run

    async def tab(self, credential: str | None = None, **options: Any) -> Any:
        """Open a window, of a person who has logged in."""
        options.setdefault("viewport", {"width": 1200, "height": 800})
        value = None if credential is None else await self._cookie(credential)
        return await self.run(self._open(value, options))

    async def go(self, page: Any, path: str, **query: str) -> None:
        """Open a page of the console."""
        asked = f"?{write_query(query)}" if query else ""
        await self.run(page.goto(f"{self.base}/console{path}{asked}"))

    async def sees(self, page: Any, condition: str) -> None:
        """Wait until a function of the page is true."""

        async def is_so() -> bool:
            return bool(await self.run(page.evaluate(condition)))

        await eventually(is_so, f"{condition} in {page.url}")

    async def _open(self, cookie: str | None, options: dict[str, Any]) -> Any:
        context = await self._chromium.new_context(**options)
        self.contexts.append(context)
        if cookie is not None:
            named = {"name": COOKIE, "value": cookie, "url": f"{self.base}/console/"}
            await context.add_cookies([named])
        page = await context.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        page.on("console", self._hear)
        page.on("pageerror", self._fail)
        page.on("dialog", self._dismiss)
        page.on("request", self._see)
        return page

    async def _cookie(self, credential: str) -> str:
        browser = Browser(self._app, base=self.base)
        await browser.log_in(credential)
        value = browser.http.cookies[COOKIE]
        await browser.http.aclose()
        return value

    def _hear(self, message: Any) -> None:
        # An answer of 409 is one that a person reads.
        if message.type == "error" and "409" not in message.text:
            self.complaints.append(message.text)

    def _fail(self, what: Any) -> None:
        self.complaints.append(str(what))

    async def _dismiss(self, dialog: Any) -> None:
        # The page waits for it.
        self._fail(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _see(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:")):
            self.complaints.append(f"a request to {request.url}")


@contextmanager
def chromium_started() -> Generator[Chromium]:
    """Start a browser for the length of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="chromium", daemon=True)
    thread.start()
    chromium = Chromium(loop)

    def do(doing: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(doing, loop).result(_START_S)

    try:
        do(chromium.start())
        yield chromium
    finally:
        do(chromium.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_S)
        loop.close()
