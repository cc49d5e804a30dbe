from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts
from tests.looking import HOUR, fields, lives, ok


async def test_an_owners_go_and_no_others(scripts: Scripts, keys: Keys) -> None:
    push = keys.a2a_configs("t")
    for name in (b"o a", b"o b", b"oo a"):
        await scripts.put_a2a_config(push, name=name, config=b"", most=9, ttl_ms=HOUR)
    assert await scripts.drop_a2a_configs(push, owner=b"o ", name=b"oo a") == ok(0)
    assert await scripts.drop_a2a_configs(push, owner=b"o ", name=b"o b") == ok(1)
    assert set(await fields(scripts, push)) == {"", "o a", "oo a"}
    assert await scripts.drop_a2a_configs(push, owner=b"oo ", name=b"") == ok(1)
    assert await scripts.drop_a2a_configs(push, owner=b"o ", name=b"") == ok(1)
    assert await lives(scripts, push) == [-2]
    assert await scripts.drop_a2a_configs(push, owner=b"o ", name=b"") == ok(0)
