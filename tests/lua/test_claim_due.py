from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts
from tests.looking import HOUR, ask, clock_ms, ok


async def test_what_is_due_is_given_once_the_longest_due_first(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)
    assert await scripts.claim_due(watch, limit=10, hold_ms=HOUR) == ok()
    for when, entry in ((now - 1, "b"), (now - 2, "a"), (now, "c"), (now + HOUR, "later")):
        await ask(scripts, "ZADD", watch, when, entry)
    assert await scripts.claim_due(watch, limit=2, hold_ms=HOUR) == ok(b"a", b"b")
    assert await scripts.claim_due(watch, limit=2, hold_ms=0) == ok(b"c")
    assert await scripts.claim_due(watch, limit=2, hold_ms=HOUR) == ok(b"c")
    assert await scripts.claim_due(watch, limit=2, hold_ms=HOUR) == ok()
    assert int(await ask(scripts, "ZSCORE", watch, "a")) >= now + HOUR


async def test_thousands_can_be_due(scripts: Scripts, keys: Keys) -> None:
    watch = keys.watch(0)
    for number in range(10_000):
        scripts.transport.sender.send("ZADD", watch, 1, str(number), repeatable=True)
    reply = await scripts.claim_due(watch, limit=20_000, hold_ms=HOUR)
    assert len(reply.facts) == 10_000
