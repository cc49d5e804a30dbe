from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import a2a_keys, drop, write
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def put(
    scripts: Scripts, keys: Keys, name: str, config: bytes = b"", *, most: int = 9
) -> Reply:
    return await scripts.put_a2a_config(
        a2a_keys(keys), name=name, config=config, most=most, ttl_ms=HOUR
    )


async def test_a_configuration_is_kept_and_replaced(scripts: Scripts, keys: Keys) -> None:
    push = a2a_keys(keys).configs
    for number, (name, config) in enumerate([("a", b"1"), ("b", b"2"), ("a", b"3")], 1):
        assert await put(scripts, keys, name, config) == ok(number)
    assert await fields(scripts, push) == {"": b"3", "a": b"3 3", "b": b"2 2"}
    assert 0 < (await lives(scripts, push))[0] <= HOUR


async def test_there_are_only_so_many(scripts: Scripts, keys: Keys) -> None:
    replies = [await put(scripts, keys, name, most=2) for name in ("a", "b", "a", "c")]
    assert replies == [ok(1), ok(2), ok(3), no(ReplyCode.DENIED, 2)]


async def test_it_lives_as_long_as_its_task_and_goes_with_it(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, ttl_ms=HOUR // 2)
    await put(scripts, keys, "a")
    before, life = await lives(scripts, task.task, task.configs)
    assert before - 1000 < life <= before <= HOUR // 2
    await write(scripts, task, rule="1", write="w2", phase="w", ttl_ms=2 * HOUR)
    assert (await lives(scripts, task.configs))[0] > HOUR
    await write(scripts, task, rule="2", write="w3", phase="e", ttl_ms=HOUR // 4)
    assert (await lives(scripts, task.configs))[0] <= HOUR // 4
    await drop(scripts, task)
    assert await lives(scripts, task.configs) == [-2]
    assert await put(scripts, keys, "a") == no(ReplyCode.MISSING)
    assert await lives(scripts, task.configs) == [-2]


async def test_it_may_need_a_task_that_is_there(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)

    async def put_on_task(name: str) -> Reply:
        return await scripts.put_a2a_config(task, name=name, config=b"", most=0, ttl_ms=0)

    assert await put_on_task("a") == no(ReplyCode.MISSING)
    assert await lives(scripts, task.configs) == [-2]
    await write(scripts, task)
    assert [await put_on_task(name) for name in "abc"] == [ok(1), ok(2), ok(3)]
    assert 0 < (await lives(scripts, task.configs))[0] <= HOUR


async def test_a_task_that_was_restored_without_a_lifetime_keeps_its_configurations(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await ask(scripts, "PERSIST", task.task)
    reply = await scripts.put_a2a_config(task, name="a", config=b"c", most=0, ttl_ms=0)
    assert reply == ok(1)
    assert (await fields(scripts, task.configs))["a"] == b"1 c"
    for key in (task.task, task.configs):
        await ask(scripts, "PEXPIRE", key, HOUR)
