from __future__ import annotations

import pytest

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, lives, ok


@pytest.mark.parametrize("only_if_gone", [False, True])
async def test_a_record_and_its_place_go(
    scripts: Scripts, keys: Keys, *, only_if_gone: bool
) -> None:
    key, index = keys.task("s", ""), keys.tasks("s")
    await scripts.put_record(key, {}, write="w", ttl_ms=HOUR, index=index, member="")

    async def delete() -> object:
        return await scripts.delete_record(key, index=index, member="", only_if_gone=only_if_gone)

    if only_if_gone:
        assert await delete() == ok(0)
        assert await ask(scripts, "ZCARD", index) == 1
        await ask(scripts, "DEL", key)
    else:
        assert await delete() == ok(1)
    assert await delete() == ok(0)
    assert await lives(scripts, key, index) == [-2, -2]


async def test_a_record_without_a_place_goes(scripts: Scripts, keys: Keys) -> None:
    key = keys.memory("m")
    await scripts.put_record(key, {}, write="w", ttl_ms=HOUR)
    assert await scripts.delete_record(key, index=None, member=None, only_if_gone=False) == ok(1)
    assert await lives(scripts, key) == [-2]
