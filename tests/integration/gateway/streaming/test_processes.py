"""Two processes of a gateway, one killed again and again, and the server restarted once. Then all
clients come back by cursors whose next rows are gone. Each client has a token of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.http.asgi_servers import SocketClient
from tests.support.http.gateway import SECRET, tokens
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory, start_process
from tests.support.servers.ports import free_port

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_EARLY, _KEPT = 9, 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many play, and for how long. ``every_s``: the time from one kill to the next."""

    clients: int
    sessions: int
    kills: int
    rows: int
    every_s: float
    # The longest time that a client may be away; None on a machine that is shared.
    away_s: float | None = None


FULL = Sizes(clients=1_000, sessions=50, kills=12, rows=120, every_s=5, away_s=2)
REDUCED = Sizes(clients=50, sessions=5, kills=3, rows=60, every_s=0.4)


class Gateways:
    """Two processes on ports of their own."""

    def __init__(self, url: str) -> None:
        self.ports = (free_port(), free_port())
        self.processes: list[ForkedProcess | None] = [None, None]
        self._url = url

    async def start(self, which: int) -> None:
        argument: dict[str, Any] = {
            "url": self._url,
            "namespace": "n",
            "port": self.ports[which],
            "secret": SECRET,
        }
        process = self.processes[which] = await start_process("serve_streams", argument)
        assert (await process.stdout.readline()).startswith(b"port")

    async def kill(self, which: int) -> None:
        process = self.processes[which]
        assert process is not None
        assert process.returncode is None, "a gateway ended by itself"
        await children.end(process)


class Browser:
    """Reads one session, and comes back by its cursor to whichever process answers."""

    def __init__(self, ports: tuple[int, int], user: str, session: str) -> None:
        self.seen: list[int] = []
        self.session = session
        self.token = tokens.mint(user, [f"read:session:{session}"])
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
        # Until a stream says when to come back.
        retry_s = 0.1
        while True:
            client: SocketClient | None = None
            try:
                client = await SocketClient.get(
                    random.choice(ports), session, cursor=cursor, token=self.token
                )
                if client.status == 200:
                    self.connections += 1
                    if gone_at is not None:
                        self.away_s.append(time.monotonic() - gone_at)
                    gone_at = None
                    while (events := await client.events()) is not None:
                        for event in events:
                            cursor = event.cursor or cursor
                            retry_s = retry_s if event.retry is None else event.retry / 1000
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
            # As a browser does, also after a try that was refused.
            await asyncio.sleep(retry_s)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(REDUCED, id="reduced"),
        pytest.param(FULL, id="full", marks=[pytest.mark.full, pytest.mark.timeout(300)]),
    ],
)
async def test_every_client_has_the_exact_sequence(sizes: Sizes) -> None:
    with short_directory() as directory:
        server = OwnServer(Path(directory), "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        try:
            await _play(server, sizes)
        finally:
            await server.stop()


async def _play(server: OwnServer, sizes: Sizes) -> None:
    gateways = Gateways(server.url)
    await asyncio.gather(gateways.start(0), gateways.start(1))
    browsers = [
        Browser(gateways.ports, f"user-{n}", f"s{n % sizes.sessions}") for n in range(sizes.clients)
    ]
    await eventually(
        lambda: all(b.connections for b in browsers), "all are connected", timeout_s=60
    )
    options: dict[str, Any] = {"url": server.url, "namespace": "n"}
    killed: list[float] = []
    async with RedisStateStore.from_url(**options) as store:
        began = time.monotonic()
        writing = [
            asyncio.create_task(_write(store, session, began, sizes))
            for session in range(sizes.sessions)
        ]
        for turn in range(sizes.kills):
            due = began + (turn + 1) * sizes.every_s
            await eventually(partial(_past, due), "it is time for the next kill")
            before = sum(browser.connections for browser in browsers)
            killed.append(time.monotonic())
            await gateways.kill(turn % 2)
            if turn == sizes.kills // 2:
                await server.stop()
                await server.start()
            await gateways.start(turn % 2)
            await eventually(partial(_more, browsers, before), "the clients are back")
        await asyncio.gather(*writing)
        await eventually(
            lambda: all(browser.seen[-1:] == [sizes.rows - 1] for browser in browsers),
            "every client has the newest row",
            timeout_s=60,
        )
    for browser in browsers:
        browser.task.cancel()
    await asyncio.wait([browser.task for browser in browsers])
    await asyncio.gather(gateways.kill(0), gateways.kill(1))
    await _come_back_late(server, browsers, sizes.rows)
    assert {tuple(browser.seen) for browser in browsers} == {tuple(range(sizes.rows))}
    assert sum(browser.resyncs for browser in browsers) == 0
    _check_absences(browsers, killed, sizes)


async def _write(store: RedisStateStore, session: int, began: float, sizes: Sizes) -> None:
    """Write the rows of a session, spread over all turns."""
    # Half a turn behind the last kill is left: it falls among rows too.
    length_s = (sizes.kills + 0.5) * sizes.every_s
    for n in range(sizes.rows):
        await asyncio.sleep(began + n * length_s / sizes.rows - time.monotonic())
        await store.save_update(_row(f"s{session}", n))


def _check_absences(browsers: list[Browser], killed: list[float], sizes: Sizes) -> None:
    away = sorted(each for browser in browsers for each in browser.away_s)
    # A kill meets about a half of the clients.
    assert len(away) >= sizes.kills * sizes.clients // 4
    between = [round(after - before, 2) for before, after in pairwise(killed)]
    places = {"half": len(away) // 2, "99 of 100": len(away) * 99 // 100, "longest": -1}
    waits = {name: round(away[at], 3) for name, at in places.items()}
    print(f"seconds from kill to kill: {between}")  # noqa: T201
    print(f"away {len(away)} times, in seconds: {waits}")  # noqa: T201
    if sizes.away_s is not None:
        assert max(between) <= sizes.every_s * 1.2
        assert away[-1] <= sizes.away_s


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
            random.choice(gateways.ports),
            browser.session,
            cursor=browser.early,
            token=browser.token,
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


def _past(moment: float) -> bool:
    return time.monotonic() >= moment
