"""Calls that may be repeated: of tasks, queues and jobs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from redis_state.primitives.record import new_write_id
from redis_state.scripts import GatheringKeys, Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import a2a_keys, create, drop
from tests.support.once_calls.case import Case, Step
from tests.support.script_calls import CALLS
from tests.support.script_calls.names import job_keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, fields
from tests.support.scripts.tasks import job_payload, make_task, queued_job, task_values


def _put_config(config: bytes) -> Step:
    return lambda scripts, keys: scripts.put_a2a_config(
        a2a_keys(keys), name="n", config=config, most=9, ttl_ms=HOUR
    )


async def _look_at_configs(scripts: Scripts, keys: Keys) -> Any:
    found = await fields(scripts, a2a_keys(keys).configs)
    return {name: value.partition(b" ")[2] for name, value in found.items() if name}


def _set_stream(stream: str) -> Step:
    return lambda scripts, keys: scripts.name_a2a_stream(a2a_keys(keys), stream=stream)


async def _make_a2a_task(scripts: Scripts, keys: Keys) -> None:
    await create(scripts, a2a_keys(keys))


async def _make_stream(scripts: Scripts, keys: Keys) -> None:
    await _make_a2a_task(scripts, keys)
    await _set_stream("theirs")(scripts, keys)


async def _look_at_stream(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", a2a_keys(keys).task, "stream")


def _drop(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return drop(scripts, a2a_keys(keys), tombstone_ms=0)


def _save_task(status: str) -> Step:
    async def save(scripts: Scripts, keys: Keys) -> Any:
        reply = await scripts.save_task(
            task_keys(keys),
            task_values(status),
            write=new_write_id(),
            ttl_ms=HOUR,
            finished=False,
            updated_at_us=1,
        )
        return reply.word

    return save


async def _look_at_task(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", task_keys(keys).task, "status")


def _save_job(document: bytes, next_us: int) -> Step:
    async def save(scripts: Scripts, keys: Keys) -> Any:
        reply = await scripts.save_job(
            job_keys(keys),
            {"document": document},
            write=new_write_id(),
            ttl_ms=HOUR,
            job_id="j",
            next_us=next_us,
            interval_us=None,
            enabled=True,
        )
        return reply.word

    return save


async def _look_at_job(scripts: Scripts, keys: Keys) -> Any:
    keyed = job_keys(keys)
    document = await ask(scripts, "HGET", keyed.job, "document")
    return document, await ask(scripts, "ZSCORE", keyed.due, "j")


async def _claim_job(scripts: Scripts, keys: Keys) -> None:
    """Have the job claimed after others have fired it meanwhile."""
    await CALLS["save_job"](scripts, keys)
    lease = ("owner", "o", "claim", "o", "epoch", 1, "length", HOUR)
    claim = ("occurrence", 1, "asked", 1, "ended", "another", *lease)
    await ask(scripts, "HSET", job_keys(keys).job, *claim)


async def _queue(scripts: Scripts, keys: Keys, *tasks: str) -> None:
    """Queue jobs, each due an hour after the one before."""
    await ask(scripts, "DEL", keys.queue("q").queue)
    for place, task in enumerate(tasks):
        job = queued_job(keys, task, earlier_ms=(len(tasks) - place) * HOUR)
        await scripts.queue_job(keys.queue("q"), payload=job_payload(keys, task), job=job)


async def _claim(scripts: Scripts, keys: Keys) -> Reply:
    """Claim one, and tell which: the times are others in each server's history."""
    reply = await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
    return Reply(reply.word, [name.rpartition(b"/")[2] for name in reply.facts[3:4]])


async def _park(scripts: Scripts, keys: Keys) -> None:
    """Park one, and leave no other, in the queue or claimed."""
    await ask(scripts, "DEL", *(keys.queue("q")[:2]))
    await _queue(scripts, keys, "a")
    reply = await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
    *_, name, place, claimed = reply.facts
    await scripts.park_job(
        keys.queue("q"),
        payload=job_payload(keys, "a"),
        id=name,
        claimed=claimed,
        place=place,
        lane="v:h/1;",
        version=1,
        life_ms=HOUR,
    )


async def _claim_parked(scripts: Scripts, keys: Keys) -> Reply:
    reply = await scripts.claim_parked(keys.queue("q"), limit=1, life_ms=HOUR, lanes=["v:h/1;"])
    return Reply(reply.word, [name.rpartition(b"/")[2] for name in reply.facts[3:4]])


async def _parked(scripts: Scripts, keys: Keys) -> Any:
    return (await scripts.look_parked(keys.queue("q").keyed, lanes=1, limit=0)).facts


