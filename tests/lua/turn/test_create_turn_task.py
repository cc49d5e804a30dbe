from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from redis_state.scripts import KnownTask, KnownTasks, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok


async def create(
    scripts: Scripts, keys: Keys, name: str, policy: str, *known: str, **changes: Any
) -> Reply:
    line = [
        KnownTask(
            task_keys(keys, "s", other),
            f"gone-{other}".encode(),
            b"[]",
        )
        for other in known
    ]
    given: dict[str, Any] = {"write": f"w-{name}", "before": 1 << 52, "delay_ms": 0}
    return await scripts.create_turn_task(
        task_keys(keys, "s", name),
        {"status": b"PENDING", "finished": b"0", "flow_key": b"1:s"},
        steering=keys.steering("s"),
        announcement=saying(keys, f"made-{name}-{changes.get('write', '')}", session="s"),
        children=keys.children("s", name),
        turn=keys.turn("s"),
        line=KnownTasks(line),
        ttl_ms=HOUR,
        policy=policy,
        earlier_ms=0,
        life_ms=2 * HOUR,
        ended_ms=HOUR // 2,
        cancelled={"status": b"CANCELLED", "finished": b"1"},
        **given | changes,
    )


async def line_of(scripts: Scripts, keys: Keys) -> list[str]:
    return [name.decode() for name in await ask(scripts, "ZRANGE", keys.turn("s"), 0, -1)]


async def begin(scripts: Scripts, keys: Keys, name: str, status: str = "RUNNING") -> None:
    await ask(scripts, "HSET", task_keys(keys, "s", name).task, "status", status, "attempts", 1)


async def test_it_is_written_once_and_listed_with_a_lifetime(scripts: Scripts, keys: Keys) -> None:
    assert await create(scripts, keys, "a", "enqueue") == ok(1, b"", [])
    assert await create(scripts, keys, "a", "enqueue") == ok(1, b"", [])
    assert await create(scripts, keys, "a", "enqueue", write="other") == no(ReplyCode.STALE, 1)
    assert await create(scripts, keys, "b", "enqueue", before=1) == no(ReplyCode.EXPIRED)
    assert await line_of(scripts, keys) == ["a"]
    task_ms, turn_ms = await lives(scripts, task_keys(keys, "s", "a").task, keys.turn("s"))
    assert 0 < task_ms <= HOUR < turn_ms <= 2 * HOUR


async def test_what_is_in_the_way_is_named_and_nothing_is_written(
    scripts: Scripts, keys: Keys
) -> None:
    await create(scripts, keys, "a", "enqueue")
    await create(scripts, keys, "b", "enqueue")
    taken = no(ReplyCode.TAKEN, b"a", b"PENDING")
    assert await create(scripts, keys, "c", "reject", "a", "b") == taken
    await begin(scripts, keys, "b")
    taken = no(ReplyCode.TAKEN, b"b", b"RUNNING")
    assert await create(scripts, keys, "c", "reject", "a", "b") == taken
    assert await lives(scripts, task_keys(keys, "s", "c").task) == [-2]
    assert await line_of(scripts, keys) == ["a", "b"]
    assert len(await rows_of(scripts, keys.updates("s"))) == 2


async def test_other_tasks_than_those_known_are_read_again(scripts: Scripts, keys: Keys) -> None:
    await create(scripts, keys, "a", "enqueue")
    for policy in ("reject", "interrupt", "replace"):
        assert await create(scripts, keys, "b", policy) == no(ReplyCode.AGAIN)
    # One that is known and not there any more is not in the way.
    assert (await create(scripts, keys, "b", "replace", "a", "gone")).word is ReplyCode.OK


async def test_what_is_replaced_is_held_for_the_archive(scripts: Scripts, keys: Keys) -> None:
    log, held = keys.updates("s"), task_keys(keys, "s", "a")
    await create(scripts, keys, "a", "enqueue")
    await ask(scripts, "HSET", held.task, "job", "{}")
    await create(scripts, keys, "b", "replace", "a", hold_ms=30 * HOUR)
    assert all(left > 29 * HOUR for left in await lives(scripts, held.task, log.rows, log.ids))


