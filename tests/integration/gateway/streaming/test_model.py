"""Any order of rows, trims, joins, slow readers and restarts: each client has its sequence."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from redis_state import RedisStateStore, Settings
from redis_state.gateway.streaming.client_stream import ClientStream
from redis_state.gateway.streaming.hub import Hub
from redis_state.models import StateUpdate, UpdateType
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.http.event_streams import EventParser
from tests.support.scripts.models import explore
from tests.support.servers.sets.nodes import ask_each

KEPT, FRAMES = 12, 6
NAMES = [
    *("append", "append", "append", "flood", "join", "join", "tail", "leave", "return"),
    *("stall", "stall", "go", "cut", "restart"),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 9),
    ),
    min_size=10,
    max_size=30,
)


class Client:
    """Reads a stream, unless it is stalled, and keeps what came."""

    def __init__(self, stream: ClientStream, *, after: int | None, cursor: str | None) -> None:
        self.stream = stream
        # The number of the row seen last; None before the first, which may be any that is kept.
        self.seen = after
        self.cursor = cursor
        self.gaps = 0
        self.going = asyncio.Event()
        self.going.set()
        self.opened = asyncio.Event()
        self.ended = False
        self._missing: int | None = None
        self.task = asyncio.create_task(self.read())

    async def read(self) -> None:
        parser = EventParser()
        async for chunk in self.stream:
            self.opened.set()
            for event in parser.feed(chunk):
                if event.name == "resync":
                    assert event.data["reason"] == "trimmed"
                    self._missing = (self._missing or 0) + event.data["missed"]
                    self.gaps += 1
                elif event.retry is None:
                    self.take(event.content, event.cursor)
            await self.going.wait()
        self.ended = True

    def take(self, n: int, cursor: str | None) -> None:
        """A row is the next, or as many are missing as a resync said."""
        if self.seen is not None:
            assert n - self.seen - 1 == (self._missing or 0)
        self.seen, self.cursor, self._missing = n, cursor, None

    async def close(self) -> None:
        self.going.set()
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.result()
        await self.stream.aclose()


class Play:
    """The log of one session, the clients that read it, and the hub between them."""

    def __init__(self, store: RedisStateStore, hub: Hub) -> None:
        self.store, self.hub = store, hub
        self.session = uuid.uuid4().hex
        self.rows = 0
        self.clients: list[Client] = []
        self.left: list[tuple[int | None, str | None]] = []
        self.happened: set[str] = set()

    async def append(self, size: int) -> None:
        for _ in range(size + 1):
            self.rows += 1
            update = StateUpdate(
                session_id=self.session,
                task_id="t",
                update_type=UpdateType.PROGRESS,
                content=self.rows,
            )
            await self.store.save_update(update)

    async def flood(self, size: int) -> None:
        await self.append(20 + 2 * size)

    async def join(self, _: int) -> None:
        await self.begin(self.hub.frames(self.session, after="0"), None, None)

    async def tail(self, _: int) -> None:
        await self.begin(self.hub.frames(self.session, after="$"), self.rows, None)

    async def begin(self, stream: ClientStream, after: int | None, cursor: str | None) -> None:
        client = Client(stream, after=after, cursor=cursor)
        self.clients.append(client)
        await client.opened.wait()

    async def leave(self, which: int) -> None:
        if self.clients:
            client = self.clients.pop(which % len(self.clients))
            await client.close()
            self.left.append((client.seen, client.cursor))

    async def return_(self, which: int) -> None:
        if self.left:
            seen, cursor = self.left.pop(which % len(self.left))
            if cursor is not None:
                self.happened.add("return")
                await self.begin(self.hub.frames(self.session, after=cursor), seen, cursor)

    async def stall(self, which: int) -> None:
        if self.clients:
            self.clients[which % len(self.clients)].going.clear()

    async def go(self, which: int) -> None:
        if self.clients:
            self.clients[which % len(self.clients)].going.set()

    async def cut(self, _: int) -> None:
        await ask_each(self.store.transport, "CLIENT", "KILL", "TYPE", "pubsub")

    async def restart(self, _: int) -> None:
        """Another process of the gateway: all clients come back by their cursors."""
        old, self.hub = self.hub, Hub(self.store, most_frames=FRAMES)
        for client in self.clients:
            client.going.set()
        await self.hub.__aenter__()
        await old.__aexit__()
        clients, self.clients = self.clients, []
        for client in clients:
            await asyncio.wait({client.task}, timeout=30)
            assert client.ended
            await client.close()
            after = client.cursor or "0"
            seen = client.seen if client.cursor else None
            await self.begin(self.hub.frames(self.session, after=after), seen, client.cursor)

    async def catch_up(self) -> None:
        await self.append(0)
        for client in self.clients:
            client.going.set()

        def all_there() -> bool:
            for client in self.clients:
                if client.task.done():
                    client.task.result()
            return all(client.seen == self.rows for client in self.clients)

        await eventually(all_there, "every client has the newest row")
        if any(client.gaps for client in self.clients):
            self.happened.add("gap")
        assert self.hub.held <= FRAMES
        assert self.hub.clients == len(self.clients)
        assert self.hub.watches <= 1


async def play(scripts: Scripts, steps: list[tuple[str, int]]) -> Sequence[str]:
    settings = scripts.transport.settings.model_copy(update={"max_updates_per_session": KEPT})
    async with RedisStateStore(settings) as store:
        one = Play(store, await Hub(store, most_frames=FRAMES).__aenter__())
        for name, value in steps:
            await getattr(one, "return_" if name == "return" else name)(value)
        await one.catch_up()
        for client in one.clients:
            await client.close()
        await one.hub.__aexit__()
        done = {name for name, _ in steps} - {"return"}
        return sorted(done | one.happened)


@pytest.mark.fuzz
def test_each_client_has_the_log_from_its_cursor(settings: Settings) -> None:
    wanted = {"append", "flood", "join", "tail", "leave", "return", "stall", "go", "cut"}
    explore(settings, STEPS, play, wanted=wanted | {"restart", "gap"})
