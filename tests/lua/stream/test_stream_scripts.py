from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.scripts.stores.streams import StreamLimits
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import add_row, make_stream
from tests.support.scripts.replies import HOUR, ask, fields, lives

FORKED = b'{"path":"o","id":"o","place":"2-2","part":0}'


async def read(scripts: Scripts, keys: Keys, after: str = "", **given: Any) -> Reply:
    requested: dict[str, Any] = {"most_rows": 99, "most_bytes": 1 << 20, "renew": False}
    return await scripts.read_stream(keys.stream("s"), after=after, **(requested | given))


async def places(scripts: Scripts, keys: Keys) -> list[str]:
    return [
        row[0].decode() for row in await ask(scripts, "XRANGE", keys.stream("s").rows, "-", "+")
    ]


async def test_a_stream_is_created_once_and_has_a_lifetime(scripts: Scripts, keys: Keys) -> None:
    made = await make_stream(scripts, keys, data=b"p1")
    assert made.word is ReplyCode.OK
    again = await make_stream(scripts, keys, data=b"p1")
    assert again == made
    other = await make_stream(scripts, keys, stream_id="other", data=b"p2")
    assert (other.word, other.facts) == (ReplyCode.HELD, made.facts)
    assert len(await places(scripts, keys)) == 1
    of = keys.stream("s")
    assert all(0 < left <= HOUR for left in await lives(scripts, of.info, of.rows))


async def test_what_an_expired_stream_left_is_not_of_the_next(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys, data=b"p1")
    await ask(scripts, "DEL", keys.stream("s").info)
    await make_stream(scripts, keys, stream_id="next")
    assert await places(scripts, keys) == []


async def test_a_stream_ends_at_its_moment_whoever_uses_it(scripts: Scripts, keys: Keys) -> None:
    seconds = int((await ask(scripts, "TIME"))[0])
    await make_stream(scripts, keys, life=None, expires=(seconds + 60) * 1000)
    await add_row(scripts, keys)
    await read(scripts, keys, renew=True)
    of = keys.stream("s")
    ends = [int(await ask(scripts, "PEXPIRETIME", key)) for key in (of.info, of.rows)]
    assert ends == [(seconds + 60) * 1000] * 2


