from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis_state.scripts import IndexedTask, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, no, ok
from tests.support.tasks.index.earlier_index import earlier_index

LETTERS = "prwcfx"
ODD = [
    "",
    "\x00",
    "\x00\x01",
    "\x01",
    "a",
    "a\x00",
    "a\x01",
    "a\x00b",
    "\ud800",
    "é" * 90,
    "x" * 65,
]


def task(name: str = "t", **changes: Any) -> IndexedTask:
    given: dict[str, Any] = {
        "entry": name.encode("utf-8", "surrogatepass"),
        "status": "p",
        "version": 1,
        "write": "w1",
        "ttl_ms": HOUR,
        "created": 5,
        "session": "s",
        "task": name,
        "handler": "h",
        "attributes": [],
    }
    return IndexedTask(**given | changes)


async def put(scripts: Scripts, keys: Keys, each: IndexedTask, rule: str = "whole") -> Reply:
    return await scripts.index_task(keys.task_index(0), each, rule=rule)


async def found(
    scripts: Scripts,
    keys: Keys,
    kind: str = "*",
    value: str | bytes = "",
    statuses: str = LETTERS,
    *,
    wanted: Sequence[bytes] = (),
    newest: bool = True,
    low: bytes = b"[",
    high: bytes = b"(\xff",
    size: int = 100,
    most: int = 1000,
) -> list[str]:
    value = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    reply = await scripts.find_tasks(
        keys.task_index(0),
        kind=kind,
        value=value,
        statuses=statuses,
        newest=newest,
        low=low,
        high=high,
        size=size,
        most=most,
        wanted=wanted,
    )
    assert reply.word is ReplyCode.OK
    return [name.decode("utf-8", "surrogatepass") for name in reply.facts[5::5]]


async def members(scripts: Scripts, keys: Keys) -> int:
    return int(await ask(scripts, "ZCARD", keys.task_index(0).index))


async def test_a_task_is_listed_and_inspected_in_one_step(scripts: Scripts, keys: Keys) -> None:
    index = keys.task_index(0)
    reply = await scripts.index_task(index, task(), rule="new", delay_ms=HOUR, stands="given")
    assert reply == ok(int(await ask(scripts, "ZSCORE", index.watch, "t")))
    assert await put(scripts, keys, task(version=2, status="r"), "move") == ok(-1)
    assert await found(scripts, keys, "s", "s", "p") == []
    assert await found(scripts, keys, "s", "s", "r") == ["t"]
    assert await members(scripts, keys) == 3
    day = 24 * HOUR
    assert all(399 * day < left for left in await lives(scripts, index.index, index.about))


async def test_an_older_version_does_not_replace_a_newer_one(scripts: Scripts, keys: Keys) -> None:
    newer = task(version=3, write="w3", status="c", attributes=[b"a=1"])
    for _ in range(2):
        assert await put(scripts, keys, newer) == ok(-1)
    for rule in ("move", "whole", "new"):
        assert await put(scripts, keys, task(version=2), rule) == no(ReplyCode.STALE, -1, b"3 w3 c")
    assert await found(scripts, keys, "a", "a=1", "c") == ["t"]
    # Unless its writer knows what it replaces: the record's history went back.
    assert await put(scripts, keys, task(version=2), "is 3 w0 c") == no(
        ReplyCode.STALE, -1, b"3 w3 c"
    )
    for stamp in ("3 w3 c", "2 w1 p"):
        assert await put(scripts, keys, task(version=2), f"is {stamp}") == ok(-1)
    assert await found(scripts, keys, "a", "a=1") == []
    assert await found(scripts, keys, statuses="p") == ["t"]


async def test_what_is_not_listed_is_not_moved(scripts: Scripts, keys: Keys) -> None:
    assert await put(scripts, keys, task(), "move") == no(ReplyCode.MISSING, -1)
    assert await put(scripts, keys, task(), "is ") == ok(-1)
    assert await put(scripts, keys, task(), "is ") == no(ReplyCode.STALE, -1, b"1 w1 p")
    assert await put(scripts, keys, task(), "new") == ok(-1)
    assert await put(scripts, keys, task(write="w2"), "new") == no(ReplyCode.STALE, -1, b"1 w1 p")


async def test_what_is_taken_out_leaves_nothing(scripts: Scripts, keys: Keys) -> None:
    index = keys.task_index(0)
    await put(scripts, keys, task(attributes=[b"a=1", b"b=2"]))
    assert await scripts.unindex_task(index, entry=b"t", stamp="9 w p") == no(
        ReplyCode.STALE, b"1 w1 p"
    )
    for _ in range(2):
        assert await scripts.unindex_task(index, entry=b"t", stamp="1 w1 p") == ok()
    assert await ask(scripts, "EXISTS", index.index, index.about, index.expiry) == 0


