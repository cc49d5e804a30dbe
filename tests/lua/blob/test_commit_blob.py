from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.key_groups import BlobKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok

WIDE = 10**9


@pytest.fixture
def blobs(keys: Keys) -> BlobKeys:
    return keys.artifacts("p")


async def upload(scripts: Scripts, blobs: BlobKeys, name: str, *chunks: bytes) -> str:
    key = blobs.upload(name)
    for number, data in enumerate(chunks):
        await scripts.stage_chunk(key, number=number, data=data, ttl_ms=HOUR)
    return key


async def commit(
    scripts: Scripts,
    blobs: BlobKeys,
    name: str,
    *,
    chunks: Sequence[bytes] = (b"xx",),
    staged: bool = True,
    **more: Any,
) -> Reply:
    """Upload and commit, once: without going on after AGAIN."""
    key = await upload(scripts, blobs, name, *chunks) if staged else blobs.upload(name)
    given: dict[str, Any] = {
        "ref": b"ref " + name.encode(),
        "size": sum(map(len, chunks)),
        "chunks": len(chunks),
        "trace": None,
        "ttl_ms": HOUR,
        "strategy": "lru",
        "limits": (WIDE, WIDE, WIDE, WIDE),
        "victims": [],
    }
    return await scripts.commit_blob(blobs, key, blob_id=name, **{**given, **more})


async def in_books(scripts: Scripts, blobs: BlobKeys) -> list[str]:
    """Name the blobs, the longest unused first; the three books must agree."""
    used = [name.decode() for name in await ask(scripts, "ZRANGE", blobs.use, 0, -1)]
    about = await fields(scripts, blobs.about)
    own = {name[1:]: value for name, value in about.items() if name.startswith("=")}
    expiring = await ask(scripts, "ZRANGE", blobs.expiry, 0, -1)
    assert set(used) == set(own) == {name.decode() for name in expiring}
    total = sum(int(value.split()[0]) for value in own.values())
    assert about.get(":", b"0 0") == f"{len(own)} {total}".encode()
    return used


