"""Durable streams in a store: what calls leave behind, what is refused, crashes, processes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    ConfigError,
    CursorGap,
    InvalidField,
    PayloadTooLarge,
    PayloadUnreadable,
    ProducerRefused,
    StreamDeleted,
    StreamRefused,
    StreamUnknown,
)
from redis_state.models.streams import (
    FIRST_OFFSET,
    ProducerBatch,
    StreamLifetime,
    StreamOrigin,
    check_path,
    offset_of,
    place_of,
)
from redis_state.stores.streams.rows import split_messages
from redis_state.testing import eventually
from tests.support.payloads import KEYS, dump, opened
from tests.support.processes import children
from tests.support.samples import changed
from tests.support.servers.changes.rollback import OwnServer, rolling_back
from tests.support.servers.faults import short_directory, start_process
from tests.support.servers.proxies.command_proxy import CommandProxy

TEXT = "text/plain"


async def body(store: RedisStateStore, path: str, offset: str = "-1") -> bytes:
    """Read a stream to its end, page by page."""
    found = b""
    while True:
        page = await store.streams.read(path, offset=offset)
        found += b"".join(page.rows)
        offset = page.offset
        if page.at_end:
            return found


async def test_a_stream_that_is_created_alike_is_the_same(store: RedisStateStore) -> None:
    streams = store.streams
    first, is_new = await streams.create("a/b", content_type="Text/Plain", data=b"x")
    assert is_new
    again, is_new = await streams.create("a/b", content_type="text/plain; charset=utf-8")
    assert (again, is_new) == (first, False)
    others: list[dict[str, Any]] = [
        {},
        {"content_type": TEXT, "closed": True},
        {"content_type": TEXT, "lifetime": StreamLifetime(ttl_s=60)},
        {"content_type": TEXT, "lifetime": StreamLifetime(expires_at=datetime.now(UTC))},
        {"content_type": TEXT, "origin": StreamOrigin("a/b")},
    ]
    for other in others:
        with pytest.raises(StreamRefused) as refused:
            await streams.create("a/b", **other)
        assert refused.value.reason == "exists"
    assert await body(store, "a/b") == b"x"


async def test_of_callers_at_once_one_creates(store: RedisStateStore) -> None:
    made = await asyncio.gather(*(store.streams.create("s", data=b"x") for _ in range(10)))
    assert sum(is_new for _, is_new in made) == 1
    assert len({view.stream_id for view, _ in made}) == 1
    assert await body(store, "s") == b"x"


@given(st.text(max_size=30))
def test_a_path_has_parts_and_nothing_hidden_in_them(path: str) -> None:
    try:
        assert check_path(path) == path
        refused = False
    except InvalidField:
        refused = True
    hidden = {"", ".", "..", "*"} & set(path.split("/")) or not path.isprintable()
    assert hidden or not refused
    assert not hidden or refused or not any(ord(each) < 32 for each in path)


async def test_odd_paths_are_streams_of_their_own(store: RedisStateStore) -> None:
    paths = ["a", "a/b", "a%2Fb", "a:b", "{a}", "a b", "ä", "*a", "a*?[b]", "\ud800", "x" * 999]
    for path in paths:
        await store.streams.create(path, content_type=TEXT, data=path.encode(errors="replace"))
    for path in paths:
        assert await body(store, path) == path.encode(errors="replace")
        await store.streams.delete(path)


FAR = datetime(2999, 1, 1, tzinfo=UTC)
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    *(("path", "create", {"path": path}) for path in ("", "a//b", "a/../b", "a\0", "x" * 1_001, 7)),
    *(
        ("content_type", "create", {"content_type": kind})
        for kind in ("text", "text/plain\r\nx: y", "x" * 300 + "/x")
    ),
    ("ttl_s", "create", {"lifetime": StreamLifetime(ttl_s=-1)}),
    ("ttl_s", "create", {"lifetime": StreamLifetime(ttl_s=1 << 40)}),
    ("expires_at", "create", {"lifetime": StreamLifetime(expires_at=FAR)}),
    ("expires_at", "create", {"lifetime": StreamLifetime(expires_at=FAR.replace(tzinfo=None))}),
    ("lifetime", "create", {"lifetime": StreamLifetime(1, FAR)}),
    ("fork_offset", "create", {"origin": StreamOrigin("there", "9" * 16 + "_" + "9" * 16)}),
    ("offset", "create", {"origin": StreamOrigin("there", "9")}),
    ("fork_part", "create", {"origin": StreamOrigin("there", None, 1)}),
    ("fork_part", "create", {"origin": StreamOrigin("there", FIRST_OFFSET, 9)}),
    ("data", "append", {"path": "there"}),
    ("sequence", "append", {"path": "there", "data": b"x", "sequence": "x" * 1_001}),
    *(
        (field, "append", {"path": "there", "data": b"x", "batch": batch})
        for field, batch in {
            "producer": ProducerBatch("", 0, 0),
            "epoch": ProducerBatch("p", -1, 0),
            "number": ProducerBatch("p", 0, 2**53),
        }.items()
    ),
    ("data", "append", {"path": "json", "data": b"{"}),
    ("data", "append", {"path": "json", "data": b"[]"}),
    ("offset", "read", {"path": "there", "offset": ""}),
    ("offset", "read", {"path": "there", "offset": "1-1"}),
    ("most_bytes", "read", {"path": "there", "most_bytes": 0}),
]


@pytest.mark.parametrize(("field", "method", "given_values"), WRONG)
async def test_bad_input_is_refused_and_named(
    store: RedisStateStore, field: str, method: str, given_values: dict[str, Any]
) -> None:
    await store.streams.create("there", data=b"there")
    await store.streams.create("json", content_type="application/json")
    with pytest.raises(InvalidField) as refused:
        await getattr(store.streams, method)(**({"path": "s"} | given_values))
    assert refused.value.field == field
    with pytest.raises(StreamUnknown):
        await store.streams.look("s")
    assert await body(store, "there") == b"there"
    assert await body(store, "json") == b""


@pytest.mark.parametrize(
    ("given_body", "messages"),
    [
        (b'{"a": [1, 2]}', [b'{"a": [1, 2]}']),
        (b' [ 1 , "x,]" ,[2] ] ', [b"1", b'"x,]"', b"[2]"]),
        (b"[[1,2],[3]]", [b"[1,2]", b"[3]"]),
        (b"[[]]", [b"[]"]),
        (b"null", [b"null"]),
        (b"1.50", [b"1.50"]),
        (b"9" * 5_000, [b"9" * 5_000]),
        ('"ä\\ud800"'.encode(), ['"ä\\ud800"'.encode()]),
    ],
)
def test_messages_stay_as_they_were_written(given_body: bytes, messages: list[bytes]) -> None:
    assert split_messages(given_body) == messages


@pytest.mark.parametrize(
    "wrong",
    [b"", b" ", b"[1", b"[1,]", b"[1 2]", b"1 2", b"NaN", b"[Infinity]", b"\xff", b"[" * 9_999],
)
def test_what_is_no_json_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidField):
        split_messages(wrong)


@given(st.tuples(st.integers(0, 10**15), st.integers(0, 10**15)))
def test_offsets_have_the_order_of_their_places(place: tuple[int, int]) -> None:
    n, ms = place
    offset = offset_of(f"{n}-{ms}")
    assert place_of(offset) == f"{n}-{ms}"
    assert offset < offset_of(f"{n + 1}-0")
    assert "-1" < offset < "now"


@pytest.mark.role("any", why="it lists keys")
async def test_rows_are_sealed_and_bytes_that_look_sealed_are_bytes(settings: Settings) -> None:
    rows = [b"very secret", b'\r"sealed:f:abc"', b"p", b"\0\xff", b'\r"sealed:o:x"']
    async with opened(settings) as clear, opened(settings, KEYS[0]) as sealing:
        await clear.streams.create("s")
        for row in rows:
            await clear.streams.append("s", row)
            await sealing.streams.append("s", row)
        page = await sealing.streams.read("s")
        assert list(page.rows) == [row for row in rows for _ in range(2)]
        with pytest.raises(PayloadUnreadable):
            await clear.streams.read("s")
        await sealing.streams.create("t", data=rows[0])
        await sealing.streams.create("f", origin=StreamOrigin("t", FIRST_OFFSET, 4))
        assert await body(sealing, "f") == b"very"
        stored = await dump(sealing)
        assert not any(b"very" in value for key, value in stored.items() if "{s}" not in key)


async def test_a_row_has_a_largest_size(settings: Settings) -> None:
    small = settings.model_copy(update={"max_payload_bytes": 10})
    async with RedisStateStore(small) as store:
        await store.streams.create("s")
        with pytest.raises(PayloadTooLarge):
            await store.streams.append("s", b"x" * 11)
        await store.streams.append("s", b"x" * 10)


async def test_what_is_kept_is_bounded_and_a_gap_is_told(settings: Settings) -> None:
    bounded = settings.model_copy(update={"max_rows_per_stream": 3, "max_producers_per_stream": 1})
    async with RedisStateStore(bounded) as store:
        await store.streams.create("s", content_type=TEXT)
        done = [
            await store.streams.append("s", b"%d" % n, batch=ProducerBatch("p", 0, n))
            for n in range(5)
        ]
        with pytest.raises(ProducerRefused) as refused:
            await store.streams.append("s", b"x", batch=ProducerBatch("q", 0, 0))
        assert refused.value.reason == "many"
        with pytest.raises(CursorGap) as gap:
            await store.streams.read("s", offset=done[0].offset)
        assert (gap.value.reason, gap.value.missed) == ("trimmed", 1)
        assert await body(store, "s", gap.value.resume_after) == b"234"
        assert await body(store, "s") == b"234"
        # A fork of it has what it has.
        await store.streams.create("f", origin=StreamOrigin("s"))
        assert await body(store, "f") == b"234"
        with pytest.raises(CursorGap):
            await store.streams.read("f", offset=FIRST_OFFSET)
    with pytest.raises(ConfigError):
        RedisStateStore.from_url(max_producers_per_stream=0)


@pytest.mark.role("any", why="it lists keys")
async def test_a_stream_expires_with_all_its_keys(store: RedisStateStore) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    await store.streams.create("ttl", data=b"x", lifetime=StreamLifetime(ttl_s=1))
    await store.streams.create("end", data=b"x", lifetime=StreamLifetime(expires_at=soon))

    async def are_gone() -> bool:
        return not [key for key in await dump(store) if ":stream" in key]

    await eventually(are_gone, "both streams expire")
    _, is_new = await store.streams.create("ttl", content_type="application/json")
    assert is_new


async def test_callers_that_make_one_fork_make_one(store: RedisStateStore) -> None:
    streams = store.streams
    await streams.create("o", content_type=TEXT)
    ends = [(await streams.append("o", b"%03d" % n)).offset for n in range(700)]
    origin = StreamOrigin("o", ends[650], 2)
    made = await asyncio.gather(
        *(streams.create("f", origin=origin, data=b"own") for _ in range(5))
    )
    assert sum(is_new for _, is_new in made) == 1
    assert len({view.stream_id for view, _ in made}) == 1
    expected = b"".join(b"%03d" % n for n in range(651)) + b"65" + b"own"
    assert await body(store, "f") == expected
    assert await body(store, "f", ends[649]) == b"65065own"
    await streams.append("o", b"not of the fork")
    assert await body(store, "f") == expected


async def test_a_fork_that_was_begun_and_left_is_made_by_who_asks_again(
    store: RedisStateStore, settings: Settings
) -> None:
    streams = store.streams
    await streams.create("o", data=b"1")
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as far,
    ):
        with proxy.answer("copy_stream"), pytest.raises(BackendUnavailable):
            await far.streams.create("f", origin=StreamOrigin("o"))
    for call in (streams.read("f"), streams.append("f", b"x"), streams.look("f")):
        with pytest.raises(StreamUnknown):
            await call
    _, is_new = await streams.create("f", origin=StreamOrigin("o"))
    assert is_new
    assert await body(store, "f") == b"1"


async def test_a_deleted_origin_keeps_its_path_as_long_as_a_fork_lives(
    store: RedisStateStore,
) -> None:
    streams = store.streams
    await streams.create("a", data=b"a")
    await streams.create("b", origin=StreamOrigin("a"))
    await streams.create("c", origin=StreamOrigin("b"))
    for path in ("a", "b"):
        await streams.delete(path)
        for call in (streams.delete(path), streams.look(path), streams.append(path, b"x")):
            with pytest.raises(StreamDeleted):
                await call
        with pytest.raises(StreamRefused):
            await streams.create(path)
        with pytest.raises(StreamRefused):
            await streams.create("d", origin=StreamOrigin(path))
    assert await body(store, "c") == b"a"
    # A repeated call finds the fork, whatever became of its origin.
    assert not (await streams.create("c", origin=StreamOrigin("b")))[1]
    await streams.delete("c")
    with pytest.raises(StreamUnknown):
        await streams.look("a")
    _, is_new = await streams.create("b")
    assert is_new
    await streams.delete("b")


async def test_a_stream_of_the_same_path_is_not_the_one_that_was_forked(
    store: RedisStateStore,
) -> None:
    streams = store.streams
    await streams.create("o", data=b"old")
    await streams.create("f", origin=StreamOrigin("o"))
    await streams.delete("f")
    await streams.delete("o")
    await streams.create("o", data=b"new")
    await streams.create("f", data=b"no fork")
    await streams.delete("o")
    with pytest.raises(StreamUnknown):
        await streams.look("o")


async def test_producers_in_processes_append_each_batch_once_and_in_order(
    store: RedisStateStore, settings: Settings
) -> None:
    await store.streams.create("s", content_type=TEXT)
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "path": "s",
        "epoch": 0,
        "count": 30,
    }
    killed = await start_process(
        "append_batches", argument | {"producer": "killed", "count": 1_000_000}
    )
    started = [
        await start_process("append_batches", argument | {"producer": f"p{n}"}) for n in range(2)
    ]
    assert killed.stdout is not None
    await killed.stdout.readline()
    await children.end(killed)
    started.append(
        await start_process("append_batches", argument | {"producer": "killed", "epoch": 1})
    )
    for process in started:
        out, _ = await process.communicate()
        assert (process.returncode, out.split()[-1]) == (0, b"0")
    found: dict[tuple[str, str], list[int]] = {}
    for line in (await body(store, "s")).decode().splitlines():
        producer, epoch, number = line.split()
        found.setdefault((producer, epoch), []).append(int(number))
    left = found.pop(("killed", "0"))
    assert left == [*range(len(left))]
    assert found == {
        (name, epoch): [*range(30)] for name, epoch in [("p0", "0"), ("p1", "0"), ("killed", "1")]
    }
    with pytest.raises(ProducerRefused) as refused:
        await store.streams.append("s", b"x", batch=ProducerBatch("killed", 0, len(left)))
    assert (refused.value.reason, refused.value.epoch) == ("stale", 1)


async def test_a_killed_server_loses_no_answered_batch_and_doubles_none() -> None:
    with short_directory() as directory:
        server = OwnServer(Path(directory), "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        async with RedisStateStore.from_url(server.url, namespace="n") as store:
            await store.streams.create("s", content_type=TEXT)
            argument = {"url": server.url, "namespace": "n", "path": "s", "epoch": 0, "count": 120}
            process = await start_process("append_batches", argument | {"producer": "p"})
            assert process.stdout is not None
            await process.stdout.readline()
            await server.stop()
            await server.start()
            out, _ = await process.communicate()
            assert (process.returncode, len(out.split())) == (0, 1)
            rows = (await body(store, "s")).decode().splitlines()
            assert rows == [f"p 0 {number}" for number in range(120)]
        await server.stop()


async def test_an_offset_of_a_lost_history_is_told_and_the_new_rows_are_read() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
    ):
        await store.streams.create("s", content_type=TEXT, data=b"kept ")
        await server.mark()
        lost = await store.streams.append("s", b"lost")
        await server.go_back()
        with pytest.raises(CursorGap) as gap:
            await store.streams.read("s", offset=lost.offset)
        assert gap.value.reason == "ahead"
        await store.streams.append("s", b"new")
        with pytest.raises(CursorGap) as gap:
            await store.streams.read("s", offset=lost.offset)
        assert gap.value.reason == "rewound"
        assert await body(store, "s") == b"kept new"


async def test_forks_of_forks_have_an_end(store: RedisStateStore) -> None:
    streams = store.streams
    await streams.create("0", data=b"x")
    for depth in range(100):
        await streams.create(str(depth + 1), origin=StreamOrigin(str(depth)))
    with pytest.raises(InvalidField):
        await streams.create("101", origin=StreamOrigin("100"))
    for depth in range(100):
        await streams.delete(str(depth))
    with pytest.raises(StreamDeleted):
        await streams.look("0")
    await streams.delete("100")
    with pytest.raises(StreamUnknown):
        await streams.look("0")
