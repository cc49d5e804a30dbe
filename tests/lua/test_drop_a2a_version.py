from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a_rows import indexed, version_keys, write
from tests.support.scripts import HOUR, fields, lives, no, ok, rows_of


async def test_a_deleted_task_says_so_for_a_while(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    assert await scripts.drop_a2a_version(task, write="d", ttl_ms=HOUR) == ok(3)
    found = await fields(scripts, task.task)
    assert "body" not in found
    assert found["phase"] == b"g"
    assert await rows_of(scripts, task.events) == [(3, "d")]
    assert await indexed(scripts, keys) == [0, 0, 0]
    assert all(life <= 1.5 * HOUR for life in await lives(scripts, task.task, task.events.rows))


async def test_it_is_deleted_once(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    assert await scripts.drop_a2a_version(task, write="d", ttl_ms=HOUR) == no(ReplyCode.MISSING)
    await write(scripts, task)
    for _ in range(2):
        assert await scripts.drop_a2a_version(task, write="d", ttl_ms=HOUR) == ok(2)
    assert await scripts.drop_a2a_version(task, write="e", ttl_ms=HOUR) == no(ReplyCode.MISSING)


async def test_nobody_writes_a_deleted_task_anew(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await scripts.drop_a2a_version(task, write="d", ttl_ms=HOUR)
    for rule in ("0", "1", "2", "open", "any", "told"):
        assert await write(scripts, task, rule=rule, write="x") == no(ReplyCode.DENIED, b"-")
