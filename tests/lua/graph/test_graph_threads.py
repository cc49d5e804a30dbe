from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence

import pytest

from redis_state.scripts import Fence, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.graphs import GRAPH_ROW, drop_checkpoints, watch_graph_puts
from tests.support.scripts.keys import graph_keys, graph_listing
from tests.support.scripts.replies import HOUR, ask, lives, no, ok


async def _put(
    scripts: Scripts,
    keys: Keys,
    place: bytes = b"%:1",
    *,
    parent: bytes = b"",
    row: bytes = GRAPH_ROW,
    values: Sequence[bytes] = (b"%:i1 c", b"v"),
    listed: bool = False,
    claim: Fence | None = None,
) -> Reply:
    return await scripts.put_checkpoint(
        graph_keys(keys),
        mark=claim,
        listed=listed,
        place=place,
        parent=parent,
        row=row,
        ttl_ms=HOUR,
        values=values,
    )


async def _write(
    scripts: Scripts,
    keys: Keys,
    *writes: bytes,
    task: str = "t",
    listed: bool = False,
    claim: Fence | None = None,
) -> Reply:
    return await scripts.put_graph_writes(
        graph_keys(keys),
        mark=claim,
        listed=listed,
        place=b"%:1",
        task=task,
        ttl_ms=HOUR,
        writes=writes,
    )


async def _claim(scripts: Scripts, keys: Keys, owner: str = "o") -> Fence:
    thread = graph_keys(keys).thread
    reply = await scripts.acquire_lease(thread, owner=owner, duration_ms=HOUR, keep_ms=HOUR)
    return Fence(thread, int(reply.facts[0]), owner)


async def _read(scripts: Scripts, keys: Keys, *places: bytes, most: int = 1000) -> Reply:
    return await scripts.read_checkpoints(graph_keys(keys), most_bytes=most, places=places)


async def test_a_checkpoint_is_read_with_values_and_writes(scripts: Scripts, keys: Keys) -> None:
    assert await _put(scripts, keys) == ok(0)
    assert await _write(scripts, keys, b"0", b"c", b"w0", b"1", b"d", b"w1") == ok()
    values, found = [b"%:i1 c", b"v"], [b"%:1", GRAPH_ROW, [b"t 0 1 c", b"w0", b"t 1 2 d", b"w1"]]
    assert await _read(scripts, keys, b"%:") == ok(values, found)
    # A value that two need comes once, and one that is not there is empty.
    await _put(scripts, keys, b"%:2")
    both = await _read(scripts, keys, b"%:2", b"%:1", b"%:3")
    assert [both.facts[0], *(each[:1] for each in both.facts[1:])] == [
        values,
        [b"%:2"],
        [b"%:1"],
        [],
    ]
    assert len((await _read(scripts, keys, b"%:2", b"%:1", most=1)).facts) == 2
    thread, order = graph_keys(keys).thread, graph_keys(keys).order
    assert all(0 < left <= HOUR for left in await lives(scripts, thread, order))


async def test_a_value_is_written_once_and_a_row_again(scripts: Scripts, keys: Keys) -> None:
    await _put(scripts, keys)
    other = GRAPH_ROW.replace(b"document", b"another!")
    assert await _put(scripts, keys, row=other, values=[b"%:i1 c", b"later"]) == ok(1)
    assert (await _read(scripts, keys, b"%:1")) == ok([b"%:i1 c", b"v"], [b"%:1", other, []])


def _tail(base: bytes, of: bytes, value: bytes) -> bytes:
    digest = hashlib.sha1(of, usedforsecurity=False).hexdigest()[:16].encode()
    return b"\xc1" + len(base).to_bytes(2, "big") + base + digest + value


