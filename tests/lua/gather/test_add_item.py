from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from redis_state.scripts import GatheringKeys, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.replies import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    fields,
    lives,
    no,
    ok,
)
from tests.support.scripts.tasks import job_payload, queued_job


async def begin(scripts: Scripts, keys: Keys, task: str, **changes: Any) -> Reply:
    given: dict[str, Any] = {
        "write": f"w-{task}",
        "before": 1 << 52,
        "closed": "",
        "item_id": "",
        "item": b'"first"',
        "sent": b"",
        "after_ms": HOUR,
        "latest_ms": 2 * HOUR,
        "in_turn": False,
        "name": "b",
        "keep_ms": HOUR,
    }
    return await scripts.open_gathering(
        task_keys(keys, "s", task),
        {"status": b"PENDING"},
        of=GatheringKeys(keys.gathering("s")),
        steering=keys.steering("s"),
        announcement=saying(keys, f"made-{task}-{changes.get('write')}", session="s"),
        children=keys.children("s", task),
        ttl_ms=HOUR,
        earlier_ms=0,
        turn=keys.turn("s"),
        **given | changes,
    )


async def add(scripts: Scripts, keys: Keys, task: str = "t", **changes: Any) -> Reply:
    given: dict[str, Any] = {"item_id": "", "item": b"1", "sent": b"", "most": 3, "most_bytes": 100}
    given |= {"name": "b", "keep_ms": HOUR}
    return await scripts.add_item(
        GatheringKeys(keys.gathering("s")),
        task=task_keys(keys, "s", task).task,
        task_id=task,
        after_ms=HOUR,
        **given | changes,
    )


async def items_of(scripts: Scripts, keys: Keys, task: str = "t") -> list[bytes]:
    found = await fields(scripts, task_keys(keys, "s", task).task)
    return [found[f"item:{number}"] for number in range(1, int(found["items"]) + 1)]


async def test_an_input_is_opened_once(scripts: Scripts, keys: Keys) -> None:
    now = await clock_ms(scripts)
    reply = await begin(scripts, keys, "t", item_id="i", sent=b"x", in_turn=True)
    assert (reply.word, reply.facts[0]) == (ReplyCode.OK, 1)
    assert now + HOUR <= int(reply.facts[1]) <= await clock_ms(scripts) + HOUR
    assert await begin(scripts, keys, "t", item_id="i") == reply
    assert await begin(scripts, keys, "t", write="other") == no(ReplyCode.STALE, 1)
    assert await begin(scripts, keys, "u", before=1) == no(ReplyCode.EXPIRED)
    assert await begin(scripts, keys, "u", item_id="i") == no(ReplyCode.HELD, b"t", b"x")
    assert await begin(scripts, keys, "u") == no(ReplyCode.AGAIN)
    assert (await begin(scripts, keys, "u", closed="t")).word is ReplyCode.OK
    assert await ask(scripts, "ZRANGE", keys.turn("s"), 0, -1) == [b"t"]
    named = GatheringKeys(keys.gathering("s"))
    known = await lives(scripts, named.gathering, named.items, keys.turn("s"))
    assert all(0 < life <= 2 * HOUR for life in known)


async def test_items_are_added_in_order_until_it_is_full(scripts: Scripts, keys: Keys) -> None:
    opened = await begin(scripts, keys, "t")
    assert await add(scripts, keys, item=b"2", item_id="two") == ok(opened.facts[1], 0)
    assert await add(scripts, keys, item=b"2", item_id="two") == no(ReplyCode.HELD, b"t", b"")
    reply = await add(scripts, keys, item=b"3")
    assert reply.facts[1] == 1
    assert int(reply.facts[0]) <= await clock_ms(scripts)
    full = await add(scripts, keys, item=b"4")
    assert (full.word, full.facts) == (ReplyCode.FULL, [reply.facts[0]])
    assert await items_of(scripts, keys) == [b'"first"', b"2", b"3"]


async def test_what_an_item_was_is_known_and_forgotten_with_it(
    scripts: Scripts, keys: Keys
) -> None:
    await begin(scripts, keys, "t", item_id="one", sent=b"digest")
    added = await add(scripts, keys, item_id="two", sent=b"another")
    assert added.word is ReplyCode.OK
    for item_id, sent in (("one", b"digest"), ("two", b"another")):
        known = await add(scripts, keys, item_id=item_id, sent=b"a third")
        assert known == no(ReplyCode.HELD, b"t", sent)
    await begin(scripts, keys, "u", name="c", item_id="i", sent=b"digest", keep_ms=1)
    gathering = GatheringKeys(keys.gathering("s")).gathering
    assert (await fields(scripts, gathering))["=c:i"] == b"digest"
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    await begin(scripts, keys, "v", name="d")
    assert not {"c", "c:i", "=c:i"} & (await fields(scripts, gathering)).keys()


async def test_it_is_full_of_bytes_too(scripts: Scripts, keys: Keys) -> None:
    await begin(scripts, keys, "t")
    assert (await add(scripts, keys, item=b"x" * 94)).word is ReplyCode.FULL
    assert await items_of(scripts, keys) == [b'"first"']


