from __future__ import annotations

from typing import Any

import pytest

from redis_state.transport.keys import Keys, LogKeys
from redis_state.transport.scripts import Reply, Scripts, Word
from tests.looking import append, ask, clock_ms, clock_passes, no, ok


async def read(
    scripts: Scripts, log: LogKeys, after: int | None, after_ms: int = 0, topic: str | None = None
) -> Reply:
    return await scripts.read_log(log, after=after, after_ms=after_ms, count=3, topic=topic)


def ids(reply: Reply) -> list[Any]:
    assert reply.word is Word.OK
    return [entry[1][1].decode() for entry in reply.facts[3]]


async def times(scripts: Scripts, log: LogKeys) -> list[int]:
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    return [int(entry.split(b"-")[1]) for entry, _ in entries]


async def test_an_absent_log_is_empty(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    for after in (None, 0):
        assert await read(scripts, log, after) == ok(1, 0, 0, [])
    assert await read(scripts, log, 1, 5) == no(Word.GAP, b"ahead", 1, 0, 0, 0)


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
    facts = [3, ms[0], 4, ms[1]]
    assert await read(scripts, log, 1, ms[0]) == no(Word.GAP, b"trimmed", *facts)
    assert await read(scripts, log, 3, ms[0] - 1) == no(Word.GAP, b"foreign", *facts)
    assert await read(scripts, log, 2, ms[0] - 1) == no(Word.GAP, b"foreign", *facts)
    assert await read(scripts, log, 9, ms[1] - 1) == no(Word.GAP, b"foreign", *facts)
    assert await read(scripts, log, 9, ms[1] + 1) == no(Word.GAP, b"ahead", *facts)
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
        assert (await read(scripts, log, after, ms[0])).word is Word.GAP
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