async def test_a_value_continues_only_what_is_there_as_its_writer_took_it(
    scripts: Scripts, keys: Keys
) -> None:
    await _put(scripts, keys, values=[b"%:i1 c", b"v"])
    tail, thread = _tail(b"%:i1 c", b"v", b"more"), graph_keys(keys).thread

    async def put(*values: bytes) -> Reply:
        row = GRAPH_ROW.replace(b"i1 c", b"i2 c")
        return await _put(scripts, keys, b"%:2", row=row, values=values)

    for wrong in (_tail(b"%:i1 c", b"w", b"more"), _tail(b"%:i0 c", b"v", b"more")):
        assert await put(b"%:i3 d", b"x", b"%:i2 c", wrong) == no(ReplyCode.STALE)
    assert sorted(await ask(scripts, "HKEYS", thread)) == [b"b%:i1 c", b"r%:1"]
    assert await put(b"%:i2 c", tail) == ok(0)
    # In a place that is taken no value continues another: who drops others does not know of it.
    assert await put(b"%:i3 c", tail) == no(ReplyCode.STALE)
    # It is read with what it continues, which may come with it too.
    assert (await _read(scripts, keys, b"%:2")).facts[0] == [b"%:i2 c", tail, b"%:i1 c", b"v"]
    both = (await _read(scripts, keys, b"%:1", b"%:2")).facts[0]
    assert both == [b"%:i1 c", b"v", b"%:i2 c", tail]
    both = [b"%:i8 c", _tail(b"%:i7 c", b"7", b"8"), b"%:i7 c", b"7"]
    assert await _put(scripts, keys, b"%:3", values=both) == ok(0)
    names = [b"%:i8 c", b"%:i2 c", b"%:i1 c", b"%:i0 c"]
    bases = b"%:i7 c", b"%:i1 c", b"", b""
    assert await scripts.read_bases(graph_keys(keys), most_bytes=999, names=names) == ok(*bases)
    # One reply ends behind what exceeds the size.
    assert await scripts.read_bases(graph_keys(keys), most_bytes=1, names=names) == ok(bases[0])


async def test_a_write_is_kept_as_it_came_first_unless_special(
    scripts: Scripts, keys: Keys
) -> None:
    await _put(scripts, keys)
    await _write(scripts, keys, b"0", b"c", b"first", b"-3", b"__interrupt__", b"first")
    await _write(scripts, keys, b"0", b"c", b"later", b"-3", b"__interrupt__", b"later")
    await _write(scripts, keys, b"0", b"c", b"x", task="a", listed=True)
    found = (await _read(scripts, keys, b"%:1")).facts[1][2]
    assert found == [
        *(b"t 0 1 c", b"first", b"t -3 2 __interrupt__", b"later", b"a 0 3 c", b"x"),
    ]


async def test_many_tasks_write_at_once(scripts: Scripts, keys: Keys) -> None:
    await asyncio.gather(
        *(_write(scripts, keys, b"0", b"c", b"%d" % n, task=f"t{n}") for n in range(40))
    )
    await _put(scripts, keys)
    found = (await _read(scripts, keys, b"%:1")).facts[1][2]
    assert sorted(found[1::2]) == sorted(b"%d" % n for n in range(40))


@pytest.mark.role("any", why="it measures what a worker has no need to")
async def test_a_write_behind_many_costs_as_much_as_behind_a_hundred(
    scripts: Scripts, keys: Keys
) -> None:
    thread, lists = graph_keys(keys).thread, "w%:1"
    await _put(scripts, keys)

    async def commands() -> int:
        info: bytes = await ask(scripts, "INFO", "commandstats")
        of_hashes = re.findall(rb"cmdstat_(?:hget|hset):calls=(\d+)", info)
        return sum(map(int, of_hashes))

    cost: list[tuple[int, int]] = []
    for n in range(400):
        before = await commands() if n in (100, 399) else 0
        await _write(scripts, keys, b"0", b"c", b"v%d" % n, b"-3", b"i", b"", task=f"t{n}")
        if before:
            cost.append((await commands() - before, await ask(scripts, "HSTRLEN", thread, lists)))
    assert cost[0] == cost[1]
    assert cost[0][1] < 64 * len("t99 -3 64 c\n")
    # The order of arrival stays, and so does what a repetition does.
    await _write(scripts, keys, b"0", b"c", b"other", b"-3", b"i", b"later", task="t399")
    found = (await _read(scripts, keys, b"%:1", most=10**6)).facts[1][2]
    assert found[1::2] == [v for n in range(399) for v in (b"v%d" % n, b"")] + [b"v399", b"later"]
    assert found[-4:-1] == [b"t399 0 799 c", b"v399", b"t399 -3 800 i"]
    await watch_graph_puts(scripts, keys)
    assert (await drop_checkpoints(scripts, keys, b"%:1")).facts[0] == 1
    assert await ask(scripts, "HKEYS", thread) == []


