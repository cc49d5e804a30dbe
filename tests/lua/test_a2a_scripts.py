"""create_a2a_task, update_a2a_task, read_a2a_task and save_a2a_push."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.script_samples import a2a_keys
from tests.support.scripts import HOUR, ask, lives, no, ok


class Task:
    """One task, called in short."""

    def __init__(self, scripts: Scripts, keys: Keys, name: str = "t") -> None:
        self.scripts, self.name = scripts, name
        self.keys = a2a_keys(keys, name)

    async def create(self, write: str = "c", *, said: int = 0, made: int = 0) -> Reply:
        return await self.scripts.create_a2a_task(
            self.keys,
            {"document": b"{}", "state": b"new"},
            task_id=self.name,
            history=[b"h%d" % n for n in range(said)],
            artifacts=[b"a%d" % n for n in range(made)],
            write=write,
            ttl_ms=HOUR,
        )

    async def update(self, write: str, place: str = "", **more: Any) -> Reply:
        asked: dict[str, Any] = {"fields": {}, "max_rows": 0, **more}
        return await self.scripts.update_a2a_task(
            self.keys,
            asked["fields"],
            task_id=self.name,
            row=b"row " + write.encode(),
            place=place,
            item=write.encode(),
            max_rows=asked["max_rows"],
            write=write,
            ttl_ms=HOUR,
        )

    async def read(self, messages: int = -1, *, artifacts: bool = True) -> Reply:
        return await self.scripts.read_a2a_task(self.keys, messages=messages, artifacts=artifacts)


async def test_a_task_is_created_once(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    assert await task.read() == no(ReplyCode.MISSING)
    for _ in range(2):
        assert await task.create(said=2, made=1) == ok()
    assert await task.create("other", said=9) == no(ReplyCode.TAKEN)
    assert (await task.read()).facts[1:] == [[b"h0", b"h1"], [b"a0"], 0, 0]
    await task.update("w", "history")
    # Its creator's repeated call is still his, and adds nothing.
    assert await task.create(said=2, made=1) == ok()
    assert (await task.read()).facts[1] == [b"h0", b"h1", b"w"]


async def test_of_many_creators_at_once_one_wins(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    replies = await asyncio.gather(*(task.create(str(n), said=1) for n in range(50)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.TAKEN] * 49
    assert (await task.read()).facts[1] == [b"h0"]


async def test_each_update_counts_once_whatever_came_in_between(
    scripts: Scripts, keys: Keys
) -> None:
    task = Task(scripts, keys)
    assert await task.update("w1", "history") == no(ReplyCode.MISSING)
    await task.create()
    assert await task.update("w1", "history") == ok(1)
    assert await task.update("w2", "artifacts") == ok(2)
    assert await task.update("w3", fields={"state": b"done"}) == ok(3)
    for n in (1, 2, 3):
        assert await task.update(f"w{n}", "history") == ok(n)
    flat, said, made, last, last_ms = (await task.read()).facts
    assert dict(zip(flat[::2], flat[1::2], strict=True))[b"state"] == b"done"
    assert (said, made, last) == ([b"w1"], [b"w2"], 3)
    assert last_ms > 0
    rows = await ask(scripts, "XRANGE", task.keys.updates.rows, "-", "+")
    assert [row[1][5] for row in rows] == [b"row w1", b"row w2", b"row w3"]


async def test_a_task_is_read_in_part(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    await task.create(said=5, made=1)
    for messages, wanted in ((0, []), (2, [b"h3", b"h4"]), (9, [b"h%d" % n for n in range(5)])):
        assert (await task.read(messages)).facts[1] == wanted
    assert (await task.read(artifacts=False)).facts[2] == []


async def test_no_two_tasks_were_updated_at_one_moment_even_if_the_clock_goes_back(
    scripts: Scripts, keys: Keys
) -> None:
    tasks = [Task(scripts, keys, str(n)) for n in range(3)]
    for task in tasks:
        await task.create()
    index = keys.a2a_tasks()
    future = int(await ask(scripts, "ZSCORE", index, "2")) + 10**12
    await ask(scripts, "ZADD", index, future, "2")
    await tasks[0].update("w")
    await tasks[1].update("w")
    assert await ask(scripts, "ZRANGE", index, 0, -1) == [b"2", b"0", b"1"]
    assert int(await ask(scripts, "ZSCORE", index, "1")) == future + 2


async def test_a_push_configuration_lives_as_long_as_its_task(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)

    async def save(config: bytes) -> Reply:
        return await scripts.save_a2a_push(task.keys, config_id="c", config=config)

    assert await save(b"{}") == await save(b"") == no(ReplyCode.MISSING)
    await task.create()
    for _ in range(2):
        assert await save(b"{}") == ok()
    assert 0 < (await lives(scripts, task.keys.push))[0] <= HOUR
    for _ in range(2):
        assert await save(b"") == ok()
    assert await lives(scripts, task.keys.push) == [-2]


async def test_every_key_of_a_task_is_kept_alive_by_each_update(
    scripts: Scripts, keys: Keys
) -> None:
    task = Task(scripts, keys)
    await task.create(said=1, made=1)
    await scripts.save_a2a_push(task.keys, config_id="c", config=b"{}")
    names = [task.keys.task, task.keys.tasks, task.keys.history]
    names += [task.keys.artifacts, task.keys.push]
    for name in names:
        await ask(scripts, "PEXPIRE", name, 60_000)
    await task.update("w")
    assert all(60_000 < left <= HOUR for left in await lives(scripts, *names))