async def test_a_new_task_pays_for_the_removal_of_a_few_that_have_expired(
    scripts: Scripts, keys: Keys
) -> None:
    for number in range(6):
        await put(scripts, keys, task(f"t{number}"))
    for number in range(6):
        await put(scripts, keys, task(f"t{number}", version=2, ttl_ms=1), "move")
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    await put(scripts, keys, task("t1", version=3), "move")
    await put(scripts, keys, task("more"))
    await put(scripts, keys, task("again"))
    assert set(await found(scripts, keys)) == {"more", "again", "t1"}
    assert await members(scripts, keys) == 9


async def ends(scripts: Scripts, keys: Keys, statuses: str = "cfx", **bounds: Any) -> list[str]:
    return await found(scripts, keys, "e", "", statuses, **bounds)


async def test_what_has_ended_is_listed_by_its_end_too(scripts: Scripts, keys: Keys) -> None:
    for number, (created, ended) in enumerate(((9, 30), (7, 20), (8, 10))):
        name = f"t{number}"
        await put(scripts, keys, task(name, created=created))
        over = task(name, version=2, write="w2", status="fcf"[number], ended=ended)
        # A repetition does no harm. Of a state that is listed a move may not know the end.
        for again in (over, over, over._replace(ended=None)):
            assert await put(scripts, keys, again, "move") == ok(-1)
    assert await ends(scripts, keys) == ["t0", "t1", "t2"]
    assert await ends(scripts, keys, newest=False) == ["t2", "t1", "t0"]
    assert await ends(scripts, keys, "f") == ["t0", "t2"]
    low, high = b"[" + (20).to_bytes(7, "big"), b"(" + (30).to_bytes(7, "big")
    assert await ends(scripts, keys, low=low, high=high) == ["t1"]
    assert await ends(scripts, keys, wanted=[b">8", b"<9", b"hh"]) == ["t2"]
    assert await ends(scripts, keys, wanted=[b"hg"]) == []
    assert await found(scripts, keys) == ["t0", "t2", "t1"]
    shard = keys.task_index(0)
    assert await scripts.count_ended(shard, statuses="fcx", low=b"[", high=high) == ok(1, 1, 0)
    assert await members(scripts, keys) == 12
    assert await put(scripts, keys, task("t0", version=3, write="w3"), "move") == ok(-1)
    assert await ends(scripts, keys) == ["t1", "t2"]
    stamp = b"2 w2 c 20"
    assert await put(scripts, keys, task("t1"), "is 2 w2 c") == no(ReplyCode.STALE, -1, stamp)
    assert await scripts.unindex_task(shard, entry=b"t1", stamp=stamp.decode()) == ok()
    assert await ends(scripts, keys) == ["t2"]
    assert await members(scripts, keys) == 7


async def test_an_end_is_written_whole_and_again_until_its_task_expires(
    scripts: Scripts, keys: Keys
) -> None:
    for version, ended in ((2, 5), (3, 4)):
        over = task(version=version, write=f"w{version}", status="x", ended=ended)
        assert await put(scripts, keys, over) == ok(-1)
        assert await members(scripts, keys) == 4
        low = b"[" + ended.to_bytes(7, "big")
        assert await ends(scripts, keys, low=low, high=low + b"\xff" * 11) == ["t"]
    await put(scripts, keys, over._replace(ttl_ms=1), "move")
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    await put(scripts, keys, task("more"))
    assert await ends(scripts, keys) == []
    assert await members(scripts, keys) == 3


