"""Two processes of a gateway, one killed again and again, and the server restarted once. Then all
clients come back by cursors whose next rows are gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.asgi_servers import SocketClient
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.faults import short_directory, start_process
from tests.support.servers.ports import free_port
from tests.support.servers.rollback import OwnServer

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_EARLY, _KEPT = 9, 5


class Gateways:
    """Two processes on ports of their own."""

    def __init__(self, url: str) -> None:
        self.ports = (free_port(), free_port())
        self.processes: list[ForkedProcess | None] = [None, None]
        self._url = url

    async def start(self, which: int) -> None:
        argument = {"url": self._url, "namespace": "n", "port": self.ports[which]}
        process = self.processes[which] = await start_process("serve_streams", argument)
        assert (await process.stdout.readline()).startswith(b"port")

    async def kill(self, which: int) -> None:
        process = self.processes[which]
        assert process is not None
        await children.end(process)


class Browser:
    """Reads one session, and comes back by its cursor to whichever process answers."""

    def __init__(self, ports: tuple[int, int], session: str) -> None:
        self.seen: list[int] = []
        self.session = session
        # Where it was after its first rows.
        self.early: str | None = None
        # For how long it was away each time, while one of the processes answered.
        self.away_s: list[float] = []
        self.connections = 0
        self.resyncs = 0
        self.task = asyncio.create_task(self._read(ports, session))

    async def _read(self, ports: tuple[int, int], session: str) -> None:
        cursor: str | None = None
        gone_at: float | None = None
        while True:
            client: SocketClient | None = None
            try:
                client = await SocketClient.get(random.choice(ports), session, cursor=cursor)
                if client.status == 200:
                    self.connections += 1
                    if gone_at is not None:
                        self.away_s.append(time.monotonic() - gone_at)
                    gone_at = None
                    while (events := await client.events()) is not None:
                        for event in events:
                            cursor = event.cursor or cursor
                            if event.name == "PROGRESS":
                                self.seen.append(event.content)
                                self.early = cursor if event.content == _EARLY else self.early
                            self.resyncs += event.name == "resync"
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                gone_at = gone_at or time.monotonic()
                if client is not None:
                    client.abort()
            await asyncio.sleep(random.uniform(0.02, 0.1))


@pytest.mark.parametrize(
    ("clients", "sessions", "kills", "rows"),
    [(50, 5, 3, 60), pytest.param(1000, 50, 12, 400, marks=pytest.mark.full)],
)
async def test_every_client_has_the_exact_sequence(
    clients: int, sessions: int, kills: int, rows: int
) -> None:
    with short_directory() as directory:
        server = OwnServer(Path(directory), "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        try:
            await _play(server, clients, sessions, kills, rows)
        finally:
            await server.stop()


async def _play(server: OwnServer, clients: int, sessions: int, kills: int, rows: int) -> None:
    gateways = Gateways(server.url)
    await asyncio.gather(gateways.start(0), gateways.start(1))
    browsers = [Browser(gateways.ports, f"s{n % sessions}") for n in range(clients)]
    await eventually(
        lambda: all(b.connections for b in browsers), "all are connected", timeout_s=60
    )
    options: dict[str, Any] = {"url": server.url, "namespace": "n"}
    async with RedisStateStore.from_url(**options) as store:

        async def write(session: int) -> None:
            for n in range(rows):
                await store.save_update(_row(f"s{session}", n))
                await asyncio.sleep(kills * 0.4 / rows)

        writing = [asyncio.create_task(write(session)) for session in range(sessions)]
        for turn in range(kills):
            before = sum(browser.connections for browser in browsers)
            await gateways.kill(turn % 2)
            if turn == kills // 2:
                await server.stop()
                await server.start()
            await gateways.start(turn % 2)
            await eventually(partial(_more, browsers, before), "the clients are back")
        await asyncio.gather(*writing)
        await eventually(
            lambda: all(browser.seen[-1:] == [rows - 1] for browser in browsers),
            "every client has the newest row",
            timeout_s=60,
        )
    for browser in browsers:
        browser.task.cancel()
    await asyncio.wait([browser.task for browser in browsers])
    await asyncio.gather(gateways.kill(0), gateways.kill(1))
    await _come_back_late(server, browsers, rows)
    assert {tuple(browser.seen) for browser in browsers} == {tuple(range(rows))}
    assert sum(browser.resyncs for browser in browsers) == 0
    away = sorted(each for browser in browsers for each in browser.away_s)
    assert len(away) >= kills
    places = {"half": len(away) // 2, "99 of 100": len(away) * 99 // 100, "longest": -1}
    waits = {name: round(away[at], 2) for name, at in places.items()}
    print(f"away {len(away)} times, in seconds:", waits)  # noqa: T201


async def _come_back_late(server: OwnServer, browsers: list[Browser], rows: int) -> None:
    """Have every client come back by a cursor whose next rows were dropped meanwhile."""
    gateways, newest = Gateways(server.url), rows + 3
    options: dict[str, Any] = {"namespace": "n", "max_updates_per_session": _KEPT}
    async with RedisStateStore.from_url(server.url, **options) as store:
        for session in {browser.session for browser in browsers}:
            # A write drops a bounded number of rows.
            for n in range(rows, newest + 1):
                await store.save_update(_row(session, n))
            log = store.base.keys.updates(session).rows
            kept: int = await store.transport.sender.send("XLEN", log, repeatable=True)
            assert kept == _KEPT
    # Processes that were there before have frames of rows that the log has dropped.
    await asyncio.gather(gateways.start(0), gateways.start(1))

    async def read(browser: Browser) -> None:
        client = await SocketClient.get(
            random.choice(gateways.ports), browser.session, cursor=browser.early
        )
        found = await client.until(
            lambda event: event.name == "PROGRESS" and event.content == newest
        )
        client.abort()
        assert sum(event.name == "resync" for event in found) == 1
        got = [event.content for event in found if event.name == "PROGRESS"]
        assert got == list(range(newest - _KEPT + 1, newest + 1))

    await asyncio.gather(*map(read, browsers))
    await asyncio.gather(gateways.kill(0), gateways.kill(1))


def _row(session: str, n: int) -> StateUpdate:
    kind = UpdateType.PROGRESS
    return StateUpdate(
        session_id=session, task_id="t", update_id=f"u{n}", update_type=kind, content=n
    )


def _more(browsers: list[Browser], before: int) -> bool:
    return sum(browser.connections for browser in browsers) > before