async def test_only_the_last_is_kept_and_puts_the_task_off_until_the_latest(
    scripts: Scripts, keys: Keys
) -> None:
    opened = await begin(scripts, keys, "t", after_ms=HOUR // 2, latest_ms=HOUR)
    latest = int(opened.facts[1]) + HOUR // 2
    assert await add(scripts, keys, item=b"2", most=None) == ok(b"%d" % latest, 0)
    assert await add(scripts, keys, item=b"3", most=None) == ok(b"%d" % latest, 0)
    assert await items_of(scripts, keys) == [b"3"]


async def test_a_task_that_has_begun_or_is_another_takes_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    assert await add(scripts, keys) == no(ReplyCode.AGAIN)
    await begin(scripts, keys, "t")
    assert await add(scripts, keys, "u") == no(ReplyCode.AGAIN)
    task = task_keys(keys, "s", "t").task
    for changed, back in (
        (("status", "RUNNING"), ("status", "PENDING")),
        (("attempts", 1), ("attempts", 0)),
        (("gathers", "other"), ("gathers", "b")),
    ):
        await ask(scripts, "HSET", task, *changed)
        assert await add(scripts, keys) == no(ReplyCode.STALE)
        await ask(scripts, "HSET", task, *back)
    assert (await add(scripts, keys)).word is ReplyCode.OK
    await ask(scripts, "DEL", task)
    assert await add(scripts, keys) == no(ReplyCode.STALE)


async def test_at_once_each_item_has_a_place_of_its_own(scripts: Scripts, keys: Keys) -> None:
    await begin(scripts, keys, "t")
    given = [b"%d" % number for number in range(20)]
    await asyncio.gather(*(add(scripts, keys, item=item, most=21) for item in given))
    assert sorted(await items_of(scripts, keys)) == sorted([b'"first"', *given])


async def test_a_job_is_moved_only_sooner_or_only_later(scripts: Scripts, keys: Keys) -> None:
    now, queue = await clock_ms(scripts), keys.queue("q")
    job = queued_job(keys, "t", at_ms=now + HOUR)
    defer = partial(
        scripts.defer_job,
        queue,
        payload=job_payload(keys, "t"),
        id=job.id,
        earlier_ms=0,
        life_ms=HOUR,
    )
    assert await defer(at_ms=1, sooner=True) == ok(0)
    await scripts.queue_job(queue, payload=job_payload(keys, "t"), job=job)
    for at_ms, sooner, moved in (
        (now, False, 0),
        (now + 2 * HOUR, False, 1),
        (now + 2 * HOUR, False, 0),
        (now + 3 * HOUR, True, 0),
        (now, True, 1),
    ):
        assert await defer(at_ms=at_ms, sooner=sooner) == ok(moved)
    claimed = await scripts.claim_jobs(queue, limit=1, life_ms=HOUR)
    assert claimed.facts[3] == job.id.encode()


async def test_a_job_that_waits_in_its_keys_line_is_put_off_with_its_key(
    scripts: Scripts, keys: Keys
) -> None:
    now, queue = await clock_ms(scripts), keys.queue("q")
    job = queued_job(keys, "t", key="k:acme")
    await scripts.queue_job(queue, payload=job_payload(keys, "t"), job=job)
    defer = partial(
        scripts.defer_job,
        queue,
        payload=job_payload(keys, "t"),
        id=job.id,
        earlier_ms=0,
        life_ms=HOUR,
    )
    # Only later: it is due already, and no time of the past puts it off.
    assert await defer(at_ms=1, sooner=True) == ok(0)
    assert await defer(at_ms=now, sooner=False) == ok(0)
    assert await defer(at_ms=now + HOUR, sooner=False) == ok(1)
    assert await defer(at_ms=now + HOUR, sooner=False) == ok(0)
    assert (await scripts.claim_jobs(queue, limit=1, life_ms=HOUR)).facts[3:] == []
    assert min(await lives(scripts, queue.queue, queue.owners)) > HOUR
    assert await defer(at_ms=now, sooner=True) == ok(1)
    claimed = await scripts.claim_jobs(queue, limit=1, life_ms=HOUR)
    assert claimed.facts[3] == job.id.encode()
    assert await ask(scripts, "ZRANGE", queue.holders, 0, -1) == [
        b"k:acme\0" + job.id.rpartition(":")[0].encode()
    ]
    # A claim is left as it is.
    assert await defer(at_ms=now + HOUR, sooner=False) == ok(0)


async def test_what_was_gathered_under_many_names_is_forgotten(
    scripts: Scripts, keys: Keys
) -> None:
    for number in range(20):
        await begin(scripts, keys, f"t{number}", name=f"b{number}", keep_ms=1)
        await clock_passes(scripts, await clock_ms(scripts) + 1)
    await begin(scripts, keys, "last", name="b-last", item_id="i")
    assert len(await fields(scripts, keys.gathering("s"))) <= 3
    items = GatheringKeys(keys.gathering("s")).items
    assert await ask(scripts, "ZCARD", items) <= 3
    # What is open is remembered for as long as an item may come.
    assert (await fields(scripts, keys.gathering("s")))["b-last"] == b"last"
    await add(scripts, keys, "last", name="b-last", keep_ms=5 * HOUR)
    until = float(await ask(scripts, "ZSCORE", items, "b-last"))
    assert until - await clock_ms(scripts) > 4 * HOUR
