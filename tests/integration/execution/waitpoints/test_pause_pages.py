"""Pages of the open pauses: in the order of their opening, at the cost of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.scripts import PauseListKeys
from redis_state.testing import eventually
from redis_state.worker import OpenPause, PausePage, TaskClient, TaskContext
from redis_state.worker.tasks.waitpoints.pause_pages import list_pause_page
from redis_state.worker.tasks.waitpoints.pause_tokens import token_member
from tests.support.processes.pools import SESSION, client_of, pool
from tests.support.scripts.keys import pause_list_keys
from tests.support.scripts.replies import ask, clock_ms, fields
from tests.support.servers.sets.nodes import ask_each
from tests.support.sizes import sizes

FAR_MS = 3_600_000
_COUNTED = tuple(
    f"cmdstat_{name}:".encode() for name in ("hgetall", "hmget", "evalsha", "zrem", "zrangebyscore")
)


async def opens(ctx: TaskContext) -> Any:
    """Open pauses by name, with tags, and wait for all of them."""
    pauses = [await ctx.open_pause("why", name=name, tags=tags) for name, tags in ctx.input]
    return [(await ctx.wait_for(pause)).value for pause in pauses]


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncGenerator[TaskClient, None]:
    async with pool(store, {"opens": opens}) as client:
        yield client


def listed_keys(store: RedisStateStore) -> PauseListKeys:
    return pause_list_keys(store.base.keys)


async def opened(client: TaskClient, *names: str, session: str = SESSION) -> str:
    task = await client.submit(
        "opens", [(name, [f"of {name}"]) for name in names], session_id=session
    )

    async def there() -> bool:
        return set(names) <= {each.name for each in await client.pauses()}

    await eventually(there, f"{names} are open")
    return task


async def pages(client: TaskClient, limit: int, **filters: Any) -> list[list[str]]:
    found: list[list[str]] = []
    cursor: str | None = None
    while True:
        page = await client.list_pauses(limit=limit, after=cursor, **filters)
        found.append([each.name for each in page.pauses])
        cursor = page.cursor
        if cursor is None:
            return found


async def at_one_moment(store: RedisStateStore) -> None:
    """Have all open pauses opened in one millisecond."""
    scripts, listed = store.base.scripts, listed_keys(store)
    for key in await ask(scripts, "ZRANGE", listed.openings, 0, -1):
        await ask(scripts, "HSET", key, "opened", 7)
        await ask(scripts, "ZADD", listed.openings, 7, key)


async def copies(store: RedisStateStore, many: int, *, opened_ms: int = 1) -> list[str]:
    """Copy an open pause under other tokens, opened before it."""
    scripts, listed = store.base.scripts, listed_keys(store)
    (original, *_) = await ask(scripts, "ZRANGE", listed.openings, -1, -1)
    held = await fields(scripts, original.decode()) | {"opened": str(opened_ms).encode()}
    left_ms = int(held["expires"]) - await clock_ms(scripts)
    flat = [part for pair in held.items() for part in pair]
    keys = [f"{original.decode()}-{number:06}" for number in range(many)]
    for start in range(0, many, 500):
        some = keys[start : start + 500]
        await asyncio.gather(*(ask(scripts, "HSET", key, *flat) for key in some))
        await asyncio.gather(*(ask(scripts, "PEXPIRE", key, FAR_MS) for key in some))
        await asyncio.gather(
            *(
                scripts.list_pause(
                    listed, member=key, opened=opened_ms + int(key[-6:]), ttl_ms=left_ms
                )
                for key in some
            )
        )
    return keys


async def test_pages_go_by_the_opening_and_outlive_decisions(
    store: RedisStateStore, client: TaskClient
) -> None:
    await opened(client, "a", "b", "c")
    await opened(client, "d", "e", session="ö/{x}")
    (names,) = await pages(client, 5)
    times = {each.name: each.opened_at for each in await client.pauses()}
    assert [times[name] for name in names] == sorted(times.values())
    assert await pages(client, 2) == [names[:2], names[2:4], names[4:]]
    of_session = [name for name in names if name in "abc"]
    assert await pages(client, 2, session_id=SESSION) == [of_session[:2], of_session[2:]]
    assert [name for page in await pages(client, 2, tag="of e") for name in page] == ["e"]
    first = await client.list_pauses(limit=1)
    # The pause at which the page ended is decided.
    (pause,) = first.pauses
    assert pause.token is not None
    await client.approve(pause.token)
    rest = await client.list_pauses(limit=9, after=first.cursor)
    assert [each.name for each in rest.pauses] == names[1:]
    assert await ask(store.base.scripts, "ZCARD", listed_keys(store).openings) == 4


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_those_of_one_moment_are_neither_skipped_nor_repeated(
    store: RedisStateStore, client: TaskClient, limit: int
) -> None:
    names = [f"p{number}" for number in range(9)]
    await opened(client, *names)
    await at_one_moment(store)
    found = await pages(client, limit)
    assert all(len(page) <= limit for page in found)
    assert sorted(name for page in found for name in page) == names
    of_session = await pages(client, limit, session_id=SESSION)
    assert [name for page in of_session for name in page] == [n for page in found for n in page]


async def test_a_cursor_is_of_one_listing_and_names_nobody(client: TaskClient) -> None:
    await opened(client, "a", "b", session="secret")
    page = await client.list_pauses(limit=1)
    assert page.cursor is not None
    assert len(page.cursor) < 40
    others: list[dict[str, Any]] = [{"tag": "x"}, {"session_id": "s"}, {"decider": "ann"}]
    for wrong in others:
        with pytest.raises(InvalidField):
            await client.list_pauses(after=page.cursor, **wrong)
    for value in ("", "AAAA", page.cursor[:-2]):
        with pytest.raises(InvalidField):
            await client.list_pauses(after=value)
    for limit in (0, 1001):
        with pytest.raises(InvalidField):
            await client.list_pauses(limit=limit)


async def test_what_an_older_version_listed_is_listed_in_its_place(
    store: RedisStateStore, client: TaskClient
) -> None:
    """It writes the index by expiry only, and takes off that one only."""
    scripts, listed = store.base.scripts, listed_keys(store)
    await opened(client, "a", "b", "c")
    (names,) = whole = await pages(client, 9)
    older = await ask(scripts, "ZRANGE", listed.openings, 0, 1)
    await ask(scripts, "ZREM", listed.openings, *older)
    assert await pages(client, 2) == [names[:2], names[2:]]
    assert await ask(scripts, "ZCARD", listed.openings) == 3
    await ask(scripts, "DEL", listed.openings)
    assert await pages(client, 9) == whole
    (pause,) = (await client.list_pauses(limit=1)).pauses
    assert pause.token is not None
    key = store.base.keys.session_token(pause.token)
    assert key is not None
    await client.approve(pause.token)
    await ask(scripts, "ZADD", listed.openings, 1, key)
    assert await pages(client, 9) == [names[1:]]
    assert await ask(scripts, "ZCARD", listed.openings) == 2


async def test_few_among_many_come_in_short_pages(
    store: RedisStateStore, client: TaskClient
) -> None:
    await opened(client, "a")
    await copies(store, 2_100)
    await opened(client, "z")
    found = await pages(client, 20, tag="of z")
    assert [name for page in found for name in page] == ["z"]
    assert 2 <= len(found) <= 4


@pytest.mark.parametrize("many", sizes(2_000, 100_000))
async def test_a_page_costs_the_page_however_many_are_open(
    store: RedisStateStore, many: int
) -> None:
    async with pool(store, {"opens": opens}) as served:
        await opened(served, "a", "b")
    # The pool is gone: only the reader talks to the server.
    async with client_of(store) as client:
        await copies(store, 100)
        few = await _cost(store, client)
        await copies(store, many)
        assert await ask(store.base.scripts, "ZCARD", listed_keys(store).openings) == many + 2
        full = await _cost(store, client)
    print(f"commands and bytes of two pages at 102 and at {many + 2} pauses:", few, full)  # noqa: T201
    assert full[0] == few[0]
    assert abs(full[1] - few[1]) <= few[1] * 0.1


async def test_a_page_of_sessions_reads_no_more_pauses_whole_than_it_has(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"opens": opens}) as served:
        await opened(served, "c", session="other")
        await opened(served, "a", "b")
    scripts = store.base.scripts
    index, keys = store.base.keys.tasks(SESSION), await copies(store, 2_100)
    score = -(await clock_ms(scripts) + FAR_MS)
    for key in keys:
        await ask(scripts, "ZADD", index, score, token_member(key))

    async def page(limit: int, after: str | None, *names: str) -> PausePage:
        return await list_pause_page(
            store,
            ["other", SESSION, "none"],
            listing=[*names],
            limit=limit,
            after=after,
            wanted=lambda pause: not names or pause.name in names,
        )

    before = await whole_reads(store)
    first = await page(25, None)
    second = await page(25, first.cursor)
    assert [len(each.pauses) for each in (first, second)] == [25, 25]
    assert await whole_reads(store) - before <= 2 * 26
    # All of them come once, in the order of their opening.
    found: list[OpenPause] = []
    cursor: str | None = None
    while found == [] or cursor is not None:
        part = await page(1_000, cursor)
        found += part.pauses
        cursor = part.cursor
    times = [each.opened_at for each in found]
    assert (len(found), times) == (2_103, sorted(times))
    assert [each.session_id for each in found[-3:]] == ["other", SESSION, SESSION]
    # Few among many come in short pages.
    short = await page(20, None, "c")
    assert (short.pauses, short.cursor is None) == ([], False)
    while not short.pauses:
        short = await page(20, short.cursor, "c")
    assert [each.name for each in short.pauses] == ["c"]
    # What is gone is listed no more.
    await ask(scripts, "DEL", keys[0])
    await page(1, None)
    assert await ask(scripts, "ZSCORE", index, token_member(keys[0])) is None


async def whole_reads(store: RedisStateStore) -> int:
    """Count how many hashes were read whole."""
    infos: list[bytes] = await ask_each(store.transport, "INFO", "commandstats")
    return sum(
        int(line.partition(b"calls=")[2].partition(b",")[0])
        for info in infos
        for line in info.splitlines()
        if line.startswith(b"cmdstat_hgetall:")
    )


async def _cost(store: RedisStateStore, client: TaskClient) -> tuple[int, int]:
    """Count the commands and the bytes of the first page and of the second."""
    before = await commands_and_bytes(store)
    page = await client.list_pauses(limit=25)
    assert len(page.pauses) == 25
    page = await client.list_pauses(limit=25, after=page.cursor)
    assert len(page.pauses) == 25
    after = await commands_and_bytes(store)
    return after[0] - before[0], after[1] - before[1]


async def commands_and_bytes(store: RedisStateStore) -> tuple[int, int]:
    """Count the commands that a server executed for a caller, and the bytes of its replies."""
    infos: list[bytes] = await ask_each(store.transport, "INFO", "commandstats")
    calls = [
        int(line.partition(b"calls=")[2].partition(b",")[0])
        for info in infos
        for line in info.splitlines()
        if line.startswith(_COUNTED)
    ]
    stats: list[bytes] = await ask_each(store.transport, "INFO", "stats")
    sent = [
        int(line.partition(b":")[2])
        for each in stats
        for line in each.splitlines()
        if line.startswith(b"total_net_output_bytes:")
    ]
    return sum(calls), sum(sent)
