"""A gateway with its console, over a real server and a real pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import pytest

from redis_state import RedisStateStore
from tests.support.browser.chromium import Chromium, People, chromium_started
from tests.support.browser.console import Browser, keys_for
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import Served, gateway_of

LogIn: TypeAlias = Callable[[str], Awaitable[Browser]]

SUBJECTS = {
    "ann": "admin:*",
    "bob": "resolve:* read:*",
    "rita": "read:*",
    "rosa": "read:*",
    "fin": "resolve:tag:finance",
    "sam": "read:session:s submit:session:s steer:session:s",
}
AUTH, KEYS = keys_for(**SUBJECTS)


@pytest.fixture
async def console(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve all handlers, and the gateway with its console."""
    async with gateway_of(store, auth=AUTH, console=True) as opened:
        yield opened


@pytest.fixture
async def log_in(console: Served) -> AsyncIterator[LogIn]:
    """Log subjects in."""
    browsers: list[Browser] = []

    async def log_in(subject: str) -> Browser:
        browser = Browser(console.app)
        browsers.append(browser)
        page = await browser.log_in(KEYS[subject])
        assert page.status == 200, page.text
        return browser

    yield log_in
    for each in browsers:
        await each.http.aclose()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Start one browser for all tests here."""
    with chromium_started() as started:
        yield started


@pytest.fixture
async def people(console: Served, chromium: Chromium) -> AsyncIterator[People]:
    """Serve the console on a port, for people with a browser."""
    async with (
        serving_asgi(console.app, stop=console.app.end_streams) as port,
        chromium.people(console.app, f"http://127.0.0.1:{port}") as people,
    ):
        yield people
