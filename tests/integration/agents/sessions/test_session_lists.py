"""Sessions are listed newest first, filtered and in pages, at a cost that does not grow."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    SessionHeader,
    SessionStatus,
    SessionStore,
)
from redis_state.errors import (
    InvalidField,
)
from redis_state.scripts import Reply
from redis_state.testing import eventually
from redis_state.transport.keys import agent_shard
from tests.support.agents.sessions import fresh, ids, info


async def test_a_listing_filters_and_pages_newest_first(sessions: SessionStore) -> None:
    made: list[SessionHeader] = []
    for number in range(40):
        session = fresh(f"s{number}", name="ann" if number % 2 else "bo:b")
        if number % 4 == 0:
            session = session.suspended()
        made.append((await sessions.create(session)).header)
    newest = [header.session_id for header in reversed(made)]
    assert await ids(sessions) == newest
    bobs = [f"s{n}" for n in range(39, -1, -1) if n % 2 == 0]
    suspended = [f"s{n}" for n in range(39, -1, -1) if n % 4 == 0]
    assert await ids(sessions, agent_name="bo:b") == bobs
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == suspended
    assert await ids(sessions, status=SessionStatus.SUSPENDED, agent_name="bo:b") == suspended
    assert await ids(sessions, status=SessionStatus.SUSPENDED, agent_name="ann") == []
    assert await ids(sessions, agent_name="bo") == []
    walked: list[str] = []
    cursor: str | None = None
    while True:
        page = await sessions.list_headers(after=cursor, limit=7)
        walked += [header.session_id for header in page.headers]
        if page.at_end:
            break
        cursor = page.cursor
        await sessions.create(fresh())  # what comes meanwhile stands before the first page
    assert walked == newest


async def test_a_listing_follows_a_changed_status_and_forgets_what_is_gone(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    brief = SessionStore(store, lifetime=timedelta(milliseconds=1))
    session = await sessions.create(fresh("a"))
    await sessions.save(session.suspended())
    await sessions.create(fresh("b"))
    # In the shard of another one, whose listing outlives it.
    gone = next(f"gone{n}" for n in count() if agent_shard(f"gone{n}") == agent_shard("a"))
    await brief.create(fresh(gone))
    await sessions.create(fresh("deleted"))
    await sessions.delete("deleted")

    async def expired() -> bool:
        return not await sessions.exists(gone)

    await eventually(expired, "the session has expired")
    assert await ids(sessions) == ["b", "a"]
    assert await ids(sessions, status=SessionStatus.ACTIVE) == ["b"]
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == ["a"]
    indexes = map(store.base.keys.agent_sessions, range(16))
    sender = store.transport.sender
    found = [await sender.send("ZRANGE", key, 0, -1, repeatable=True) for key in indexes]
    names = Counter(member.rpartition(b":")[2] for members in found for member in members)
    # Two lists were looked at; the other two of the expired one go when they are, or at a save.
    assert names.pop(gone.encode(), 0) in (0, 2)
    assert names == {b"a": 4, b"b": 4}
    await sessions.save((await sessions.get("a")).resumed())
    left = await sender.send(
        "ZRANGE", store.base.keys.agent_sessions(agent_shard("a")), 0, -1, repeatable=True
    )
    assert not [member for member in left if member.endswith(gone.encode())]


async def test_an_expired_session_that_is_created_anew_is_listed_once_and_as_it_is(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    # Places of a former life that no save has swept yet.
    index, sender = store.base.keys.agent_sessions(agent_shard("a")), store.transport.sender
    places = [f"{tag}:0000000000000001:a" for tag in ("/", "suspended/")]
    await sessions.create(fresh("a"))
    for place in places:
        await sender.send("ZADD", index, 0, place, repeatable=True)
    assert (await ids(sessions)).count("a") == 1
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == []


async def test_a_page_among_many_that_have_expired_costs_a_few_round_trips_to_find(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    await sessions.create(fresh("kept", name="kept"))
    index, sender = store.base.keys.agent_sessions(agent_shard("kept")), store.transport.sender
    for n in range(900):
        # Of other lives of one id: what is listed is there, and is none of them.
        place = f"/:{n + 10**15:016d}:kept"
        await sender.send("ZADD", index, 0, place, repeatable=True)
    requested = await info(store, "total_commands_processed")
    assert await ids(sessions, limit=1) == ["kept"]
    spent = await info(store, "total_commands_processed") - requested
    # A look into each place, and sixteen lists for each hundred.
    assert spent < 900 + 16 * 12 + 50, spent


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 1_001}, {"after": "x"}])
async def test_a_listing_refuses_what_is_no_page(
    options: dict[str, Any], sessions: SessionStore
) -> None:
    with pytest.raises(InvalidField):
        await sessions.list_headers(**options)


async def plant(store: RedisStateStore, start: int, end: int) -> None:
    """Store sessions with states of 2 kB, a thousand at once."""
    keys, scripts = store.base.keys, store.base.scripts
    sample = json.dumps(SessionHeader(session_id="S", agent_name="a", version=1).to_dict())

    def planted(session: str) -> Awaitable[Reply]:
        header = sample.replace('"S"', f'"{session}"').encode()
        return scripts.save_session(
            keys.agent_session(session),
            {"header": header, "head": b"x" * 2_000},
            index=keys.agent_sessions(agent_shard(session)),
            expiries=keys.agent_expiries(agent_shard(session)),
            session_id=session,
            born="1",
            tags="/ active/ /a active/a",
            expected=0,
            base="",
            dropped=(),
            write="w",
            ttl_ms=3_600_000,
        )

    for portion in range(start, end, 1_000):
        await asyncio.gather(*(planted(f"s{n}") for n in range(portion, portion + 1_000)))


@pytest.mark.slow
@pytest.mark.role("admin")
@pytest.mark.parametrize("number", [10_000, pytest.param(100_000, marks=pytest.mark.full)])
async def test_a_page_of_many_sessions_costs_what_one_of_1_000_does(
    store: RedisStateStore, sessions: SessionStore, number: int
) -> None:
    async def cost(**options: Any) -> tuple[int, int]:
        before = (
            await info(store, "total_net_output_bytes"),
            await info(store, "total_commands_processed"),
        )
        page = await sessions.list_headers(limit=100, **options)
        assert len(page.headers) == 100
        after = (
            await info(store, "total_net_output_bytes"),
            await info(store, "total_commands_processed"),
        )
        return after[0] - before[0], after[1] - before[1]

    await plant(store, 0, 1_000)
    few = await cost(), await cost(status=SessionStatus.ACTIVE, agent_name="a")
    await plant(store, 1_000, number)
    many = await cost(), await cost(status=SessionStatus.ACTIVE, agent_name="a")
    for (few_bytes, few_commands), (many_bytes, many_commands) in zip(few, many, strict=True):
        assert many_commands == few_commands
        assert many_bytes < 2 * few_bytes
        assert many_bytes < 100 * 2_000  # less than the states alone
    await store.delete_everything()
