from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append


async def tail(
    scripts: Scripts,
    log: LogKeys,
    after_id: str = "",
    *,
    topic: str | None = None,
    count: int = 2,
    before: int | None = None,
) -> str:
    reply = await scripts.tail_log(
        log,
        after_id=after_id.encode(),
        before=before,
        count=count,
        topic=topic,
        most_bytes=1 << 20,
    )
    return "".join(entry[1][1].decode() for entry in reply.facts[0])


async def test_the_newest_rows_after_an_id(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    assert await tail(scripts, log) == ""
    assert await tail(scripts, log, topic="t") == ""
    for row_id, topic in zip("abcdef", ["t", "", "t", None, "t", ""], strict=True):
        await append(scripts, log, row_id, topic=topic)
    assert await tail(scripts, log) == "fe"
    assert await tail(scripts, log, "d") == "fe"
    assert await tail(scripts, log, "e") == "f"
    assert await tail(scripts, log, "unknown") == "fe"
    assert await tail(scripts, log, topic="t") == "ec"
    assert await tail(scripts, log, "c", topic="t") == "e"
    assert await tail(scripts, log, topic="", count=9) == "fb"
    # Before a row: its number is not among them.
    assert await tail(scripts, log, before=5) == "dc"
    assert await tail(scripts, log, "c", before=5) == "d"
    assert await tail(scripts, log, topic="t", before=5, count=9) == "ca"
    assert await tail(scripts, log, before=1) == await tail(scripts, log, topic="t", before=1) == ""


async def test_no_more_rows_follow_once_they_have_so_many_bytes(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, *(f"{number}" for number in range(1, 21)), topic="t")
    for topic, most in ((None, 8), ("t", 1)):
        reply = await scripts.tail_log(
            log, after_id=b"", before=None, count=20, topic=topic, most_bytes=1
        )
        rows, *cut = reply.facts
        assert [int(entry[1][1]) for entry in rows] == list(range(20, 20 - most, -1))
        assert cut == [1]


async def test_numbers_of_dropped_rows_are_passed_over(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b", topic="t")
    await append(scripts, log, "c", "d", topic="u", max_rows=2)
    assert await tail(scripts, log, topic="t") == ""
    await scripts.clear_log(log)
    await append(scripts, log, "e", topic="u")
    assert await tail(scripts, log, topic="u", count=3) == "e"
