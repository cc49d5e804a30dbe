"""Entries that are due soon because the queues' history is another one: once, by one process."""

from __future__ import annotations

from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, ok


async def hasten(
    scripts: Scripts,
    keys: Keys,
    *entries: bytes,
    walker: str = "w",
    history: str = "h",
    store: str = "",
    nodes: str = "",
    hold_ms: int = HOUR,
    last: bool = False,
) -> Reply:
    return await scripts.hasten_entries(
        keys.watch(0),
        walker=walker,
        hold_ms=hold_ms,
        history=history,
        store=store,
        nodes=nodes,
        all=last,
        first_ms=1_000,
        step_ms=100,
        entries=entries,
    )


async def when(scripts: Scripts, keys: Keys, entry: bytes) -> float:
    return float(await ask(scripts, "ZSCORE", keys.watch(0), entry))


async def test_entries_are_due_one_after_the_other_and_no_claim_any_more(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    await scripts.watch_entry(watch, entry=b"a", delay_ms=0, stands="given")
    mark, *claimed = (await scripts.claim_due(watch, limit=1, hold_ms=100)).facts
    assert claimed[0] == b"a"
    now = await clock_ms(scripts)
    assert await hasten(scripts, keys, b"a", b"lost") == ok(0)
    assert 1_000 <= await when(scripts, keys, b"a") - now < 60_000
    assert await when(scripts, keys, b"lost") - await when(scripts, keys, b"a") == 100
    assert await scripts.settle_claim(watch, mark=mark, entries=[(b"a", HOUR)]) == ok(0)


async def test_one_process_does_it_until_it_is_done_or_stands_still(
    scripts: Scripts, keys: Keys
) -> None:
    assert await hasten(scripts, keys, hold_ms=50) == ok(0)
    assert (await hasten(scripts, keys, b"a", walker="other")).word == "HELD"
    assert await ask(scripts, "EXISTS", keys.watch(0)) == 0
    await clock_passes(scripts, await clock_ms(scripts) + 50)
    assert await hasten(scripts, keys, b"a", walker="other") == ok(0)
    assert (await hasten(scripts, keys, b"a", last=True)).word == "HELD"
    assert await hasten(scripts, keys, b"a", walker="other", last=True) == ok(1)


async def test_what_is_known_is_not_hastened_again_and_another_history_is(
    scripts: Scripts, keys: Keys
) -> None:
    assert await hasten(scripts, keys, last=True) == ok(1)
    assert await hasten(scripts, keys, b"a", walker="other") == ok(1)
    assert await ask(scripts, "EXISTS", keys.watch(0)) == 0
    assert await hasten(scripts, keys, b"a", history="h2", walker="other", last=True) == ok(1)
    assert await ask(scripts, "ZCARD", keys.watch(0)) == 1


async def test_another_history_of_the_store_is_hastened_too(scripts: Scripts, keys: Keys) -> None:
    assert await hasten(scripts, keys, last=True, store="s") == ok(1)
    assert await hasten(scripts, keys, b"a", store="s") == ok(1)
    assert await ask(scripts, "EXISTS", keys.watch(0)) == 0
    for count, store in enumerate(("s2", ""), start=1):
        entry = b"%d" % count
        assert await hasten(scripts, keys, entry, store=store, last=True) == ok(1)
        assert await ask(scripts, "ZCARD", keys.watch(0)) == count


async def test_another_history_of_the_nodes_is_hastened_too(scripts: Scripts, keys: Keys) -> None:
    assert await hasten(scripts, keys, last=True, nodes="n") == ok(1)
    assert await hasten(scripts, keys, b"a", nodes="n") == ok(1)
    assert await ask(scripts, "EXISTS", keys.watch(0)) == 0
    for count, nodes in enumerate(("n2", ""), start=1):
        entry = b"%d" % count
        assert await hasten(scripts, keys, entry, nodes=nodes, last=True) == ok(1)
        assert await ask(scripts, "ZCARD", keys.watch(0)) == count


async def test_what_an_earlier_version_compared_is_known_without_a_store(
    scripts: Scripts, keys: Keys
) -> None:
    known = f"{keys.watch(0)}:history"
    await ask(scripts, "HSET", known, "history", "h")
    await ask(scripts, "PEXPIRE", known, HOUR)
    assert await hasten(scripts, keys, b"a") == ok(1)
    assert await ask(scripts, "EXISTS", keys.watch(0)) == 0
    assert await hasten(scripts, keys, b"a", store="s") == ok(0)


async def test_what_an_earlier_version_writes_leaves_what_is_known_of_the_nodes(
    scripts: Scripts, keys: Keys
) -> None:
    known = f"{keys.watch(0)}:history"
    await ask(scripts, "HSET", known, "history", "h", "store", "")
    await ask(scripts, "PEXPIRE", known, HOUR)
    assert await hasten(scripts, keys, b"a", nodes="n", last=True) == ok(1)
    assert await ask(scripts, "ZCARD", keys.watch(0)) == 1
    await ask(scripts, "HSET", known, "history", "h", "store", "")
    assert await hasten(scripts, keys, b"b", nodes="n", last=True) == ok(1)
    assert await ask(scripts, "ZCARD", keys.watch(0)) == 1
