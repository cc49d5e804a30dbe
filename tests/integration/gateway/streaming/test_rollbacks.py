"""Streams when the server's history goes back: a client learns of it, and repeats nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway.streaming.hub import Hub
from tests.support.http.event_streams import Event, Events
from tests.support.samples import update
from tests.support.servers.changes.rollback import rolling_back

READ = 10


async def save(store: RedisStateStore, *names: str) -> None:
    for name in names:
        await store.save_update(update(name, name, task_id="t"))


def names_in(events: list[Event]) -> list[str]:
    return [event.data["update_id"] for event in events if event.name != "resync"]


@pytest.mark.parametrize(("lost", "new"), [(4, 1), (4, 7), (10, 2)])
async def test_a_stream_says_that_history_went_back_and_goes_on_with_what_is_new(
    lost: int, new: int
) -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
        Hub(store) as hub,
    ):
        await save(store, *(f"old {n}" for n in range(READ - lost)))
        await server.mark()
        await save(store, *(f"old {n}" for n in range(READ - lost, READ)))
        async with (
            Events(hub.frames("session")) as client,
            Events(hub.frames("session", after="$")) as tail,
        ):
            assert len(await client.take(READ)) == READ
            await tail.opened()
            await server.go_back()
            fresh = [f"new {n}" for n in range(new)]
            await save(store, *fresh)
            for each in (client, tail):
                events = await each.take(1 + new)
                assert [event.name for event in events].count("resync") == 1
                assert names_in(events) == fresh
            cursor = events[-1].cursor
        # A client that was away comes back with the cursor of before, and another with the new one.
        await save(store, "last")
        async with Events(hub.frames("session", after=cursor)) as late:
            assert names_in(await late.take(1)) == ["last"]
