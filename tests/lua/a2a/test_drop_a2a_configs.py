from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import a2a_keys
from tests.support.scripts.replies import HOUR, fields, lives, ok


async def test_one_or_all_go(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    for _ in range(2):
        for name in ("a", "b", "c"):
            await scripts.put_a2a_config(task, name=name, config=b"", most=9, ttl_ms=HOUR)
        assert await scripts.drop_a2a_configs(task, name="x") == ok(0)
        assert await scripts.drop_a2a_configs(task, name="b") == ok(1)
        assert set(await fields(scripts, task.configs)) == {"", "a", "c"}
        assert await scripts.drop_a2a_configs(task, name="") == ok(2)
        assert await lives(scripts, task.configs) == [-2]
        assert await scripts.drop_a2a_configs(task, name="") == ok(0)


async def test_the_last_one_takes_the_key_along(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await scripts.put_a2a_config(task, name="a", config=b"", most=9, ttl_ms=HOUR)
    assert await scripts.drop_a2a_configs(task, name="a") == ok(1)
    assert await lives(scripts, task.configs) == [-2]