async def test_a_read_begins_the_lifetime_again_and_a_look_does_not(
    scripts: Scripts, keys: Keys
) -> None:
    await make_stream(scripts, keys, data=b"p")
    of = keys.stream("s")
    for key in (of.info, of.rows):
        await ask(scripts, "PEXPIRE", key, HOUR // 2)
    await read(scripts, keys)
    assert max(await lives(scripts, of.info, of.rows)) <= HOUR // 2
    await read(scripts, keys, renew=True)
    assert min(await lives(scripts, of.info, of.rows)) > HOUR // 2


async def test_callers_at_once_append_one_row_each_without_a_gap(
    scripts: Scripts, keys: Keys
) -> None:
    await make_stream(scripts, keys)
    replies = await asyncio.gather(*(add_row(scripts, keys, b"p%d" % n) for n in range(50)))
    given = [reply.text(0) for reply in replies]
    assert await places(scripts, keys) == given
    assert [int(place.partition("-")[0]) for place in given] == [*range(1, 51)]


async def test_a_producers_batches_are_counted(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)

    async def send(epoch: int, number: int, producer: str = "a") -> tuple[str, Any]:
        reply = await add_row(scripts, keys, producer=producer, epoch=epoch, number=number)
        return reply.word.value, reply.facts[-1]

    assert await send(0, 1) == ("GAP", 0)
    assert await send(0, 0) == ("OK", 0)
    assert await send(0, 0) == ("COUNTED", b"0")
    assert await send(0, 2) == ("GAP", b"1")
    assert await send(0, 1) == ("OK", 0)
    assert await send(0, 0) == ("COUNTED", b"1")
    assert await send(2, 1) == ("REFUSED", b"epoch")
    assert await send(2, 0) == ("OK", 0)
    assert await send(1, 0) == ("LOST", b"2")
    assert await send(0, 0, "b") == ("OK", 0)
    assert len(await places(scripts, keys)) == 4
    assert (await fields(scripts, keys.stream("s").info))["producers"] == b"2"


async def test_more_producers_than_may_be_are_refused_and_known_ones_go_on(
    scripts: Scripts, keys: Keys
) -> None:
    await make_stream(scripts, keys)
    two = StreamLimits(0, 0, 2)
    for producer in ("a", "b"):
        assert (await add_row(scripts, keys, producer=producer, limits=two)).word is ReplyCode.OK
    assert (await add_row(scripts, keys, producer="c", limits=two)).word is ReplyCode.FULL
    again = await add_row(scripts, keys, producer="a", number=1, limits=two)
    assert again.word is ReplyCode.OK


async def test_of_callers_with_one_batch_one_appends(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)
    replies = await asyncio.gather(*(add_row(scripts, keys, producer="a") for _ in range(10)))
    words = [reply.word for reply in replies]
    assert words.count(ReplyCode.OK) == 1
    assert words.count(ReplyCode.COUNTED) == 9
    assert len(await places(scripts, keys)) == 1


async def test_a_sequence_rises_byte_by_byte(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)
    given = ["1", "10", "1a", "2", "a", "é", "B", "a", "é", "éa"]
    words = [(await add_row(scripts, keys, seq=seq)).word.value for seq in given]
    assert words == ["OK"] * 6 + ["STALE"] * 3 + ["OK"]


async def test_the_checks_have_an_order(scripts: Scripts, keys: Keys) -> None:
    wrong: dict[str, Any] = {"content_type": "text/plain", "producer": "a", "number": 5, "seq": "0"}
    assert (await add_row(scripts, keys, **wrong)).word is ReplyCode.MISSING
    await make_stream(scripts, keys)
    await add_row(scripts, keys, seq="1")
    assert (await add_row(scripts, keys, **wrong)).word is ReplyCode.TAKEN
    del wrong["content_type"]
    assert (await add_row(scripts, keys, **wrong)).word is ReplyCode.GAP
    wrong["number"] = 0
    assert (await add_row(scripts, keys, **wrong)).word is ReplyCode.STALE
    await add_row(scripts, keys, b"", closing=True)
    assert (await add_row(scripts, keys, **wrong)).word is ReplyCode.HELD
    assert len(await places(scripts, keys)) == 1


async def test_a_stream_is_closed_once_and_by_whom_is_known(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)
    closing = await add_row(scripts, keys, producer="a", closing=True)
    assert closing.facts[1] == 1
    again = await add_row(scripts, keys, b"pother", producer="a", closing=True)
    assert (again.word, again.facts[:2]) == (ReplyCode.COUNTED, closing.facts)
    other = await add_row(scripts, keys, producer="b", closing=True)
    assert other.word is ReplyCode.HELD
    assert (await add_row(scripts, keys, b"", closing=True)).word is ReplyCode.OK
    assert len(await places(scripts, keys)) == 1


@pytest.mark.parametrize("limits", [StreamLimits(3, 0, 9), StreamLimits(0, 6, 9)])
async def test_the_oldest_rows_go_and_a_reader_behind_them_learns_of_it(
    scripts: Scripts, keys: Keys, limits: StreamLimits
) -> None:
    await make_stream(scripts, keys)
    given = [(await add_row(scripts, keys, b"p1", limits=limits)).text(0) for _ in range(5)]
    assert await places(scripts, keys) == given[2:]
    assert (await fields(scripts, keys.stream("s").info))["bytes"] == b"6"
    for old in ("0-0", given[0]):
        gap = await read(scripts, keys, old)
        assert (gap.word, gap.text(0), gap.text(1)) == (ReplyCode.GAP, "trimmed", given[1])
    for after in ("", given[1]):
        found = await read(scripts, keys, after)
        assert [row[0].decode() for row in found.facts[1]] == given[2:]
    large = await add_row(scripts, keys, b"p" * 100, limits=limits)
    assert large.text(0) in await places(scripts, keys)


async def _plant_rows(scripts: Scripts, keys: Keys, count: int, data: bytes) -> None:
    """Append rows as they stand, without limits."""
    await make_stream(scripts, keys)
    for start in range(0, count, 500):
        some = range(start, min(start + 500, count))
        await asyncio.gather(*(add_row(scripts, keys, data) for _ in some))


async def test_an_append_removes_a_slice_of_what_is_beyond_a_lowered_limit(
    scripts: Scripts, keys: Keys
) -> None:
    await _plant_rows(scripts, keys, 600, b"p")
    lowered = StreamLimits(10, 0, 9)
    counts: list[int] = []
    for _ in range(4):
        assert (await add_row(scripts, keys, limits=lowered)).word is ReplyCode.OK
        counts.append(len(await places(scripts, keys)))
    # One more by each append, and 256 less while there is more than may be.
    assert counts == [345, 90, 10, 10]
    kept = await places(scripts, keys)
    stored = await fields(scripts, keys.stream("s").info)
    assert int(kept[0].partition("-")[0]) == int(stored["first"].partition(b"-")[0]) + 1
    assert (stored["bytes"], kept[-1]) == (b"10", stored["last"].decode())


async def test_a_large_append_removes_more_rows_than_a_small_one(
    scripts: Scripts, keys: Keys
) -> None:
    await _plant_rows(scripts, keys, 600, b"p")
    lowered = StreamLimits(0, 100_000, 9)
    await add_row(scripts, keys, b"x" * 90_000, limits=lowered)
    assert len(await places(scripts, keys)) == 601
    # 100,000 bytes may be there: both large rows may not, and the small ones are before them.
    await add_row(scripts, keys, b"x" * 90_000, limits=lowered)
    slice_of_it = 256 + 90_000 // 1024
    assert len(await places(scripts, keys)) == 602 - slice_of_it
    await add_row(scripts, keys, limits=lowered)
    await add_row(scripts, keys, limits=lowered)
    stored = await fields(scripts, keys.stream("s").info)
    assert stored["bytes"] == b"90002"
    assert len(await places(scripts, keys)) == 3


async def test_a_place_of_a_lost_history_is_none_of_this(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)
    first = (await add_row(scripts, keys)).text(0)
    last = (await add_row(scripts, keys)).text(0)
    for place, reason in {
        "1-1": "rewound",
        "2-1": "rewound",
        "3-1": "ahead",
        "0-7": "rewound",
    }.items():
        gap = await read(scripts, keys, place)
        assert (gap.word, gap.text(0)) == (ReplyCode.GAP, reason), place
    assert [row[0].decode() for row in (await read(scripts, keys, first)).facts[1]] == [last]
    assert (await read(scripts, keys, "now")).facts[1] == []


async def test_a_page_ends_by_rows_or_by_bytes(scripts: Scripts, keys: Keys) -> None:
    await make_stream(scripts, keys)
    for _ in range(9):
        await add_row(scripts, keys, b"p" * 10)
    for most_rows, most_bytes, expected in [(4, 999, 4), (99, 35, 4), (99, 1, 1), (0, 9, 0)]:
        found = await read(scripts, keys, most_rows=most_rows, most_bytes=most_bytes)
        assert len(found.facts[1]) == expected, (most_rows, most_bytes)


async def test_a_deletion_leaves_nothing_or_a_mark(scripts: Scripts, keys: Keys) -> None:
    of = keys.stream("s")

    async def delete(*, keep: bool = False, forks: bytes = b"") -> ReplyCode:
        reply = await scripts.delete_stream(of, stream_id="id", forks=forks, keep=keep)
        return reply.word

    assert await delete() is ReplyCode.MISSING
    await make_stream(scripts, keys, data=b"p")
    await scripts.add_fork(of.info, stream_id="id", fork=b"f path", most=9)
    assert await delete() is ReplyCode.AGAIN
    assert await delete(keep=True, forks=b"f path") is ReplyCode.OK
    assert (await read(scripts, keys)).word is ReplyCode.DENIED
    assert (await add_row(scripts, keys)).word is ReplyCode.DENIED
    held = await make_stream(scripts, keys, stream_id="next")
    assert (held.word, held.facts[0][1]) == (ReplyCode.HELD, b"deleted")
    assert await lives(scripts, of.rows) == [-2]
    assert await delete(forks=b"f path") is ReplyCode.OK
    assert await lives(scripts, of.info) == [-2]


async def test_forks_are_remembered_once_and_the_oldest_is_forgotten(
    scripts: Scripts, keys: Keys
) -> None:
    info = keys.stream("s").info
    assert (await scripts.add_fork(info, stream_id="id", fork=b"1 a", most=2)).word is (
        ReplyCode.MISSING
    )
    await make_stream(scripts, keys)
    for fork in (b"1 a", b"2 b", b"1 a", b"3 c"):
        assert (
            await scripts.add_fork(info, stream_id="id", fork=fork, most=2)
        ).word is ReplyCode.OK
    assert (await fields(scripts, info))["forks"] == b"2 b\n3 c"


async def test_nobody_sees_a_fork_before_all_of_it_is_there(scripts: Scripts, keys: Keys) -> None:
    of = keys.stream("s")

    async def copy(*rows: bytes, stream_id: str = "id", **given: Any) -> Reply:
        requested: dict[str, Any] = {"hold_ms": HOUR, "opening": False, "part": b"", "data": b""}
        return await scripts.copy_stream(
            of, stream_id=stream_id, copied=rows, **(requested | given)
        )

    assert (await copy()).word is ReplyCode.MISSING
    await make_stream(scripts, keys, origin=FORKED, hold_ms=60_000)
    assert max(await lives(scripts, of.info)) <= 60_000
    await copy(b"1-1", b"p1")
    # A call that makes the same fork copies the same rows.
    await copy(b"1-1", b"p1", b"2-2", b"p2")
    assert (await read(scripts, keys)).word is ReplyCode.MISSING
    assert (await add_row(scripts, keys)).word is ReplyCode.MISSING
    assert (await copy(stream_id="other")).word is ReplyCode.MISSING
    opened = await copy(opening=True, part=b"pp", data=b"pd")
    assert opened.word is ReplyCode.OK
    assert (await copy(opening=True, data=b"pd")).word is ReplyCode.COUNTED
    rows = (await read(scripts, keys)).facts[1]
    assert [row[1][1] for row in rows] == [b"p1", b"p2", b"pp", b"pd"]
    assert [row[0] for row in rows[:2]] == [b"1-1", b"2-2"]
    assert min(await lives(scripts, of.info, of.rows)) > 60_000


async def test_streams_of_a_creator_are_claimed_up_to_a_number_and_released_by_their_mark(
    scripts: Scripts, keys: Keys
) -> None:
    created = keys.streams_of("ann")

    async def claim(path: str, ttl_ms: int = HOUR, most: int = 2) -> Reply:
        return await scripts.claim_stream(
            created, path=path, ttl_ms=ttl_ms, most=most, keep_ms=2 * HOUR
        )

    first = await claim("a")
    assert first.facts[1] == 1
    again = await claim("a")
    assert again.facts[1] == 0
    assert again.text(0) != first.text(0)
    assert (await claim("\ud800")).word is ReplyCode.OK
    assert (await claim("b")).word is ReplyCode.FULL
    assert (await claim("a")).word is ReplyCode.OK
    # Without a limit, for what is there already; and sooner than before.
    sooner = await claim("a", ttl_ms=1_000, most=0)
    assert int(sooner.text(0)) < int(again.text(0))
    assert HOUR < (await lives(scripts, created))[0] <= 2 * HOUR
    stale = await scripts.release_stream(created, path="a", mark=again.text(0))
    assert stale.facts == [0]
    for removed in (1, 0):
        released = await scripts.release_stream(created, path="a", mark=sooner.text(0))
        assert released.facts == [removed]
    assert (await claim("b")).word is ReplyCode.OK
    assert await ask(scripts, "ZCARD", created) == 2
