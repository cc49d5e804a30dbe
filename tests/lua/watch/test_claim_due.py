from __future__ import annotations

import pytest

from redis_state.primitives.watchlist.watchlist import CHECK_MS, MARK_MS
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, ok


async def test_what_is_due_is_given_once_the_longest_due_first(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)

    async def claim(limit: int, hold_ms: int) -> list[bytes]:
        reply = await scripts.claim_due(watch, limit=limit, hold_ms=hold_ms)
        mark, *due = reply.facts
        assert reply == ok(mark, *due)
        entries, was, stamps = due[::3], due[1::3], due[2::3]
        assert set(stamps) <= {b""}
        assert [float(when) for when in was] == sorted(map(float, was))
        assert mark.endswith(b".5")
        assert [await ask(scripts, "ZSCORE", watch, entry) for entry in entries] == [mark] * len(
            entries
        )
        return entries

    assert await claim(10, HOUR) == []
    for when, entry in ((now - 1, "b"), (now - 2, "a"), (now, "c"), (now + HOUR, "later")):
        await ask(scripts, "ZADD", watch, when, entry)
    assert await claim(2, HOUR) == [b"a", b"b"]
    assert await claim(2, 0) == [b"c"]
    assert await claim(2, HOUR) == [b"c"]
    assert await claim(2, HOUR) == []
    assert float(await ask(scripts, "ZSCORE", watch, "a")) >= now + HOUR - 1


async def test_thousands_can_be_due(scripts: Scripts, keys: Keys) -> None:
    watch = keys.watch(0)
    for number in range(10_000):
        scripts.transport.sender.send("ZADD", watch, 1, str(number), repeatable=True)
    reply = await scripts.claim_due(watch, limit=20_000, hold_ms=HOUR)
    assert len(reply.facts) == 30_001


@pytest.mark.parametrize("limit", [1, 2, 5, 8])
async def test_each_band_has_the_room_that_is_left_and_a_quarter(
    scripts: Scripts, keys: Keys, limit: int
) -> None:
    """The later bands have been due for longer."""
    watch = keys.watch(0)
    now = await clock_ms(scripts)
    bands = {b"repair": now - 50, b"check": CHECK_MS + 1, b"ended": MARK_MS + 1}
    left = {band: [b"%s %02d" % (band, number) for number in range(40)] for band in bands}
    for band, first in bands.items():
        for number, entry in enumerate(left[band]):
            await ask(scripts, "ZADD", watch, first + number, entry)
    later = [CHECK_MS + now + HOUR, MARK_MS + now + HOUR, now + HOUR]
    for when in later:
        await ask(scripts, "ZADD", watch, when, b"later %d" % when)
    while any(left.values()):
        expected: list[bytes] = []
        for band in bands:
            room = max(limit - len(expected), -(-limit // 4))
            expected += left[band][:room]
            left[band] = left[band][room:]
        reply = await scripts.claim_due(watch, limit=limit, hold_ms=HOUR)
        assert reply.facts[1::3] == expected
    assert (await scripts.claim_due(watch, limit=limit, hold_ms=HOUR)).facts[1:] == []