async def _queued(scripts: Scripts, keys: Keys) -> list[bytes]:
    names: list[bytes] = await ask(scripts, "ZRANGE", keys.queue("q").queue, 0, -1)
    return [name.rpartition(b"/")[2] for name in names]


async def _open_batch(scripts: Scripts, keys: Keys) -> None:
    task, gathering = task_keys(keys), keys.gathering("s")
    await ask(scripts, "DEL", task.task, gathering, f"{gathering}:items")
    values = ("status", "PENDING", "gathers", "b", "items", 0, "item_bytes", 0, "due", 1)
    await ask(scripts, "HSET", task.task, *values, "latest", 1)
    await ask(scripts, "HSET", gathering, "b", "t")
    for key in (task.task, gathering):
        await ask(scripts, "PEXPIRE", key, HOUR)


def _set_rate(rate: str) -> Step:
    return lambda scripts, keys: scripts.set_rate(keys.rate_settings(), name="r", rate=rate)


async def _look_at_rate(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", keys.rate_settings(), "r")


def _set_limit(running: bytes) -> Step:
    return lambda scripts, keys: scripts.set_flow(keys.queue("q"), {"limit": running})


async def _look_at_limit(scripts: Scripts, keys: Keys) -> Any:
    return await ask(scripts, "HGET", keys.queue("q").flow, "limit")


CASES: dict[str, Case] = {
    "save_task": Case(_save_task("theirs"), _save_task("mine"), _look_at_task),
    "save_job": Case(_save_job(b"theirs", 5_000), _save_job(b"mine", 9_000), _look_at_job),
    "add_item": Case(
        _open_batch,
        lambda scripts, keys: scripts.add_item(
            GatheringKeys(keys.gathering("s")),
            task=task_keys(keys).task,
            task_id="t",
            name="b",
            item_id="",
            item=b"1",
            sent=b"digest",
            most=9,
            most_bytes=9,
            after_ms=1,
            keep_ms=HOUR,
        ),
        lambda scripts, keys: ask(scripts, "HGET", task_keys(keys).task, "items"),
    ),
    "claim_jobs": Case(
        lambda scripts, keys: _queue(scripts, keys, "a"),
        _claim,
        _queued,
    ),
    "claim_parked": Case(_park, _claim_parked, _parked),
    "clear_queue": Case(
        lambda scripts, keys: _queue(scripts, keys, "a"),
        lambda scripts, keys: scripts.clear_queue(keys.queue("q"), history=keys.queue_history()),
        _queued,
    ),
    "take_rate": Case(
        lambda scripts, keys: ask(scripts, "DEL", keys.rates()),
        lambda scripts, keys: scripts.take_rate(
            keys.rates(), settings=keys.rate_settings(), name="r", rate=f"1 {HOUR}", cost=1
        ),
        lambda scripts, keys: ask(scripts, "ZCARD", keys.rates()),
    ),
    "withdraw_jobs": Case(
        lambda scripts, keys: _queue(scripts, keys, "a", "b"),
        lambda scripts, keys: scripts.withdraw_jobs(
            keys.queue("q"), line="1:s", jobs=[queued_job(keys, "b").id]
        ),
        _queued,
    ),
    "clear_task": Case(
        lambda scripts, keys: make_task(scripts, task_keys(keys), "PENDING"),
        lambda scripts, keys: scripts.clear_task(
            task_keys(keys), children=keys.children("s", "t"), lease_ms=HOUR
        ),
        lambda scripts, keys: ask(scripts, "HGET", task_keys(keys).task, "status"),
    ),
    "drop_a2a_configs": Case(
        _put_config(b"theirs"),
        lambda scripts, keys: scripts.drop_a2a_configs(a2a_keys(keys), name=""),
        _look_at_configs,
    ),
    "put_a2a_config": Case(_put_config(b"theirs"), _put_config(b"mine"), _look_at_configs),
    "name_a2a_stream": Case(_make_stream, _set_stream("mine"), _look_at_stream),
    "drop_a2a_task": Case(
        _make_a2a_task,
        _drop,
        lambda scripts, keys: ask(scripts, "HGET", a2a_keys(keys).task, "state"),
    ),
    "end_job": Case(
        _claim_job,
        CALLS["end_job"],
        lambda scripts, keys: ask(scripts, "HGET", job_keys(keys).job, "owner"),
    ),
    "unlist_pauses": Case(
        CALLS["list_pause"],
        CALLS["unlist_pauses"],
        lambda scripts, keys: ask(scripts, "ZCARD", keys.opened_pauses()),
    ),
    "set_rate": Case(_set_rate("2 1000"), _set_rate("1 1000"), _look_at_rate),
    "set_rate away": Case(_set_rate("2 1000"), _set_rate(""), _look_at_rate),
    "set_flow": Case(_set_limit(b"2"), _set_limit(b"1"), _look_at_limit),
}