async def test_an_earlier_versions_writes_are_borne_and_what_they_leave_goes(
    scripts: Scripts, keys: Keys
) -> None:
    index = keys.task_index(0)

    def over(version: int, ended: int | None, **changes: Any) -> IndexedTask:
        given: dict[str, Any] = {"version": version, "write": f"w{version}", "status": "f"}
        return task(ended=ended, **given | changes)

    # It moves a task that has an end: the end stays listed, and is not the task's.
    await put(scripts, keys, over(2, 20))
    with earlier_index():
        await put(scripts, keys, over(3, None, status="r"), "move")
        assert await found(scripts, keys) == ["t"]
    assert await members(scripts, keys) == 4
    stamp = "3 w3 r 20"
    assert await put(scripts, keys, over(3, None), "new") == no(ReplyCode.STALE, -1, stamp.encode())
    assert await put(scripts, keys, over(3, None, status="r"), f"is {stamp}") == ok(-1)
    assert await members(scripts, keys) == 3
    # It writes one whole: what is left over is listed until the record decides, then no more.
    await put(scripts, keys, over(4, 40))
    with earlier_index():
        await put(scripts, keys, over(5, None))
    assert await ends(scripts, keys) == ["t"]
    await put(scripts, keys, over(5, 50), "is 5 w5 f")
    assert await ends(scripts, keys) == ["t"]
    assert await members(scripts, keys) == 5
    # It takes one out. The next one of the list that goes takes what is left before it along.
    await put(scripts, keys, task("u", status="f", ended=60))
    with earlier_index():
        assert await scripts.unindex_task(index, entry=b"t", stamp="5 w5 f") == ok()
    assert await ends(scripts, keys) == ["u"]
    assert await members(scripts, keys) == 6
    for entry, left in (("u", 1), ("v", 0)):
        await put(scripts, keys, task(entry, status="f", ended=60))
        assert await scripts.unindex_task(index, entry=entry.encode(), stamp="1 w1 f 60") == ok()
        assert await members(scripts, keys) == left


async def test_any_text_is_a_session_a_task_and_a_handler(scripts: Scripts, keys: Keys) -> None:
    for number, name in enumerate(ODD):
        raw = name.encode("utf-8", "surrogatepass")
        await put(
            scripts,
            keys,
            task(name, session=name, handler=name, created=number, attributes=[b"k=" + raw]),
        )
    for name in ODD:
        raw = name.encode("utf-8", "surrogatepass")
        assert await found(scripts, keys, "s", name) == [name]
        assert await found(scripts, keys, "h", name, wanted=[b"s" + raw]) == [name]
        assert await found(scripts, keys, "a", b"k=" + raw, wanted=[b"sother"]) == []
    assert await found(scripts, keys) == ODD[::-1]
    assert await found(scripts, keys, newest=False) == ODD
    short = sorted(name for name in ODD if len(name) < 65)
    listed: list[str] = []
    place = b""
    while True:
        reply = await scripts.list_sessions(keys.task_index(0), after=place, size=3)
        listed += [name.decode("utf-8", "surrogatepass") for name in reply.facts[1::2]]
        if len(reply.facts) < 6:
            break
        place = reply.facts[-2]
    assert listed[: len(short)] == sorted(
        short, key=lambda name: name.encode("utf-8", "surrogatepass")
    )
    assert sorted(listed) == sorted(ODD)
    reply = await scripts.count_tasks(
        keys.task_index(0), kind="s", statuses="cp", values=[b"a\x00", b"none"]
    )
    assert reply == ok(5, 0, 1, 0, 0, 0)


async def test_a_page_merges_the_statuses_and_reads_no_more_than_it_may(
    scripts: Scripts, keys: Keys
) -> None:
    for number in range(40):
        each = task(
            f"{number:02d}",
            created=number // 2,
            status=LETTERS[number % 6],
            handler="hg"[number % 2],
        )
        await put(scripts, keys, each)
    everything = await found(scripts, keys)
    assert len(everything) == 40
    assert sorted(everything[:2]) == ["38", "39"]
    assert everything[::-1] == await found(scripts, keys, newest=False)
    shard = keys.task_index(0)

    async def part(high: bytes, most: int) -> Reply:
        return await scripts.find_tasks(
            shard,
            kind="*",
            value=b"",
            statuses=LETTERS,
            newest=True,
            low=b"[",
            high=high,
            size=5,
            most=most,
            wanted=[b"hg"],
        )

    listed: list[str] = []
    high, parts = b"(\xff", 0
    while True:
        more, last, *facts = (await part(high, 4)).facts
        assert len(facts) <= 4 * 5
        listed += [name.decode() for name in facts[3::5]]
        parts += 1
        high = b"(" + last
        if not more:
            break
    assert listed == [name for name in everything if int(name) % 2]
    assert parts == 10
    time = (10).to_bytes(7, "big")
    between = await found(scripts, keys, low=b"[" + time, high=b"(" + (12).to_bytes(7, "big"))
    assert sorted(between) == ["20", "21", "22", "23"]


async def test_many_writers_leave_what_the_last_version_says(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, task())
    writes = [
        put(scripts, keys, task(version=version, status=LETTERS[version % 6]), "move")
        for version in (5, 2, 9, 7, 3, 8)
    ]
    await asyncio.gather(*writes)
    assert await found(scripts, keys, statuses=LETTERS[9 % 6]) == ["t"]
    assert await members(scripts, keys) == 3