async def test_a_commit_makes_the_upload_a_blob_with_all_it_needs(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    assert await commit(scripts, blobs, "a", chunks=[b"xx", b"y"], trace="t") == ok(b"ref a")
    found = await fields(scripts, blobs.blob("a"))
    assert found == {"0": b"xx", "1": b"y", "ref": b"ref a", "chunks": b"2"}
    about = await fields(scripts, blobs.about)
    assert about == {"=a": b"3 t", ":": b"1 3", ":t": b"1 3"}
    for life in await lives(scripts, blobs.blob("a"), blobs.expiry, blobs.use, blobs.about):
        assert 0 < life <= HOUR
    assert await ask(scripts, "EXISTS", blobs.upload("a")) == 0


async def test_a_repeated_commit_and_a_second_upload_find_the_first(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    await commit(scripts, blobs, "a")
    await commit(scripts, blobs, "b")
    assert await commit(scripts, blobs, "a", staged=False, ref=b"other") == ok(b"ref a")
    assert await in_books(scripts, blobs) == ["b", "a"]
    assert await commit(scripts, blobs, "b", ref=b"other", strategy="fifo") == ok(b"ref b")
    assert await in_books(scripts, blobs) == ["b", "a"]
    assert await ask(scripts, "EXISTS", blobs.upload("b")) == 0
    await commit(scripts, blobs, "a", staged=False, ttl_ms=2 * HOUR)
    await commit(scripts, blobs, "a", staged=False, ttl_ms=HOUR)
    assert all(life > HOUR for life in await lives(scripts, blobs.blob("a"), blobs.about))


async def test_an_upload_that_lost_a_part_is_no_blob(scripts: Scripts, blobs: BlobKeys) -> None:
    assert await commit(scripts, blobs, "a", staged=False) == no(ReplyCode.MISSING)
    await upload(scripts, blobs, "b", b"x")
    call = commit(scripts, blobs, "b", chunks=[b"x", b"y"], staged=False)
    assert await call == no(ReplyCode.MISSING)
    assert await in_books(scripts, blobs) == []


async def test_nothing_at_all_can_be_a_blob(scripts: Scripts, blobs: BlobKeys) -> None:
    for _ in range(2):
        assert await commit(scripts, blobs, "a", chunks=[]) == ok(b"ref a")
    assert await fields(scripts, blobs.blob("a")) == {"ref": b"ref a", "chunks": b"0"}
    assert 0 < (await lives(scripts, blobs.blob("a")))[0] <= HOUR
    assert await in_books(scripts, blobs) == ["a"]


async def test_over_a_limit_nothing_happens_until_the_keys_are_given(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    limits = (3, WIDE, WIDE, WIDE)
    for name in "abc":
        await commit(scripts, blobs, name)
    again = await commit(scripts, blobs, "d", limits=limits)
    assert again == no(ReplyCode.AGAIN, b"a", b"b", b"c")
    assert await in_books(scripts, blobs) == ["a", "b", "c"]
    victims = [name.decode() for name in again.facts]
    assert await commit(scripts, blobs, "d", limits=limits, victims=victims) == ok(b"ref d")
    assert await in_books(scripts, blobs) == ["b", "c", "d"]
    assert await ask(scripts, "EXISTS", blobs.blob("a"), blobs.blob("b")) == 1
    # What was used meanwhile is not evicted, although its key was given.
    await scripts.touch_blob(blobs, blob_id="b")
    call = commit(scripts, blobs, "e", limits=limits, victims=["b", "c", "d"])
    assert await call == ok(b"ref e")
    assert await in_books(scripts, blobs) == ["d", "b", "e"]


async def test_over_a_traces_limits_only_its_own_blobs_go(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    for name, trace in [("a", None), ("b", "t"), ("c", "u"), ("d", "t")]:
        await commit(scripts, blobs, name, trace=trace)
    for limits in [(WIDE, WIDE, 2, WIDE), (WIDE, WIDE, WIDE, 5)]:
        again = await commit(scripts, blobs, "e", trace="t", limits=limits)
        assert again == no(ReplyCode.AGAIN, b"b", b"d")
    await commit(scripts, blobs, "e", trace="t", limits=(WIDE, WIDE, 2, 4), victims=["b"])
    assert await in_books(scripts, blobs) == ["a", "c", "d", "e"]
    assert (await fields(scripts, blobs.about))[":t"] == b"2 4"
    await commit(scripts, blobs, "f", trace="", limits=(WIDE, WIDE, 1, 2))
    assert await commit(scripts, blobs, "g", limits=(WIDE, WIDE, 1, 2)) == ok(b"ref g")


async def test_without_a_strategy_nothing_goes(scripts: Scripts, blobs: BlobKeys) -> None:
    for name in "ab":
        assert (await commit(scripts, blobs, name, strategy="none", limits=(1, 1, 1, 1))).facts
    assert await in_books(scripts, blobs) == ["a", "b"]


async def test_what_expired_leaves_the_books_and_makes_room(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    await commit(scripts, blobs, "long")
    await commit(scripts, blobs, "brief", ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    assert await commit(scripts, blobs, "new", limits=(2, WIDE, WIDE, WIDE)) == ok(b"ref new")
    assert await in_books(scripts, blobs) == ["long", "new"]


async def test_many_that_expired_leave_in_portions(scripts: Scripts, blobs: BlobKeys) -> None:
    await commit(scripts, blobs, "long")
    many = [part for number in range(250) for part in (1, f"n{number}")]
    await ask(scripts, "ZADD", blobs.expiry, *many)
    assert await commit(scripts, blobs, "new") == no(ReplyCode.AGAIN)
    assert await commit(scripts, blobs, "new") == ok(b"ref new")
    assert await in_books(scripts, blobs) == ["long", "new"]


async def test_many_that_must_go_go_in_portions(scripts: Scripts, blobs: BlobKeys) -> None:
    names = [f"n{number:03d}" for number in range(250)]
    await asyncio.gather(*(commit(scripts, blobs, name) for name in names))
    victims: list[str] = []
    rounds = 0
    while True:
        call = commit(scripts, blobs, "new", limits=(3, WIDE, WIDE, WIDE), victims=victims)
        if (reply := await call).word is ReplyCode.OK:
            break
        victims, rounds = [name.decode() for name in reply.facts], rounds + 1
        assert len(victims) <= 600
    assert rounds == 3
    assert len(await in_books(scripts, blobs)) == 3


async def test_bytes_that_the_books_do_not_know_are_replaced(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    await commit(scripts, blobs, "a", chunks=[b"old", b"old"])
    await ask(scripts, "DEL", blobs.expiry, blobs.use, blobs.about)
    assert await commit(scripts, blobs, "a", ref=b"new") == ok(b"new")
    assert await fields(scripts, blobs.blob("a")) == {"0": b"xx", "ref": b"new", "chunks": b"1"}
    assert await in_books(scripts, blobs) == ["a"]


async def test_books_whose_bytes_are_gone_count_once(scripts: Scripts, blobs: BlobKeys) -> None:
    await commit(scripts, blobs, "a", trace="t")
    await commit(scripts, blobs, "b", trace="t")
    await ask(scripts, "DEL", blobs.blob("a"))
    assert await commit(scripts, blobs, "a", trace="u", limits=(2, 4, 2, 4)) == ok(b"ref a")
    assert await in_books(scripts, blobs) == ["b", "a"]
    about = await fields(scripts, blobs.about)
    assert (about[":t"], about[":u"]) == (b"1 2", b"1 2")


async def test_ids_and_traces_are_no_names_of_totals(scripts: Scripts, blobs: BlobKeys) -> None:
    for name in [":", ":t", "=", "", "a\nb\x00"]:
        await commit(scripts, blobs, name, trace=name or "t")
    assert len(await in_books(scripts, blobs)) == 5
    for name in [":", ":t", "=", "", "a\nb\x00"]:
        await scripts.delete_blob(blobs, blob_id=name)
    assert await ask(scripts, "EXISTS", blobs.expiry, blobs.use, blobs.about) == 0


async def test_what_is_kept_for_ever_keeps_the_books_until_it_is_deleted(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    await commit(scripts, blobs, "ever", ttl_ms=0)
    await commit(scripts, blobs, "brief")
    assert await lives(scripts, blobs.blob("ever"), blobs.expiry, blobs.about) == [-1, -1, -1]
    await commit(scripts, blobs, "ever", staged=False)
    assert await lives(scripts, blobs.blob("ever")) == [-1]
    await scripts.delete_blob(blobs, blob_id="ever")
    assert all(0 < life <= HOUR for life in await lives(scripts, blobs.expiry, blobs.about))


async def test_a_reference_is_kept_beside_the_blob_and_outlives_it(
    scripts: Scripts, blobs: BlobKeys
) -> None:
    kept: dict[str, Any] = {"reference_ttl_ms": 9 * HOUR}
    assert await commit(scripts, blobs, "a", ref=b"one", write="w1", **kept) == ok(b"one")
    found = await fields(scripts, blobs.reference("a"))
    born = found.pop("order")
    assert found == {"document": b"one", "version": b"1", "write": b"w1"}
    assert int(born) // 1000 <= await clock_ms(scripts)
    assert await ask(scripts, "ZRANGE", blobs.references, 0, -1) == [b"a"]
    for life in await lives(scripts, blobs.reference("a"), blobs.references):
        assert 8 * HOUR < life <= 9 * HOUR
    assert 0 < (await lives(scripts, blobs.blob("a")))[0] <= HOUR
    # The same blob again has the reference that it has.
    await commit(scripts, blobs, "a", ref=b"two", write="w2", **kept)
    assert (await fields(scripts, blobs.reference("a")))["write"] == b"w1"
    await ask(scripts, "DEL", blobs.reference("a"))
    await commit(scripts, blobs, "a", ref=b"two", write="w2", **kept)
    assert await ask(scripts, "EXISTS", blobs.reference("a")) == 0
    # One that was evicted is another blob, and another state of its reference.
    kept["limits"] = (1, WIDE, WIDE, WIDE)
    await commit(scripts, blobs, "b", ref=b"b", write="w3", victims=["a"], **kept)
    assert await ask(scripts, "EXISTS", blobs.blob("a"), blobs.reference("b")) == 1
    await commit(scripts, blobs, "a", ref=b"a", write="w4", victims=["b"], **kept)
    await commit(scripts, blobs, "b", ref=b"c", write="w5", victims=["a"], **kept)
    found = await fields(scripts, blobs.reference("b"))
    assert [found[name] for name in ("document", "version", "write")] == [b"c", b"2", b"w5"]


async def test_a_blob_without_a_reference_gets_one_once(scripts: Scripts, blobs: BlobKeys) -> None:
    await commit(scripts, blobs, "a")
    assert await ask(scripts, "EXISTS", blobs.reference("a"), blobs.references) == 0
    life: dict[str, Any] = {"blob_id": "a", "reference_ttl_ms": HOUR}
    assert await scripts.keep_reference(blobs, write="w1", **life) == ok(1)
    assert await scripts.keep_reference(blobs, write="w2", **life) == ok(0)
    found = await fields(scripts, blobs.reference("a"))
    assert (found["document"], found["write"]) == (b"ref a", b"w1")
    # One that has expired is kept again only for who wants that, and is the same record.
    await ask(scripts, "DEL", blobs.reference("a"))
    assert await scripts.keep_reference(blobs, write="w3", **life) == ok(0)
    assert await scripts.keep_reference(blobs, write="w3", again=True, **life) == ok(1)
    assert await scripts.keep_reference(blobs, write="w4", again=True, **life) == ok(0)
    again = await fields(scripts, blobs.reference("a"))
    assert again == found | {"write": b"w3"}
    await scripts.delete_blob(blobs, blob_id="a")
    assert await scripts.keep_reference(blobs, write="w5", **life) == no(ReplyCode.MISSING)
    assert (await fields(scripts, blobs.reference("a")))["write"] == b"w3"
