from __future__ import annotations

from redis_state.models.version import Version
from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def test_a_record_is_listed_where_it_belongs_and_leaves_the_other_lists(
    scripts: Scripts, keys: Keys
) -> None:
    record = keys.llama_handler("h")
    indexes = [keys.llama_handlers(), keys.llama_running()]

    async def save(
        write: str, listed: int, expected: Version | None = None, **given: bytes
    ) -> object:
        return await scripts.save_listed(
            record,
            given,
            indexes=indexes,
            write=write,
            ttl_ms=HOUR,
            member="\ud800",
            listed=listed,
            expected=expected,
        )

    async def lengths() -> list[int]:
        return [await ask(scripts, "ZCARD", index) for index in indexes]

    for _ in range(2):
        assert await save("w1", 2, document=b"a") == ok(1)
    assert await lengths() == [1, 1]
    assert all(0 < left <= HOUR for left in await lives(scripts, record, *indexes))
    assert await save("w2", 1, document=b"b") == ok(2)
    assert await lengths() == [1, 0]
    for expected in (Version(1, "w1"), Version(2, "w1")):
        assert await save("w3", 2, expected, document=b"c") == no(ReplyCode.STALE, 2, b"w2")
    assert await lengths() == [1, 0]
    found = await fields(scripts, record)
    assert found == {"version": b"2", "write": b"w2", "document": b"b", "order": found["order"]}
    for _ in range(2):
        assert await save("w3", 2, Version(2, "w2"), document=b"c") == ok(3)
    assert await lengths() == [1, 1]
    for deleted in (1, 0):
        reply = await scripts.drop_listed(record, indexes=indexes, member="\ud800")
        assert reply == ok(deleted)
    assert await lives(scripts, record, *indexes) == [-2, -2, -2]
    assert await scripts.drop_listed(record, indexes=[], member="") == ok(0)