async def test_one_call_crosses_the_end_of_a_list(scripts: Scripts, keys: Keys) -> None:
    await _put(scripts, keys)
    many = [part for n in range(150) for part in (b"%d" % n, b"c", b"v%d" % n)]
    for _ in range(2):
        await _write(scripts, keys, *many)
        found = (await _read(scripts, keys, b"%:1", most=10**6)).facts[1][2]
        assert found[1::2] == many[2::3]


async def test_a_thread_that_is_gone_must_be_listed_first(scripts: Scripts, keys: Keys) -> None:
    missing = no(ReplyCode.MISSING)
    assert await _put(scripts, keys, listed=True) == missing
    assert await _write(scripts, keys, b"0", b"c", b"v", listed=True) == missing
    assert await ask(scripts, "EXISTS", graph_keys(keys).thread, graph_keys(keys).order) == 0
    await _put(scripts, keys)
    assert await _put(scripts, keys, listed=True) == ok(1)


async def test_only_the_last_claim_writes(scripts: Scripts, keys: Keys) -> None:
    old = await _claim(scripts, keys)
    await scripts.release_lease(old.lease, owner=old.owner, epoch=old.epoch)
    new = await _claim(scripts, keys, "p")
    lost = no(ReplyCode.LOST, new.epoch)
    assert await _put(scripts, keys, claim=old) == lost
    assert await _write(scripts, keys, b"0", b"c", b"v", claim=old) == lost
    assert await scripts.delete_graph_thread(graph_keys(keys), mark=old) == lost
    held = await _put(scripts, keys)
    assert held.word is ReplyCode.HELD
    assert 0 < int(held.facts[0]) <= HOUR
    assert (await _write(scripts, keys, b"0", b"c", b"v")).word is ReplyCode.HELD
    assert await _put(scripts, keys, claim=new) == ok(0)
    for claim, word in ((old, ReplyCode.LOST), (None, ReplyCode.HELD)):
        reply = await drop_checkpoints(scripts, keys, b"%:1", claim=claim)
        assert reply.word is word
        reply = await scripts.delete_graph_thread(graph_keys(keys), mark=claim)
        assert reply.word is word
    assert (await _read(scripts, keys, b"%:1")).facts[1]


async def test_a_claim_that_was_given_back_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    claim = await _claim(scripts, keys)
    await _put(scripts, keys, claim=claim)
    await scripts.release_lease(claim.lease, owner="o", epoch=claim.epoch)
    for late in (
        _put(scripts, keys, claim=claim),
        _write(scripts, keys, b"0", b"c", b"v", claim=claim),
        drop_checkpoints(scripts, keys, b"%:1", claim=claim),
        scripts.delete_graph_thread(graph_keys(keys), mark=claim),
    ):
        assert await late == no(ReplyCode.LOST, claim.epoch)
    assert await _put(scripts, keys) == ok(1)


async def test_a_claim_outlives_the_deletion_of_its_thread(scripts: Scripts, keys: Keys) -> None:
    claim = await _claim(scripts, keys)
    await _put(scripts, keys, claim=claim)
    assert await scripts.delete_graph_thread(graph_keys(keys), mark=claim) == ok(1)
    assert await _read(scripts, keys, b"%:") == ok([], [])
    assert await _put(scripts, keys, claim=claim) == ok(0)
    await scripts.release_lease(claim.lease, owner="o", epoch=claim.epoch)
    assert await scripts.delete_graph_thread(graph_keys(keys), mark=None) == ok(1)


