"""Characters of a durable stream of text whose bytes are in several appends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx

from redis_state import RedisStateStore
from redis_state.errors import CursorGap
from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.models.streams import BEGINNING, place_of
from redis_state.testing import eventually
from tests.support.http.gateway import caller, tokens
from tests.support.scripts.replies import ask

TEXT = "a\u00e9\N{GRINNING FACE}\u4e2d\n\u4e2d\u4e2dz\N{GRINNING FACE}" * 3
ALL = ("read:*", "write:*")
_PATH = "/v1/stream/s"


@asynccontextmanager
async def reading(store: RedisStateStore) -> AsyncGenerator[httpx.AsyncClient]:
    app = create_gateway(
        store, auth=tokens, limits=GatewayLimits(events_s=0.2, max_append_bytes=1 << 20)
    )
    async with caller(app, "ann", *ALL) as http:
        yield http
    await app.aclose()


async def events(http: httpx.AsyncClient, offset: str) -> tuple[str, list[str], bool]:
    """Read events until they end; return the text, the offsets, and whether the stream is closed.

    The offsets are those after each event.
    """
    answered = await http.get(_PATH, params={"offset": offset, "live": "sse"})
    assert answered.status_code == 200, answered.text
    assert "stream-sse-data-encoding" not in answered.headers
    text, offsets, closed = "", list[str](), False
    for event in answered.content.decode().split("\n\n"):
        kind, *lines = event.split("\n")
        data = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines)
        if kind == "event: data":
            text += data
        elif kind == "event: control":
            control = json.loads(data)
            offsets.append(control["streamNextOffset"])
            closed = closed or control.get("streamClosed", False)
    return text, offsets, closed


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_a_character_in_several_appends_arrives_whole_at_every_reader(
    store: RedisStateStore, size: int
) -> None:
    data = TEXT.encode()
    async with reading(store) as http:
        await store.streams.create("s", content_type="text/plain")
        found, offset, seen = "", BEGINNING, list[str]()
        for at in range(0, len(data), size):
            await store.streams.append("s", data[at : at + size])
            # Each reader comes again at the place where the last one was.
            if at % 7 == 0:
                text, offsets, _ = await events(http, offset)
                found, offset = found + text, offsets[-1]
                seen += offsets
                assert TEXT.startswith(found)
                # By bytes the rest is there too, from the same place.
                rest = await http.get(_PATH, params={"offset": offset})
                assert found.encode() + rest.content == data[: at + size]
        await store.streams.append("s", close=True)
        text, offsets, closed = await events(http, offset)
        assert (found + text, closed) == (TEXT, True)
        seen += offsets
        assert seen == sorted(seen)
        assert (await events(http, BEGINNING))[0] == TEXT


async def test_one_reader_that_waits_gets_the_character_with_its_last_byte(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(events_s=60))
    await store.streams.create("s", content_type="text/plain")
    async with caller(app, "ann", *ALL) as http:
        waits = asyncio.create_task(events(http, BEGINNING))
        await eventually(lambda: app._usage.streams == 1, "a client waits")
        for byte in TEXT.encode():
            await store.streams.append("s", bytes([byte]))
        await store.streams.append("s", close=True)
        assert (await waits)[0] == TEXT
    await app.aclose()


async def test_rows_larger_than_a_page_are_passed_on(store: RedisStateStore) -> None:
    await store.streams.create("s", content_type="text/plain")
    text = "\u4e2d" * 200_000
    data = b"a" + text.encode()
    for at in range(0, len(data), 300_000):
        await store.streams.append("s", data[at : at + 300_000])
    async with reading(store) as http:
        found, offset = "", BEGINNING
        while len(found) <= len(text):
            more, offsets, _ = await events(http, offset)
            found, offset = found + more, offsets[-1]
        assert found == "a" + text


async def test_what_is_never_whole_is_replaced_once_the_stream_is_closed(
    store: RedisStateStore,
) -> None:
    await store.streams.create("s", content_type="text/plain")
    async with reading(store) as http:
        await store.streams.append("s", b"ab\xe4\xb8")
        text, offsets, _ = await events(http, BEGINNING)
        assert text == "ab"
        await store.streams.append("s", b"c")
        text, offsets, _ = await events(http, offsets[-1])
        assert text == "\N{REPLACEMENT CHARACTER}c"
        await store.streams.append("s", b"\xf0\x9f", close=True)
        text, _, closed = await events(http, offsets[-1])
        assert (text, closed) == ("\N{REPLACEMENT CHARACTER}", True)


async def test_a_place_within_a_row_is_of_that_row_alone(store: RedisStateStore) -> None:
    await store.streams.create("s", content_type="text/plain")
    await store.streams.append("s", b"ab\xe4")
    async with reading(store) as http:
        _, offsets, _ = await events(http, BEGINNING)
        place = offsets[-1]
        # A fork leaves its origin there.
        made = await http.put(
            "/v1/stream/f",
            headers={"stream-forked-from": _PATH, "stream-fork-offset": place},
        )
        assert made.status_code == 201, made.text
        assert (await store.streams.read("f")).body() == b"ab"
        # A server that went back has another row under the number.
        rows = store.base.keys.stream("s").rows
        entry = place_of((await store.streams.look("s")).offset)
        await ask(store.base.scripts, "DEL", rows)
        number, _, moment = entry.partition("-")
        earlier = f"{number}-{int(moment) - 1}"
        await ask(store.base.scripts, "XADD", rows, earlier, "d", b"pother")
        gone = await http.get(_PATH, params={"offset": place})
        assert (gone.status_code, gone.json()["error"]["reason"]) == (410, "rewound")
        for wrong in (f"{place}0", place[:-1], place.replace("_", "-")):
            assert (await http.get(_PATH, params={"offset": wrong})).status_code == 400
    with pytest.raises(CursorGap):
        await store.streams.read("s", offset=place)