async def test_what_has_ended_or_is_of_another_kind_is_taken_off(
    scripts: Scripts, keys: Keys
) -> None:
    for name in ("a", "b", "c"):
        await create(scripts, keys, name, "enqueue")
    await ask(scripts, "HSET", task_keys(keys, "s", "a").task, "finished", 1)
    await ask(scripts, "HSET", task_keys(keys, "s", "b").task, "flow_key", "k:s")
    await ask(scripts, "DEL", task_keys(keys, "s", "c").task)
    assert (await create(scripts, keys, "d", "reject", "a", "b", "c")).word is ReplyCode.OK
    assert await line_of(scripts, keys) == ["d"]


async def test_an_interrupt_names_what_has_begun_and_stands_before_all(
    scripts: Scripts, keys: Keys
) -> None:
    for name in ("a", "b"):
        await create(scripts, keys, name, "enqueue")
    await begin(scripts, keys, "a", "PAUSED")
    order = (await fields(scripts, task_keys(keys, "s", "a").task))["order"]
    reply = await create(scripts, keys, "c", "interrupt", "a", "b")
    assert reply.facts[2] == [b"a", order]
    assert int(reply.facts[1]) < await clock_ms(scripts)
    assert await create(scripts, keys, "c", "interrupt", "a", "b") == reply
    assert await line_of(scripts, keys) == ["c", "a", "b"]
    await create(scripts, keys, "d", "interrupt", "a", "b", "c")
    assert (await line_of(scripts, keys))[:2] == ["d", "c"]


async def test_a_replacement_cancels_what_waits_in_the_same_step(
    scripts: Scripts, keys: Keys
) -> None:
    for name in ("a", "b"):
        await create(scripts, keys, name, "enqueue")
    await begin(scripts, keys, "a")
    reply = await create(scripts, keys, "c", "replace", "a", "b")
    assert reply.facts[2:] == [[], b"b", 2]
    stored = await fields(scripts, task_keys(keys, "s", "b").task)
    assert (stored["status"], stored["version"], stored["write"]) == (b"CANCELLED", b"2", b"w-c")
    assert (await rows_of(scripts, keys.updates("s")))[-1][1] == "gone-b"
    assert 0 < (await lives(scripts, task_keys(keys, "s", "b").task))[0] <= HOUR // 2
    assert (await fields(scripts, task_keys(keys, "s", "a").task))["status"] == b"RUNNING"


async def test_of_many_at_once_one_is_written(scripts: Scripts, keys: Keys) -> None:
    names = [f"t{number}" for number in range(20)]
    replies = await asyncio.gather(*(create(scripts, keys, name, "reject") for name in names))
    assert Counter(reply.word for reply in replies) == {ReplyCode.OK: 1, ReplyCode.AGAIN: 19}


async def test_a_line_is_mended_and_what_is_done_is_forgotten(scripts: Scripts, keys: Keys) -> None:
    await create(scripts, keys, "a", "enqueue")
    await begin(scripts, keys, "a")
    await create(scripts, keys, "b", "interrupt", "a")
    order = int((await fields(scripts, task_keys(keys, "s", "b").task))["order"])

    async def keep(name: str) -> Reply:
        return await scripts.keep_turn(
            task=task_keys(keys, "s", name).task,
            turn=keys.turn("s"),
            task_id=name,
            place_ms=1,
            life_ms=HOUR,
        )

    await ask(scripts, "DEL", keys.turn("s"))
    kept = await keep("b")
    assert (int(kept.facts[0]), kept.facts[1][0]) == (order, b"a")
    assert await line_of(scripts, keys) == ["b"]
    assert 0 < (await lives(scripts, keys.turn("s")))[0] <= HOUR
    task = task_keys(keys, "s", "b").task
    assert await scripts.settle_turn(task=task, order=order + 1) == ok(0)
    assert await scripts.settle_turn(task=task, order=order) == ok(1)
    assert await scripts.settle_turn(task=task, order=order) == ok(0)
    await ask(scripts, "HSET", task, "finished", 1)
    assert (await keep("b")).facts[1] == []
    assert await keep("none") == ok(b"", [])
    assert await line_of(scripts, keys) == []