async def test_checkpoints_are_dropped_without_what_was_put_since(
    scripts: Scripts, keys: Keys
) -> None:
    for number in range(3):
        await _put(scripts, keys, b"%%:%d" % number)
    await _put(scripts, keys, b"other:1", values=[b"other:i1 c", b"v"])
    await _write(scripts, keys, b"0", b"c", b"v")
    assert await watch_graph_puts(scripts, keys) == ok(b"w", 1, b"w")
    old = b"%:0", b"%:1"
    # Of another list, or of one that was longer, or without a checkpoint that is there.
    for known, seen in ((3, (1, b"x")), (3, (2, b"w")), (2, (1, b"w"))):
        assert await drop_checkpoints(scripts, keys, *old, known=known, seen=seen) == no(
            ReplyCode.STALE
        )
    await _put(scripts, keys, b"other:2", row=_row(b"1", b"i1 c"), values=[])
    assert await drop_checkpoints(scripts, keys, *old, known=3) == ok(
        *(2, 2, b"other:2", [], [], [], [])
    )
    thread, order = graph_keys(keys).thread, graph_keys(keys).order
    assert sorted(await ask(scripts, "HKEYS", thread)) == [
        *(b"bother:i1 c", b"r%:2", b"rother:1", b"rother:2"),
    ]
    assert await ask(scripts, "ZRANGE", order, 0, -1) == [b"%:2", b"other:1", b"other:2"]


@pytest.mark.role("any", why="it takes a put off the list, as an older version leaves it out")
async def test_a_put_that_is_not_listed_is_found_beside_another_pruning(
    scripts: Scripts, keys: Keys
) -> None:
    """A put of an older version adds one to the count, and the other pruning takes one away."""
    for number in range(3):
        await _put(scripts, keys, b"%%:%d" % number)
    assert await watch_graph_puts(scripts, keys) == ok(b"w", 1, b"w")
    assert (await drop_checkpoints(scripts, keys, b"%:1", known=3)).facts[0] == 1
    await _put(scripts, keys, b"%:3", row=_row(b"2", b"i1 c"), values=[])
    assert await ask(scripts, "RPOP", graph_keys(keys).puts) == b"%:3"
    old = await drop_checkpoints(scripts, keys, b"%:0", known=3, newest=b"%:2")
    assert old == no(ReplyCode.STALE)
    await _put(scripts, keys, b"%:4", row=_row(b"2", b"i1 c"), values=[])
    hidden = await drop_checkpoints(scripts, keys, b"%:0", known=4, newest=b"%:2")
    assert hidden == no(ReplyCode.STALE)
    known = await drop_checkpoints(scripts, keys, b"%:0", known=3, newest=b"%:3")
    assert known == ok(1, 2, b"%:4", [b"%:4"], [b"%:2"], [], [b"%:i1 c"])


