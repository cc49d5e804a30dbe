"""What a person waits for: a save until a page shows it, and a command until it answers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.driver import ROOT, Contender, NotMeasured
from benchmarks.peers.ours import update
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.store.listeners import NAMESPACE
from redis_state import RedisStateStore
from redis_state.worker import TaskClient

_SAVES, _SAVES_A_SECOND, _WARM = 500, 20.0, 20
_STARTS, _PATIENCE_S = 5, 30.0
_CLOCK_READS = 50
# The time of each row that came into the page, by the page's own clock, in ms.
_NOTE = """() => {
  window.came = [];
  new MutationObserver((changes) => {
    const now = performance.timeOrigin + performance.now();
    for (const change of changes)
      for (const row of change.addedNodes)
        if (row.nodeName === "LI")
          window.came.push([JSON.parse(row.querySelector("code").textContent).number, now]);
  }).observe(document.querySelector(".rows"), { childList: true });
}"""
_NOW = "() => performance.timeOrigin + performance.now()"
_LIVE = "() => document.querySelector('[data-connection]').textContent === 'live'"


def measure_page(run: Run) -> list[Row]:
    """Measure how long after a save began an open page has its row, in headless Chromium."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        raise NotMeasured("no chromium: install it, or set CHROMIUM")
    try:
        playwright = import_module("playwright.async_api")
    except ImportError:
        raise NotMeasured("no playwright: pip install playwright") from None
    server = Contender("gateway", run.server.url, module="benchmarks.gateway.serve")
    count = _SAVES // 5 if run.quick else _SAVES
    try:
        measuring = _page(playwright, program, run.server.url, server.said, count)
        delays, apart = asyncio.run(measuring)
    finally:
        server.stop()
    name = "gateway, save to the row in an open page"
    last = len(delays) - 1
    p50, p99 = (delays[min(last, int(at * len(delays)))] for at in (0.5, 0.99))
    note = f"{count} saves, {_SAVES_A_SECOND:g} a second; the clocks were {apart:+.2f} ms apart"
    return [
        row(f"{name}, p50", p50, "ms"),
        row(f"{name}, p99", p99, "ms", bar=(100, 50), most=True, note=note),
        row(f"{name}, rows missing", count - len(delays), "rows", bar=(0, 0), most=True),
    ]


async def _page(
    playwright: Any, program: str, url: str, served: dict[str, Any], count: int
) -> tuple[list[float], float]:
    base = f"http://127.0.0.1:{served['port']}/console"
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = await browser.new_page()
            await page.goto(f"{base}/login")
            await page.fill("#credential", served["key"])
            await page.click("button.primary")
            await page.wait_for_selector("nav")
            async with RedisStateStore.from_url(url, namespace=NAMESPACE) as store:
                async with TaskClient(store) as client:
                    await client.submit("nobody serves it", session_id="page")
                await _save(store, _WARM, first=-_WARM)
                await page.goto(f"{base}/session?session=page")
                await page.wait_for_function(_LIVE)
                await page.evaluate(_NOTE)
                before = await _clocks_apart(page)
                saved = await _save(store, count, first=0)
                came = await _came(page, count)
                apart = (before + await _clocks_apart(page)) / 2
        finally:
            await browser.close()
    return sorted(came[n] - apart - saved[n] for n in saved if n in came), apart


async def _save(store: RedisStateStore, count: int, *, first: int) -> dict[int, float]:
    """Save updates at the rate; return when each save began, in ms."""
    began: dict[int, float] = {}
    due = time.monotonic()
    for number in range(first, first + count):
        due += 1 / _SAVES_A_SECOND
        await asyncio.sleep(due - time.monotonic())
        made = update(time.time_ns(), "page").model_copy(update={"content": {"number": number}})
        began[number] = time.time() * 1e3
        await store.save_update(made)
    return began


async def _came(page: Any, count: int) -> dict[int, float]:
    """Return when each row came into the page, once all have come or none comes any more."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        found: dict[int, float] = dict(await page.evaluate("() => window.came"))
        if len(found) >= count or time.monotonic() > give_up_at:
            return found
        await asyncio.sleep(0.1)


async def _clocks_apart(page: Any) -> float:
    """Return by how many ms the page's clock is ahead, by the quickest of some questions."""
    found: list[tuple[float, float]] = []
    for _ in range(_CLOCK_READS):
        asked = time.time() * 1e3
        there = await page.evaluate(_NOW)
        heard = time.time() * 1e3
        found.append((heard - asked, there - (asked + heard) / 2))
    return min(found)[1]


def measure_dev(run: Run) -> list[Row]:
    """Measure ``redis-state dev`` from the command to its first page, data kept from the second."""
    starts = 2 if run.quick else _STARTS
    with tempfile.TemporaryDirectory(prefix="redis-state-dev-") as folder:
        seconds: list[float] = []
        for number in range(starts):
            seconds.append(_start_dev(Path(folder)))
            run.tell(f"gateway, dev: start {number + 1} took {seconds[-1]:.2f} s")
        seconds.sort()
    name = "redis-state dev, command to the first page"
    note = f"{starts} starts: {', '.join(f'{each:.2f}' for each in seconds)} s"
    return [
        row(f"{name}, median", seconds[len(seconds) // 2], "s"),
        row(f"{name}, slowest", seconds[-1], "s", bar=(5, 3), most=True, note=note),
    ]


def _start_dev(folder: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("REDIS_STATE_URL", None)
    command = [sys.executable, "-m", "redis_state", "dev", "--port", "0", "--data", "data"]
    with (folder / "errors").open("w+") as errors:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            return _first_page(process) - began
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _first_page(process: subprocess.Popen[str]) -> float:
    """Open the address that is printed; return when its page was read."""
    for line in process.stdout or ():
        if found := re.search(r"http://\S+/\?token=\S+", line):
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            try:
                with opener.open(found[0], timeout=_PATIENCE_S) as answer:
                    page = answer.read()
            except urllib.error.URLError as error:
                raise NotMeasured(f"the first page: {error}") from None
            if b"Overview" not in page:
                raise NotMeasured("the first page is another one")
            return time.monotonic()
    raise NotMeasured(f"the command ended with {process.wait()}")
