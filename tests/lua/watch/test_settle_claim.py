from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, ok


async def test_what_a_claim_still_holds_is_put_off_or_taken_out(
    scripts: Scripts, keys: Keys
) -> None:
    watch, now = keys.watch(0), await clock_ms(scripts)
    for entry in ("off", "out", "held"):
        await ask(scripts, "ZADD", watch, now, entry)
    mark = (await scripts.claim_due(watch, limit=10, hold_ms=HOUR)).facts[0]
    entries = [(b"off", 2 * HOUR), (b"out", None), (b"never was", None)]
    assert await scripts.settle_claim(watch, mark=mark, entries=entries) == ok(2)
    assert round((float(await ask(scripts, "ZSCORE", watch, "off")) - now) / HOUR) == 2
    assert await ask(scripts, "ZSCORE", watch, "out") is None
    assert await ask(scripts, "ZSCORE", watch, "held") == mark
    # Repeated, as after a lost reply, it finds nothing that is the claim's.
    assert await scripts.settle_claim(watch, mark=mark, entries=entries) == ok(0)
    assert round((float(await ask(scripts, "ZSCORE", watch, "off")) - now) / HOUR) == 2


async def test_what_was_put_anew_since_stays_as_it_was_put(scripts: Scripts, keys: Keys) -> None:
    watch = keys.watch(0)
    await ask(scripts, "ZADD", watch, 1, "e")
    mark = (await scripts.claim_due(watch, limit=10, hold_ms=HOUR)).facts[0]
    # Even at the very same time: a claim's is half a millisecond off.
    put = await scripts.watch_entry(watch, entry=b"e", delay_ms=HOUR, stands="given")
    for delay_ms in (None, 0):
        settled = await scripts.settle_claim(watch, mark=mark, entries=[(b"e", delay_ms)])
        assert settled == ok(0)
    assert int(await ask(scripts, "ZSCORE", watch, "e")) == put.facts[0]


async def test_a_claim_that_ran_out_settles_nothing_of_the_next_one(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    await ask(scripts, "ZADD", watch, 1, "e")
    first = (await scripts.claim_due(watch, limit=1, hold_ms=-1_000)).facts[0]
    second = await scripts.claim_due(watch, limit=1, hold_ms=HOUR)
    assert second.facts[1] == b"e"
    assert await scripts.settle_claim(watch, mark=first, entries=[(b"e", None)]) == ok(0)
    assert await ask(scripts, "ZSCORE", watch, "e") == second.facts[0]