@pytest.mark.parametrize("forks", [True, False])
async def test_what_is_put_on_a_checkpoint_that_goes_keeps_what_it_needs(
    scripts: Scripts, keys: Keys, *, forks: bool
) -> None:
    """Four ancestors are dropped, and meanwhile one is put on the third, and one is put again."""
    values = [b"%:i1 c", b"v", b"%:i2 c", _tail(b"%:i1 c", b"v", b"more")]
    await _put(scripts, keys, b"%:1", row=_row(None, b"i1 c"), values=values)
    names = b"i3 c", b"i2 c", b"i4 c", b"i5 c"
    for number, name in enumerate(names, start=2):
        given = () if name == b"i2 c" else (b"%:" + name, b"v")
        row = _row(b"%d" % (number - 1), name)
        await _put(scripts, keys, b"%%:%d" % number, row=row, values=given)
    assert await watch_graph_puts(scripts, keys) == ok(b"w", 1, b"w")
    await _put(scripts, keys, b"%:9", row=_row(b"3", b"i2 c"), values=(), parent=b"%:3")
    await _put(scripts, keys, b"%:4", row=_row(b"3", b"i4 c"), values=(), parent=b"%:3")
    reply = await drop_checkpoints(
        *(scripts, keys, b"%:1", b"%:2", b"%:3", b"%:4"),
        needed={b"%:3": b"%:2"},
        names=[b"%:i1 c", b"%:i2 c", b"%:i3 c", b"%:i4 c"],
        known=5,
        forks=forks,
    )
    dropped, seen, last, puts, parents, kept, needed = reply.facts
    assert (seen, last, puts) == (3, b"%:4", [b"%:9", b"%:4"])
    assert parents == [b"%:3", b"%:3"]
    # What is put again stays, whatever is asked for.
    assert sorted(kept) == ([b"%:2", b"%:3", b"%:4"] if forks else [b"%:4"])
    assert dropped == (1 if forks else 3)
    third = [b"%:i3 c"] if forks else []
    assert sorted(needed) == sorted([b"%:i1 c", b"%:i2 c", b"%:i4 c", *third])
    fields = await ask(scripts, "HKEYS", graph_keys(keys).thread)
    stored = [field[1:] for field in fields if field.startswith(b"b")]
    assert sorted(stored) == sorted([*needed, b"%:i5 c"])


async def test_checkpoints_are_listed_the_highest_first(scripts: Scripts, keys: Keys) -> None:
    for number in range(3):
        await _put(scripts, keys, b"%%:%d" % number)
    await ask(scripts, "HDEL", graph_keys(keys).thread, "r%:0")
    reply = await scripts.list_checkpoints(graph_keys(keys), high=b"(%:2", low=b"[%:", size=9)
    assert reply == ok(b"%:1", GRAPH_ROW, b"%:0", b"")


async def test_whole_checkpoints_are_listed_the_highest_first(scripts: Scripts, keys: Keys) -> None:
    for number in range(3):
        await _put(scripts, keys, b"%%:%d" % number)
    await _put(scripts, keys, b"%!:9")
    await ask(scripts, "HDEL", graph_keys(keys).thread, "r%:1")

    async def page(high: bytes, *, size: int = 9, most: int = 1000) -> Reply:
        return await scripts.page_checkpoints(
            graph_keys(keys), high=high, low=b"[%:", size=size, most_bytes=most
        )

    values, none = [b"%:i1 c", b"v"], list[bytes]()
    newest, oldest = [b"%:2", GRAPH_ROW, none], [b"%:0", GRAPH_ROW, none]
    assert await page(b"(%;") == ok(b"", values, newest, [], oldest)
    assert await page(b"(%;", most=1) == ok(b"%:2", values, newest)
    # A full page says where it ends, and so does one that ends with what is not there.
    assert await page(b"(%;", size=2) == ok(b"%:1", values, newest, [])
    assert await page(b"(%:1", size=2) == ok(b"", values, oldest)
    assert await page(b"(%:0") == ok(b"", [])


async def test_namespaces_are_listed_by_their_newest(scripts: Scripts, keys: Keys) -> None:
    for place in (b"%:1", b"%:2", b"a:5", b"a:6", b"ab:1"):
        await _put(scripts, keys, place)
    reply = await scripts.list_graph_namespaces(graph_keys(keys), after=b"", size=2)
    assert reply == ok(b"%:2", b"a:6")
    reply = await scripts.list_graph_namespaces(graph_keys(keys), after=b"a:6", size=2)
    assert reply == ok(b"ab:1")


def _row(parent: bytes | None, *names: bytes) -> bytes:
    def text(given: bytes) -> bytes:
        return bytes([0xA0 + len(given)]) + given

    first = b"\xc0" if parent is None else text(parent)
    return b"\x93" + first + b"\xa0" + bytes([0x90 + len(names)]) + b"".join(map(text, names))


