from __future__ import annotations

import random
from typing import Any

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append, end_of, ids_hash, rows_of, topic_of
from tests.support.scripts.replies import ask, clock_ms, clock_passes, no, ok


async def read(
    scripts: Scripts, log: LogKeys, after: int | None, after_ms: int = 0, topic: str | None = None
) -> Reply:
    return await scripts.read_log(
        log, after=after, after_ms=after_ms, count=3, topic=topic, most_bytes=1 << 20
    )


def ids(reply: Reply) -> list[Any]:
    assert reply.word is ReplyCode.OK
    return [entry[1][1].decode() for entry in reply.facts[3]]


async def times(scripts: Scripts, log: LogKeys) -> list[int]:
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    return [int(entry.split(b"-")[1]) for entry, _ in entries]


async def test_an_absent_log_is_empty(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    for after in (None, 0):
        assert await read(scripts, log, after) == ok(1, 0, 0, [])
    assert await read(scripts, log, 1, 5) == no(ReplyCode.GAP, b"ahead", 0, 0)


async def test_rows_come_forward_from_a_cursor_and_by_topic(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    for row_id, topic in zip("abcdefg", ["t", None, "", "t", "t", "", "t"], strict=True):
        await append(scripts, log, row_id, topic=topic)
    ms = await times(scripts, log)
    for _ in range(2):
        assert ids(await read(scripts, log, None)) == ["a", "b", "c"]
        assert ids(await read(scripts, log, 3, ms[2])) == ["d", "e", "f"]
        assert ids(await read(scripts, log, 1, ms[0], "t")) == ["d", "e", "g"]
        assert ids(await read(scripts, log, None, 0, "")) == ["c", "f"]
        assert ids(await read(scripts, log, 7, ms[6])) == []
        assert ids(await read(scripts, log, None, 0, "none")) == []
    assert (await read(scripts, log, None)).facts[:3] == [1, 7, ms[6]]


async def test_a_cursor_that_would_skip_rows_is_told(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b", "c", "d", max_rows=2)
    ms = await times(scripts, log)
    assert await read(scripts, log, 1, ms[0]) == no(ReplyCode.GAP, b"trimmed", 2, ms[0])
    assert await read(scripts, log, -1) == no(ReplyCode.GAP, b"foreign", 2, ms[0])
    assert await read(scripts, log, 3, ms[0] - 1) == no(ReplyCode.GAP, b"foreign", 2, ms[0])
    assert await read(scripts, log, 2, ms[0] - 1) == no(ReplyCode.GAP, b"foreign", 2, ms[0])
    assert await read(scripts, log, 9, ms[1] - 1) == no(ReplyCode.GAP, b"foreign", 2, ms[0])
    assert await read(scripts, log, 9, ms[1] + 1) == no(ReplyCode.GAP, b"ahead", 4, ms[1])
    assert ids(await read(scripts, log, 2, ms[0])) == ["c", "d"]


@pytest.mark.parametrize("rows_then", [0, 1, 3, 6])
async def test_no_cursor_of_an_earlier_life_is_taken_for_one_of_this(
    scripts: Scripts, keys: Keys, rows_then: int
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b", "c")
    ms = await times(scripts, log)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    await ask(scripts, "DEL", log.rows, log.ids)
    for number in range(rows_then):
        await append(scripts, log, f"new-{number}", max_rows=3)
    for after in (1, 2, 3):
        assert (await read(scripts, log, after, ms[0])).word is ReplyCode.GAP
    if rows_then:
        reply = await read(scripts, log, 3, ms[2])
        assert reply.facts[0] == b"foreign"


async def test_a_row_that_is_not_there_makes_its_cursor_foreign(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b")
    ms = await times(scripts, log)
    await ask(scripts, "DEL", log.rows)
    assert (await read(scripts, log, 1, ms[0])).facts[0] == b"foreign"


@pytest.fixture
async def stepped(scripts: Scripts, keys: Keys) -> LogKeys:
    """Give a log of six rows: 1 and 2 of the time 10, 3 and 4 of 20, 5 and 6 of 30."""
    log = keys.updates("s")
    await append(scripts, log, *"abcdef")
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    await ask(scripts, "DEL", log.rows)
    for entry, row in entries:
        n = int(entry.partition(b"-")[0])
        await ask(scripts, "XADD", log.rows, f"{n}-{(n + 1) // 2 * 10}", *row)
    await ask(scripts, "PEXPIRE", log.rows, 60_000)
    head: bytes = await ask(scripts, "HGET", log.ids, "")
    _, first, _, expires, before = head.decode().split()
    await ask(scripts, "HSET", log.ids, "", f"6-30 {first} 10 {expires} {before}")
    return log


@pytest.mark.parametrize(
    ("cursor", "reason", "goes_on"),
    [
        # Of a lost history, with as many new rows, more, fewer, one.
        ((6, 25), b"rewound", (4, 20)),
        ((5, 25), b"rewound", (4, 20)),
        ((9, 25), b"rewound", (4, 20)),
        ((9, 20), b"rewound", (4, 20)),
        ((9, 19), b"rewound", (2, 10)),
        ((3, 19), b"rewound", (2, 10)),
        ((3, 10), b"rewound", (2, 10)),
        # No new row.
        ((7, 30), b"ahead", (6, 30)),
        ((9, 31), b"ahead", (6, 30)),
        ((9, 0), b"ahead", (6, 30)),
        # Of another log: by that time this one had that row already, or none.
        ((4, 25), b"foreign", (0, 0)),
        ((2, 19), b"foreign", (0, 0)),
        ((1, 20), b"foreign", (0, 0)),
        ((6, 31), b"foreign", (0, 0)),
        ((3, 9), b"foreign", (0, 0)),
        ((9, 9), b"foreign", (0, 0)),
    ],
)
async def test_what_was_seen_of_a_lost_history_is_what_is_not_later_than_the_cursor(
    scripts: Scripts,
    stepped: LogKeys,
    cursor: tuple[int, int],
    reason: bytes,
    goes_on: tuple[int, int],
) -> None:
    assert await read(scripts, stepped, *cursor) == no(ReplyCode.GAP, reason, *goes_on)


async def test_of_a_trimmed_log_too(scripts: Scripts, stepped: LogKeys) -> None:
    await append(scripts, stepped, "g", max_rows=4)
    assert [n for n, _ in await rows_of(scripts, stepped)] == [4, 5, 6, 7]
    assert await read(scripts, stepped, 9, 35) == no(ReplyCode.GAP, b"rewound", 6, 30)
    assert await read(scripts, stepped, 9, 29) == no(ReplyCode.GAP, b"rewound", 4, 20)
    # Row 3 was dropped, and was as late as row 4; of before nothing is known.
    assert await read(scripts, stepped, 9, 19) == no(ReplyCode.GAP, b"foreign", 3, 20)
    assert await read(scripts, stepped, 2, 19) == no(ReplyCode.GAP, b"trimmed", 3, 20)


async def test_the_time_of_a_row_is_never_before_that_of_the_last(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a")
    head: bytes = await ask(scripts, "HGET", log.ids, "")
    # The clock was set back by an hour since.
    later = await clock_ms(scripts) + 3_600_000
    _, rest = head.decode().split(" ", 1)
    await ask(scripts, "HSET", log.ids, "", f"1-{later} {rest}")
    await append(scripts, log, "b", "c")
    assert (await times(scripts, log))[1:] == [later, later]
    assert ids(await read(scripts, log, 2, later)) == ["c"]
    assert (await end_of(scripts, log))[:2] == [3, later]


@pytest.mark.parametrize("start", [0, 2**40, 2**53 - 600])
async def test_the_rows_of_topics_are_found_through_all_blocks_of_their_indexes(
    scripts: Scripts, keys: Keys, start: int
) -> None:
    """As a plain list says: from each cursor, forward and from the end, while rows are dropped."""
    log, pattern = keys.updates("s"), random.Random(start)
    names = ["t", "", "t 1", "\ud800", "0"]
    model: list[tuple[int, str]] = []
    if start:
        await ask(scripts, "HSET", log.ids, "", f"{start}-1 {start + 1} 0 0 0")
    for number in range(start + 1, start + 301):
        # Some topics come in a row, one comes seldom.
        topic = names[number // 7 % 4] if number % 41 else "0"
        await append(scripts, log, str(number), topic=topic, max_rows=230)
        model.append((number, topic))
    first = (await rows_of(scripts, log))[0][0]
    assert start + 1 < first <= start + 71
    for _ in range(2):
        for topic in [*names, "none"]:
            rows = [str(n) for n, of in model if of == topic and n >= first]
            for _ in range(12):
                after, count = pattern.randrange(first - 1, start + 301), pattern.randrange(1, 90)
                reply = await scripts.read_log(
                    log, after=after, after_ms=0, count=count, topic=topic, most_bytes=1 << 20
                )
                assert ids(reply) == [row for row in rows if int(row) > after][:count]
                after_id = str(after).encode()
                before = after + pattern.randrange(1, 400)
                reply = await scripts.tail_log(
                    *(log,),
                    after_id=after_id,
                    before=before,
                    count=count,
                    topic=topic,
                    most_bytes=1 << 20,
                )
                found = [entry[1][1].decode() for entry in reply.facts[0]][::-1]
                newer = [row for row in rows if int(row) > after or after < first]
                assert found == [row for row in newer if int(row) < before][-count:]
        # A cursor that is the last row, whose id is its number too.
        await append(scripts, log, str(start + 301), topic="t", max_rows=60)
        model.append((start + 301, "t"))
        first = (await rows_of(scripts, log))[0][0]


async def test_a_topic_whose_rows_are_all_dropped_leaves_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, *(f"old-{number}" for number in range(100)), topic="old")
    assert len(await ids_hash(scripts, log)) > 103
    for number in range(20):
        await append(scripts, log, f"new-{number}", topic="new", max_rows=10)
    assert {name for name in await ids_hash(scripts, log) if name[:1] > b"\xf7"} == {b"\xffnew"}
    assert await topic_of(scripts, log, "old") == []
