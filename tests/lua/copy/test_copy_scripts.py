from __future__ import annotations

import pytest

from redis_state.scripts import CopyKeys, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


@pytest.fixture
def copied(keys: Keys) -> CopyKeys:
    key = keys.tasks("s")
    return CopyKeys(key, keys.copied(key), keys.copy_of(key, "c"))


async def put(
    scripts: Scripts,
    copied: CopyKeys,
    kind: str,
    *items: bytes | int,
    at: int = 0,
    digest: bytes = b"d",
    about: tuple[bytes, ...] = (),
    ttl_ms: int = HOUR,
) -> object:
    return await scripts.write_part(
        copied,
        kind=kind,
        at=at,
        ttl_ms=ttl_ms,
        keep_ms=2 * HOUR,
        digest=digest,
        about=about,
        items=items,
    )


async def test_a_copy_takes_the_place_of_a_key_when_all_of_it_is_there(
    scripts: Scripts, copied: CopyKeys
) -> None:
    await ask(scripts, "SET", copied.key, "old", "PX", HOUR)
    assert await put(scripts, copied, "hash", b"a", b"1", digest=b"") == ok(1)
    assert await ask(scripts, "GET", copied.key) == b"old"
    # What a crash leaves ends by itself.
    assert HOUR < (await lives(scripts, copied.copy))[0] <= 2 * HOUR
    assert await put(scripts, copied, "hash", b"b", b"2", at=1) == ok(2)
    assert await fields(scripts, copied.key) == {"a": b"1", "b": b"2"}
    assert 0 < (await lives(scripts, copied.key))[0] <= HOUR
    assert await fields(scripts, copied.copied) == {copied.key: b"d"}
    assert (await lives(scripts, copied.copy, copied.copied))[0] == -2


async def test_a_part_that_is_repeated_behind_the_end_or_comes_out_of_turn_is_refused(
    scripts: Scripts, copied: CopyKeys
) -> None:
    assert await put(scripts, copied, "list", b"a", digest=b"") == ok(1)
    for _ in range(2):
        assert await put(scripts, copied, "list", b"c", at=2) == no(ReplyCode.AGAIN, 1)
    assert await put(scripts, copied, "list", b"b", at=1) == ok(2)
    # Its reply was lost: what it would be added to has taken its place.
    assert await put(scripts, copied, "list", b"b", at=1) == no(ReplyCode.AGAIN, 0)
    assert await ask(scripts, "LRANGE", copied.key, 0, -1) == [b"a", b"b"]
    # From the beginning it gives the same.
    assert await put(scripts, copied, "list", b"a", b"b") == ok(2)
    assert await ask(scripts, "LRANGE", copied.key, 0, -1) == [b"a", b"b"]


async def test_a_stream_keeps_its_last_id_and_its_counts_also_without_rows(
    scripts: Scripts, copied: CopyKeys
) -> None:
    about = (b"9-9", b"7", b"8-8")
    rows = (b"3-1", 2, b"f", b"v", b"5-0", 4, b"a", b"", b"b", b"\xff")
    assert await put(scripts, copied, "stream", *rows, about=about) == ok(2)
    for items in (rows, ()):
        assert await put(scripts, copied, "stream", *items, about=about) == ok(len(items) // 5)
        reply = await scripts.read_part(copied, after=b"", limit=9)
        kind, _, digest, after, found, read = reply.facts
        assert (kind, digest, after, found) == (b"stream", b"d", b"", [b"9-9", 7, b"8-8"])
        assert read == (
            [[b"3-1", [b"f", b"v"]], [b"5-0", [b"a", b"", b"b", b"\xff"]]] * bool(items)
        )


async def test_keys_are_read_in_parts_and_what_is_not_there_is_said(
    scripts: Scripts, copied: CopyKeys
) -> None:
    assert await scripts.read_part(copied, after=b"", limit=2) == no(ReplyCode.MISSING, None)
    await put(scripts, copied, "list", b"a", b"b", b"c", ttl_ms=0)
    first = (await scripts.read_part(copied, after=b"", limit=2)).facts
    assert first == [b"list", -1, b"d", b"2", [], [b"a", b"b"]]
    rest = (await scripts.read_part(copied, after=first[3], limit=2)).facts
    assert rest[3:] == [b"", [], [b"c"]]
    # The test's namespace keeps no key for ever.
    assert await scripts.drop_copy(copied, digest=b"d") == ok(1)


async def test_only_what_was_copied_and_not_copied_again_is_dropped(
    scripts: Scripts, copied: CopyKeys
) -> None:
    await put(scripts, copied, "zset", b"1.5", b"a")
    assert await scripts.drop_copy(copied, digest=b"other") == no(ReplyCode.LOST)
    assert await scripts.drop_copy(copied, digest=b"d") == ok(1)
    assert await scripts.drop_copy(copied, digest=b"d") == no(ReplyCode.LOST)
    assert await lives(scripts, copied.key, copied.copied) == [-2, -2]
