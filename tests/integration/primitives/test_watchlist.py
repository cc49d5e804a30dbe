from __future__ import annotations

import asyncio
import gc
import zlib
from collections import Counter
from typing import Literal

import pytest
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.errors import CorruptState, NoConnection, StoreFull
from redis_state.primitives.watchlist.shards import ShardCalls
from redis_state.primitives.watchlist.watchlist import ENDED_MS, Fate, WatchClaim, WatchList
from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS, Keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask, clock_ms
from tests.support.servers.faults import run_processes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "sooner", "claim", "claim briefly"]),
        st.sampled_from([b"a", b"b", b"\xff{*}", b""]),
        st.sampled_from([0, 1, 2]),
    ),
    min_size=10,
    max_size=40,
)


async def play(scripts: Scripts, steps: list[tuple[str, bytes, int]]) -> list[str]:
    keys = Keys(scripts.transport.settings.namespace)
    watch = WatchList(scripts, keys)
    for shard in range(WATCH_SHARDS):
        await ask(scripts, "DEL", keys.watch(shard))
    model: dict[bytes, int] = {}
    happened: list[str] = []
    for name, entry, hours in steps:
        was = model.get(entry, -1)
        if name in ("put", "sooner"):
            sooner = name == "sooner"
            await watch.put(entry, delay_ms=hours * HOUR, sooner=sooner)
            model[entry] = hours if sooner else max(was, hours)
            happened += ["the later stood"] if was > hours and not sooner else []
            happened += ["made sooner"] if was > hours and sooner else []
        else:
            hold = 0 if name == "claim briefly" else 1
            claimed = [claim.entry for claim in await watch.claim_due(hold_ms=hold * HOUR)]
            due = [other for other, when in model.items() if when == 0]
            assert sorted(claimed) == sorted(due)
            model.update(dict.fromkeys(due, hold))
            happened += ["claimed"] if due else ["nothing due"]
    now, found = await clock_ms(scripts), dict[bytes, int]()
    for shard in range(WATCH_SHARDS):
        flat = await ask(scripts, "ZRANGE", keys.watch(shard), 0, -1, "WITHSCORES")
        for entry, when in zip(flat[::2], flat[1::2], strict=True):
            found[entry] = round((float(when) - now) / HOUR)
    assert found == model
    return happened


@pytest.mark.fuzz
def test_the_watch_list_is_what_the_model_says(settings: Settings) -> None:
    wanted = {"the later stood", "made sooner", "claimed", "nothing due"}
    explore(settings, STEPS, play, wanted=wanted)


