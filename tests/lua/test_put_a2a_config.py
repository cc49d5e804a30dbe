from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts, Word
from tests.looking import HOUR, fields, lives, no, ok


async def test_a_configuration_is_kept_and_replaced(scripts: Scripts, keys: Keys) -> None:
    push = keys.a2a_configs("t")
    for number, (name, config) in enumerate([(b"o a", b"1"), (b"o b", b"2"), (b"o a", b"3")], 1):
        put = await scripts.put_a2a_config(push, name=name, config=config, most=9, ttl_ms=HOUR)
        assert put == ok(number)
    assert await fields(scripts, push) == {"": b"3", "o a": b"3 3", "o b": b"2 2"}
    assert 0 < (await lives(scripts, push))[0] <= HOUR


async def test_there_are_only_so_many(scripts: Scripts, keys: Keys) -> None:
    push = keys.a2a_configs("t")
    names = [b"o a", b"o b", b"o a", b"o c"]
    replies = [
        await scripts.put_a2a_config(push, name=name, config=b"", most=2, ttl_ms=HOUR)
        for name in names
    ]
    assert replies == [ok(1), ok(2), ok(3), no(Word.DENIED, 2)]
