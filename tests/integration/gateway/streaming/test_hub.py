"""The hub: what a client gets, whatever the others do."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, TaskUnknown
from redis_state.gateway.streaming.client_stream import ClientStream
from redis_state.gateway.streaming.events import FrameWriter
from redis_state.gateway.streaming.hub import Hub
from redis_state.models import StateUpdate, UpdateType
from redis_state.models.tasks import utc_now
from redis_state.testing import eventually
from tests.support.http.event_streams import PATIENCE_S, Event, EventParser, Events, read_events

SESSION = "s {1}%\n"


def update(n: int, *, task: str = "t", session: str = SESSION, **content: Any) -> StateUpdate:
    return StateUpdate(
        session_id=session,
        task_id=task,
        update_id=f"u{n}",
        update_type=UpdateType.PROGRESS,
        content={"n": n, **content},
    )


async def save(store: RedisStateStore, *numbers: int, **options: Any) -> None:
    for n in numbers:
        await store.save_update(update(n, **options))


def numbers(events: list[Event]) -> list[int]:
    return [event.content["n"] for event in events if event.name == "PROGRESS"]


async def test_a_client_gets_what_is_kept_and_then_what_comes(store: RedisStateStore) -> None:
    await save(store, 1, 2, 3)
    async with Hub(store) as hub, Events(hub.frames(SESSION)) as client:
        assert numbers(await client.take(3)) == [1, 2, 3]
        await save(store, 4)
        assert numbers(await client.take(1)) == [4]


async def test_the_last_cursor_reads_on_without_a_hole_or_a_repeat(store: RedisStateStore) -> None:
    await save(store, 1, 2, 3)
    async with Hub(store) as hub:
        async with Events(hub.frames(SESSION)) as client:
            seen = await client.take(2)
        async with Events(hub.frames(SESSION, after=seen[1].cursor)) as client:
            assert numbers(await client.take(1)) == [3]


async def test_the_tail_has_only_what_comes(store: RedisStateStore) -> None:
    await save(store, 1, 2)
    async with Hub(store) as hub, Events(hub.frames(SESSION, after="$")) as client:
        await client.opened()
        await save(store, 3)
        assert numbers(await client.take(1)) == [3]


async def test_many_clients_share_one_watch_which_ends_after_them(store: RedisStateStore) -> None:
    async with Hub(store, linger_s=0.05) as hub:
        for _ in range(3):
            clients = [Events(hub.frames(SESSION, after="$")) for _ in range(20)]
            for client in clients:
                await client.opened()
            assert (hub.clients, hub.watches) == (20, 1)
            await save(store, 1)
            for client in clients:
                await client.aclose()
            await eventually(lambda: hub.watches == 0, "the watch to end")
            assert hub.clients == hub.held == 0
        assert len(asyncio.all_tasks()) <= 6


async def test_what_is_held_for_a_client_is_256_kib_or_one_row(store: RedisStateStore) -> None:
    sizes = [100] * 40 + [60_000] * 12 + [400_000, 100, 60_000]
    for n, size in enumerate(sizes):
        await save(store, n, text="x" * size)
    held, seen, parser = list[list[int]](), list[Event](), EventParser()
    async with Hub(store) as hub, aclosing(hub.frames(SESSION)) as client:
        async with asyncio.timeout(PATIENCE_S):
            while numbers(seen)[-1:] != [len(sizes) - 1]:
                seen += parser.feed(await anext(client))
                held.append([len(frame.data) for frame in client._queue])
    assert numbers(seen) == list(range(len(sizes)))
    assert all(sum(frames) <= 256 << 10 or len(frames) == 1 for frames in held)
    # A page of it is held, and not a row at a time.
    assert max(map(sum, held)) > 100_000


@pytest.mark.parametrize("after", ["", "x", "1", "-1-0", "1-2-3", "1-" + "9" * 30, "1-2\n", "٣-1"])
async def test_a_malformed_cursor_is_refused_before_the_stream(
    store: RedisStateStore, after: str
) -> None:
    async with Hub(store) as hub:
        with pytest.raises(InvalidField) as caught:
            hub.frames(SESSION, after=after)
        assert caught.value.field == "after"


async def test_other_bad_arguments_are_named(store: RedisStateStore) -> None:
    bad: dict[str, Any] = {
        "types": ["NOPE"],
        "session_id": 5,
        "task_id": 5,
        "expires_at": utc_now().replace(tzinfo=None),
    }
    async with Hub(store) as hub:
        for field, value in bad.items():
            given: dict[str, Any] = {"session_id": SESSION, field: value}
            with pytest.raises(InvalidField) as caught:
                hub.frames(**given)
            assert caught.value.field == field
        with pytest.raises(TaskUnknown):
            await anext(hub.frames(SESSION, task_id="nope"))


async def test_a_trimmed_cursor_gets_one_resync(store: RedisStateStore) -> None:
    small = store.settings.model_copy(update={"max_updates_per_session": 4})
    async with RedisStateStore(small) as bounded, Hub(bounded, linger_s=0.05) as hub:
        await save(bounded, 1)
        async with Events(hub.frames(SESSION)) as client:
            first = (await client.take(1))[0]
        await eventually(lambda: hub.watches == 0, "the frames to be dropped")
        await save(bounded, *range(2, 60))
        kept = [each.content["n"] for each in await bounded.list_updates(SESSION)]
        async with Events(hub.frames(SESSION, after=first.cursor)) as client:
            seen = await client.take(1 + len(kept))
        assert seen[0].name == "resync"
        assert seen[0].data["missed"] == kept[0] - 2
        assert seen[0].data["reason"] == "trimmed"
        assert numbers(seen) == kept


@pytest.mark.parametrize("watched", [True, False])
async def test_a_cursor_of_another_session_loses_no_row(
    store: RedisStateStore, *, watched: bool
) -> None:
    async with Hub(store) as hub:
        await save(store, *range(5))
        foreign = (await store.read_updates(SESSION)).cursor
        await save(store, *range(9), session="other")
        async with AsyncExitStack() as stack:
            if watched:
                tail = await stack.enter_async_context(Events(hub.frames("other", after="$")))
                await tail.opened()
            async with Events(hub.frames("other", after=foreign)) as client:
                seen = await client.take(10)
        assert [event.name for event in seen].index("resync") == 0
        assert numbers(seen) == list(range(9))


async def test_a_session_that_is_deleted_while_it_is_watched_goes_on(
    store: RedisStateStore,
) -> None:
    async with Hub(store) as hub, Events(hub.frames(SESSION)) as client:
        await save(store, 1, 2)
        first, _ = await client.take(2)
        await store.clear_session(SESSION)
        await save(store, 3)
        # The numbers of a log outlive it: who saw all misses nothing; others learn that they did.
        assert numbers(await client.take(1)) == [3]
        async with Events(hub.frames(SESSION, after=first.cursor)) as late:
            seen = await late.take(2)
        assert [event.name for event in seen] == ["resync", "PROGRESS"]
        assert (seen[0].data["missed"], numbers(seen)) == (1, [3])


async def test_a_token_that_expires_ends_the_stream(store: RedisStateStore) -> None:
    soon = utc_now() + timedelta(milliseconds=50)
    async with Hub(store, linger_s=0.05) as hub:
        events = await read_events(hub.frames(SESSION, expires_at=soon))
        assert [event.name for event in events] == ["expired"]


async def test_an_idle_stream_has_heartbeats(store: RedisStateStore) -> None:
    async with Hub(store, heartbeat_s=0.05) as hub, aclosing(hub.frames(SESSION)) as chunks:
        assert (await anext(chunks)).startswith(b"retry: ")
        assert await anext(chunks) == b":\n\n"
        assert await anext(chunks) == b":\n\n"


async def test_a_row_is_encoded_once_for_all_clients_that_wait(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []
    row = FrameWriter.row

    def counted(self: FrameWriter, cursor: str, given: StateUpdate, run: int | None = None) -> Any:
        encoded.append(given.update_id)
        return row(self, cursor, given, run)

    monkeypatch.setattr(FrameWriter, "row", counted)
    async with Hub(store) as hub, AsyncExitStack() as stack:
        clients = [hub.frames(SESSION, after="$") for _ in range(40)]
        clients += [hub.frames(SESSION, after="$", types=["PROGRESS"]) for _ in range(10)]
        for client in clients:
            await stack.enter_async_context(aclosing(client))
            await anext(client)
        for n in range(3):
            await save(store, n)
            # Each is sent the same bytes, not only equal ones.
            assert len({id(chunk) for chunk in [await anext(client) for client in clients]}) == 1
    assert encoded == ["u0", "u1", "u2"]


async def test_rights_that_are_due_together_hold_up_nothing_else(store: RedisStateStore) -> None:
    turn, now, checked, checked_at = 0, 0.0, Counter[int](), list[float]()

    async def has_right() -> bool:
        began = monotonic()
        while monotonic() < began + 0.001:
            pass
        checked[turn] += 1
        checked_at.append(monotonic())
        return True

    async def read(client: ClientStream) -> None:
        async for _ in client:
            pass

    async def work() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with Hub(store, heartbeat_s=0.05) as hub, AsyncExitStack() as stack:
        hub.time = lambda: now
        clients = [hub.frames(SESSION, after="$", has_right=has_right) for _ in range(100)]
        for client in clients:
            await stack.enter_async_context(aclosing(client))
            await anext(client)
        (feed,) = hub._feeds.values()
        tasks = [asyncio.create_task(read(client)) for client in clients]
        await eventually(lambda: len(feed.waiting) == 100, "all wait")
        tasks.append(asyncio.create_task(work()))
        now = 1.0
        await eventually(lambda: checked.total() == 100, "each right is checked")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert max(checked.values()) <= 4
    # They took 0.1 s of the loop or more, and left it three times as long for what else is due.
    assert checked_at[-1] - checked_at[0] > 0.3


async def test_the_end_of_the_hub_tells_every_client_when_to_come_back(
    store: RedisStateStore,
) -> None:
    async with Hub(store) as hub:
        clients = [Events(hub.frames(SESSION)) for _ in range(20)]
        for client in clients:
            await client.opened()
        ends = [asyncio.create_task(client.rest()) for client in clients]
    retries = [(await end)[-1].retry for end in ends]
    assert None not in retries
    assert len(set(retries)) > 1