async def test_an_entry_is_taken_out_by_the_second_of_two_claims_in_a_row(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    key = keys.watch(zlib.crc32(b"e") % WATCH_SHARDS)

    async def claimed() -> WatchClaim:
        # A whole number of ms: what the time says beside that stays.
        await ask(scripts, "ZINCRBY", key, -10 * HOUR, b"e")
        (claim,) = await watch.claim_due()
        return claim

    async def over(claim: WatchClaim) -> bool:
        assert await watch.settle([(claim, None)]) == 1
        return await ask(scripts, "ZSCORE", key, b"e") is None

    await watch.put(b"e", delay_ms=0)
    first = await claimed()
    assert not first.again
    assert not await over(first)
    due_ms = float(await ask(scripts, "ZSCORE", key, b"e"))
    assert 0 < due_ms - await clock_ms(scripts) - (ENDED_MS - 1_000) < 1_001
    # Whatever says that the thing may not be over begins that anew.
    await watch.put(b"e", delay_ms=0, sooner=True)
    second = await claimed()
    assert not second.again
    assert not await over(second)
    third = await claimed()
    assert third.again
    await watch.settle([(third, 5)])
    fourth = await claimed()
    assert not fourth.again
    assert not await over(fourth)
    assert await over(await claimed())


async def judged(watch: WatchList, verdicts: dict[bytes, int | Fate | Exception]) -> int:
    """Claim what is due and judge it so; return how many entries were removed."""

    async def judge(claim: WatchClaim) -> int | Fate:
        verdict = verdicts[claim.entry]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    claims = await watch.claim_due(hold_ms=HOUR)
    assert {claim.entry for claim in claims} == set(verdicts)
    return await watch.inspect(claims, judge, trouble_ms=2 * HOUR)


async def test_each_entry_is_settled_as_it_is_judged(
    scripts: Scripts, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    watch = WatchList(scripts, keys)

    async def due_in() -> dict[bytes, int]:
        now, found = await clock_ms(scripts), dict[bytes, int]()
        for shard in range(WATCH_SHARDS):
            flat = await ask(scripts, "ZRANGE", keys.watch(shard), 0, -1, "WITHSCORES")
            for entry, when in zip(flat[::2], flat[1::2], strict=True):
                found[entry] = round((float(when) - now) / HOUR)
        return found

    verdicts: dict[bytes, int | Fate | Exception] = {
        b"later": 3 * HOUR,
        b"out": Fate.OUT,
        b"left": Fate.LEFT,
        b"bad": CorruptState("k", "no task"),
        b"worse": ZeroDivisionError(),
    }
    for entry in verdicts:
        await watch.put(entry, delay_ms=0)
    assert await judged(watch, verdicts) == 0
    marked = round(ENDED_MS / HOUR)
    expected = {b"later": 3, b"out": marked, b"left": 1, b"bad": 2, b"worse": 2}
    assert await due_in() == expected
    assert "'bad' cannot be swept: k: no task" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    # A whole number of ms: what the time says beside that stays.
    await ask(scripts, "ZINCRBY", keys.watch(zlib.crc32(b"out") % WATCH_SHARDS), -1000, b"out")
    assert await judged(watch, {b"out": Fate.OUT}) == 1
    del expected[b"out"]
    assert await due_in() == expected


async def test_what_ended_is_claimed_behind_what_may_need_a_repair(
    scripts: Scripts, keys: Keys
) -> None:
    watch, limit = WatchList(scripts, keys), 8
    shard = zlib.crc32(b"orphan") % WATCH_SHARDS
    ended = [
        each
        for each in map(b"%d".__mod__, range(1_600))
        if zlib.crc32(each) % WATCH_SHARDS == shard
    ]
    assert len(ended) > 4 * limit
    # They have been due for longer than the one that may need a repair.
    for entry in ended:
        await watch.put(entry, delay_ms=ENDED_MS - HOUR, sooner=True)
    await watch.put(b"orphan", delay_ms=0)
    claims = await watch.claim_due(limit=limit, hold_ms=HOUR)
    assert [claim.again for claim in claims] == [False] + [True] * (limit - 1)
    assert claims[0].entry == b"orphan"
    # Of those that ended some go in each round, however much else is due.
    for number in range(2 * limit):
        await ask(scripts, "ZADD", keys.watch(shard), 1, b"urgent %d" % number)
    claims = await watch.claim_due(limit=limit, hold_ms=HOUR)
    assert [claim.again for claim in claims] == [False] * limit + [True] * (limit // 4)
    await watch.settle([(claim, None) for claim in claims if claim.again])
    left = await ask(scripts, "ZCARD", keys.watch(shard))
    assert left == 1 + len(ended) + 2 * limit - limit // 4


@pytest.mark.parametrize("way", ["later", "given", "first", "sooner"])
async def test_what_is_put_again_is_not_ended_any_more(
    scripts: Scripts, keys: Keys, way: Literal["later", "given", "first", "sooner"]
) -> None:
    watch, key = WatchList(scripts, keys), keys.watch(zlib.crc32(b"e") % WATCH_SHARDS)
    await watch.put(b"e", delay_ms=ENDED_MS)
    await scripts.watch_entry(key, entry=b"e", delay_ms=0, stands=way)
    (claim,) = await watch.claim_due()
    assert not claim.again


async def test_what_ended_is_found_so_again_after_the_clock_was_set_back(
    scripts: Scripts, keys: Keys
) -> None:
    watch, key = WatchList(scripts, keys), keys.watch(zlib.crc32(b"e") % WATCH_SHARDS)
    await watch.put(b"e", delay_ms=ENDED_MS)
    later = await clock_ms(scripts) + HOUR
    await ask(scripts, "SET", f"{key}:clock", later)
    await watch.claim_due()
    due_ms = float(await ask(scripts, "ZSCORE", key, b"e"))
    assert 0 < due_ms - await clock_ms(scripts) <= 1_000


async def test_an_unreachable_server_leaves_its_entries_to_their_claim_and_the_others_are_settled(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    for entry in (b"a", b"b", b"c"):
        await watch.put(entry, delay_ms=0)
    away = NoConnection("k", "away")
    with pytest.raises(NoConnection, match="away"):
        await judged(watch, {b"a": away, b"b": 0, b"c": NoConnection("l", "gone")})
    assert [claim.entry for claim in await watch.claim_due()] == [b"b"]


async def test_what_is_judged_is_settled_while_another_judge_waits(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    for entry in (b"a", b"b"):
        await watch.put(entry, delay_ms=0)
    may_end = asyncio.Event()

    async def judge(claim: WatchClaim) -> int:
        if claim.entry == b"a":
            await may_end.wait()
        return 0

    claims = await watch.claim_due(hold_ms=HOUR)
    inspecting = asyncio.create_task(watch.inspect(claims, judge, trouble_ms=HOUR))

    async def again() -> list[bytes]:
        return [claim.entry for claim in await watch.claim_due(hold_ms=HOUR)]

    assert await eventually(again, "one is settled") == [b"b"]
    may_end.set()
    assert await inspecting == 0
    assert await again() == [b"a"]


async def test_what_a_full_server_refuses_is_left_to_its_claim_and_the_others_are_settled(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    for entry in (b"a", b"b", b"c"):
        await watch.put(entry, delay_ms=0)
    with pytest.raises(StoreFull, match="of a"):
        await judged(watch, {b"a": StoreFull("of a"), b"b": 0, b"c": StoreFull("of c")})
    assert [claim.entry for claim in await watch.claim_due()] == [b"b"]


async def test_what_else_runs_goes_on_while_many_entries_are_judged(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    for number in range(100):
        await watch.put(b"%d" % number, delay_ms=0)
    claims = await watch.claim_due(hold_ms=HOUR)
    turns: Counter[int] = Counter()
    turn = 0
    all_begun = asyncio.Event()

    async def judge(claim: WatchClaim) -> int:
        del claim
        turns[turn] += 1
        if turns.total() == len(claims):
            all_begun.set()
        # None waits for one before it: the first one ends when the last one has begun.
        await all_begun.wait()
        return HOUR

    async def run_beside() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    beside = asyncio.create_task(run_beside())
    assert await watch.inspect(claims, judge, trouble_ms=HOUR) == 0
    beside.cancel()
    assert turns.total() == 100
    assert max(turns.values()) <= 8
    assert await watch.claim_due() == []


async def test_an_inspection_that_is_cancelled_leaves_none_of_its_calls_behind(
    scripts: Scripts, keys: Keys
) -> None:
    watch = WatchList(scripts, keys)
    for number in range(40):
        await watch.put(b"%d" % number, delay_ms=0)
    claims = await watch.claim_due(hold_ms=HOUR)
    begun, ended = asyncio.Event(), list[bytes]()

    async def judge(claim: WatchClaim) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(claim.entry)
        return 0

    before = asyncio.all_tasks()
    inspecting = asyncio.create_task(watch.inspect(claims, judge, trouble_ms=HOUR))
    await begun.wait()
    inspecting.cancel()
    await asyncio.wait({inspecting, *(asyncio.all_tasks() - before)})
    assert inspecting.cancelled()
    assert 0 < len(ended) < 40
    assert await watch.claim_due() == []


async def test_the_error_of_a_shard_that_was_left_behind_is_nobodys_if_none_asks_again() -> None:
    answers, lost = asyncio.Event(), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: lost.append(about["message"]))

    async def call(shard: int) -> Reply:
        if shard == 1:
            await answers.wait()
            raise NoConnection("k", "away")
        return Reply(ReplyCode.OK, [])

    try:
        before = asyncio.all_tasks()
        shards = ShardCalls(2)
        assert len(await shards.replies(call)) == 1
        (late,) = asyncio.all_tasks() - before
        answers.set()
        await asyncio.wait({late})
        del shards, late
        gc.collect()
        assert lost == []
    finally:
        loop.set_exception_handler(None)


async def test_of_4_processes_one_claims_each_entry_and_all_shards_are_used(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    watch = WatchList(scripts, keys)
    entries = [f"entry-{number}" for number in range(1000)]
    for entry in entries:
        await watch.put(entry.encode(), delay_ms=0)
    sizes = [await ask(scripts, "ZCARD", keys.watch(shard)) for shard in range(WATCH_SHARDS)]
    assert min(sizes) > 1000 / WATCH_SHARDS / 2
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**shared, "does": "sweep", "limit": 3}] * 4
    claims: Counter[str] = Counter()
    for claimed in await run_processes("use_primitives", arguments):
        claims.update(claimed)
    assert claims == Counter(dict.fromkeys(entries, 1))