async def test_deltas_are_walked_up_to_the_nearest_value(scripts: Scripts, keys: Keys) -> None:
    await _put(scripts, keys, b"%:1", row=_row(None, b"i1 c"), values=[b"%:i1 c", b"old"])
    await _put(scripts, keys, b"%:2", row=_row(b"1", b"i2 c"), values=[])
    await _put(scripts, keys, b"%:3", row=_row(b"2", b"i3 c"), values=[])
    await _write(scripts, keys, b"0", b"c", b"w", b"1", b"d", b"x")

    async def walk(most: int, *channels: bytes) -> Reply:
        return await scripts.walk_deltas(
            graph_keys(keys), place=b"%:3", most=most, channels=channels
        )

    seed = [[b"t 0 1 c", b"w"], [b"c", b"%:i1 c"], [b"%:i1 c", b"old"]]
    assert await walk(10, b"c", b"c") == ok(b"", seed)
    assert await walk(1, b"c", b"c") == ok(b"%:2")
    # One that has no value anywhere is looked for up to the root.
    both = [[b"t 0 1 c", b"w", b"t 1 2 d", b"x"], [b"c", b"%:i1 c"], [b"%:i1 c", b"old"]]
    assert await walk(10, b"c", b"c", b"d", b"d") == ok(b"", both)


async def test_threads_are_listed_by_name_until_they_expire(scripts: Scripts, keys: Keys) -> None:
    listing = graph_listing(keys)
    for thread in (b"b", b"a", b"\xed\xa0\x80"):
        assert await scripts.enter_listing(listing, entry=thread, ttl_ms=HOUR) == ok()
    reply = await scripts.read_listing(listing, start=b"-", size=2)
    assert reply.facts[::2] == [b"a", b"b"]
    # One that was listed again since stays.
    stamp = reply.facts[1]
    await scripts.enter_listing(listing, entry=b"a", ttl_ms=HOUR)
    for leave in (scripts.leave_listing, scripts.unlist_missing):
        assert await leave(listing, entry=b"a", stamp=stamp) == ok(0)
    again = await scripts.read_listing(listing, start=b"-", size=1)
    assert await scripts.leave_listing(listing, entry=b"a", stamp=again.facts[1]) == ok(1)
    # Nor has it a stamp that it had before it was taken out.
    stamps = set[bytes]()
    for _ in range(20):
        await scripts.enter_listing(listing, entry=b"a", ttl_ms=HOUR)
        entered = (await scripts.read_listing(listing, start=b"[a", size=1)).facts[1]
        assert await scripts.renew_listing(listing, entry=b"a", ttl_ms=HOUR) == ok(1)
        stamp = (await scripts.read_listing(listing, start=b"[a", size=1)).facts[1]
        assert await scripts.unlist_missing(listing, entry=b"a", stamp=stamp) == ok(1)
        stamps |= {entered, stamp}
    assert len(stamps) == 40
    # What has expired goes with the next one that is listed.
    await ask(scripts, "ZADD", listing.expiries, 1, "b")
    await scripts.enter_listing(listing, entry=b"c", ttl_ms=HOUR)
    reply = await scripts.read_listing(listing, start=b"-", size=9)
    assert reply.facts[::2] == [b"c", b"\xed\xa0\x80"]
    assert all(0 < left <= HOUR for left in await lives(scripts, listing.index, listing.expiries))


@pytest.mark.parametrize("field", ["r%:1", "w%:1"])
async def test_a_damaged_thread_does_not_break_the_script(
    scripts: Scripts, keys: Keys, field: str
) -> None:
    await _put(scripts, keys)
    await ask(scripts, "HDEL", graph_keys(keys).thread, field)
    assert len((await _read(scripts, keys, b"%:1")).facts) == 2


async def test_a_put_whose_parent_is_not_there_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    refused = await _put(scripts, keys, b"%:2", parent=b"%:1")
    assert refused.word is ReplyCode.STALE
    assert await ask(scripts, "EXISTS", graph_keys(keys).thread, graph_keys(keys).order) == 0
    await _put(scripts, keys, b"%:1")
    put = await _put(scripts, keys, b"%:2", parent=b"%:1")
    assert put.word is ReplyCode.OK
