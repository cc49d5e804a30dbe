"""Streams over TLS, for many clients, while the store's links die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore, Settings
from redis_state.gateway.streaming.hub import Hub
from redis_state.models import StateUpdate, UpdateType
from tests.support.http.event_streams import Events
from tests.support.servers.proxies.dying_links import over_tls, while_links_die

CLIENTS, ROWS = 40, 60


def session_of(client: int) -> str:
    return f"s {client % 8} {{}}*:%\u00e9\n"


async def write(store: RedisStateStore, session: str) -> None:
    for n in range(ROWS):
        await store.save_update(
            StateUpdate(
                session_id=session,
                task_id="t",
                update_id=f"u{n}",
                update_type=UpdateType.PROGRESS,
                content={"session": session, "n": n, "text": "</script>\r\n\u2028" * 30},
            )
        )


async def read(hub: Hub, client: int) -> None:
    """Take all rows of a session; leave and come back at the cursor every few rows."""
    seen: list[int] = []
    cursor: str | None = None
    while len(seen) < ROWS:
        async with Events(hub.frames(session_of(client), after=cursor)) as events:
            some = await events.take(min(7 + client % 5, ROWS - len(seen)))
        assert {event.name for event in some} == {"PROGRESS"}
        assert {event.content["session"] for event in some} == {session_of(client)}
        seen += [event.content["n"] for event in some]
        cursor = some[-1].cursor
    assert seen == list(range(ROWS))


async def test_40_clients_miss_and_repeat_nothing_though_the_links_die(
    settings: Settings, store: RedisStateStore, tmp_path: Path
) -> None:
    async with over_tls(settings, tmp_path) as (over, proxy), Hub(over) as hub:
        readers = [asyncio.create_task(read(hub, client)) for client in range(CLIENTS)]
        writers = [asyncio.create_task(write(store, session_of(client))) for client in range(8)]
        await while_links_die(proxy, [*readers, *writers], most=4)
