from __future__ import annotations

from collections.abc import Sequence

from redis_state.models.version import Version
from redis_state.scripts import LaneState, Reply, ReplyCode, Scripts, TaskKeys, raw
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start


async def retry(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    *,
    write: str = "retry",
    key: str = "",
    expected: int = 1,
    dropped: Sequence[str] = ("step:a#1", "none"),
) -> Reply:
    return await scripts.retry_task(
        task,
        {"status": b"PENDING", "finished": b"0"},
        children=keys.children("s", "t"),
        expected=expected,
        key=key,
        write=write,
        ttl_ms=24 * HOUR,
        announcement=saying(keys, f"row {write}"),
        dropped=dropped,
    )


async def ended(scripts: Scripts, task: TaskKeys, status: str = "FAILED") -> None:
    await make_task(scripts, task, status, finished=True)
    await ask(scripts, "HSET", task.task, "job", "{}")


async def test_a_task_is_reopened_once(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    assert await retry(scripts, keys, task) == no(ReplyCode.MISSING)
    await ended(scripts, task)
    await ask(scripts, "HSET", task.journal, "step:a#1", 1, "step:b#1", 2)
    await ask(scripts, "PEXPIRE", task.journal, HOUR)
    made: bytes = await ask(scripts, "HGET", task.task, "write")
    for expected in (7, Version(1, "other")):
        refused = await retry(scripts, keys, task, expected=expected)
        assert refused == no(ReplyCode.STALE, 1, made)
    for _ in range(2):
        assert await retry(scripts, keys, task, key="k") == ok(2)
    assert await retry(scripts, keys, task, write="w2", key="k") == no(ReplyCode.TAKEN, 2)
    assert await retry(scripts, keys, task, write="w2") == no(ReplyCode.DENIED, b"PENDING")
    found = await fields(scripts, task.task)
    assert (found["retries"], found["retried"]) == (b"1", b"k")
    assert await fields(scripts, task.journal) == {"step:b#1": b"2"}
    assert await rows_of(scripts, keys.updates("s")) == [(1, "row retry")]
    assert all(left > 23 * HOUR for left in await lives(scripts, task.task, task.journal))


async def test_the_run_of_before_is_fenced(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    mark, epoch = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    await ask(scripts, "HSET", task.task, "status", "CANCELLED", "job", "{}")
    assert await retry(scripts, keys, task, expected=2) == ok(3)
    late = await scripts.record_entry(task, mark=mark, entry="step:late#1", value=b"1")
    assert late == no(ReplyCode.LOST, epoch + 1)
    assert (await start(scripts, keys, task, owner="two")).word is ReplyCode.OK
    assert await epoch_of(scripts, task.lease) > epoch + 1


async def test_a_fork_copies_what_is_named_and_is_written_once(
    scripts: Scripts, keys: Keys
) -> None:
    source, task = task_keys(keys, task="source"), task_keys(keys)

    async def fork(*, order: int, before: int | None = None, write: str = "fork") -> Reply:
        return await scripts.fork_task(
            task,
            {"status": b"PENDING"},
            source=source,
            steering=keys.steering("s"),
            updates=keys.updates("s"),
            children=keys.children("s", "t"),
            write=write,
            ttl_ms=HOUR,
            before=await clock_ms(scripts) + HOUR if before is None else before,
            order=order,
            copied=["step:\ud800#1", "none"],
            made={b"versions": b"1", b"entries": b"1"},
        )

    assert await fork(order=1) == no(ReplyCode.MISSING)
    await make_task(scripts, source, "RUNNING")
    entry = "step:\ud800#1".encode("utf-8", "surrogatepass")
    await ask(scripts, "HSET", source.journal, entry, "kept", "step:b#1", "not")
    await ask(scripts, "PEXPIRE", source.journal, HOUR)
    await ask(scripts, "HSET", task.journal, "of an earlier task", 1)
    await ask(scripts, "PEXPIRE", task.journal, HOUR)
    order = int((await fields(scripts, source.task))["order"])
    assert await fork(order=order - 1) == no(ReplyCode.MISSING)
    assert await fork(order=order, before=1) == no(ReplyCode.EXPIRED)
    for _ in range(2):
        assert await fork(order=order) == ok(1)
    assert await fork(order=order, write="another") == no(ReplyCode.STALE, 1)
    flat = await ask(scripts, "HGETALL", task.journal)
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {
        entry: b"kept",
        b"versions": b"1",
        b"entries": b"1",
    }
    assert all(0 < left <= HOUR for left in await lives(scripts, task.task, task.journal))


async def test_a_fork_of_a_task_that_is_elsewhere_brings_all_that_it_is_given(
    scripts: Scripts, keys: Keys
) -> None:
    task, made = task_keys(keys), {raw(f"step:\ud800#{n}"): b"%d" % n for n in range(9_000)}
    reply = await scripts.fork_task(
        task,
        {"status": b"PENDING"},
        source=task_keys(keys, task="source"),
        steering=keys.steering("s"),
        updates=keys.updates("s"),
        children=keys.children("s", "t"),
        write="fork",
        ttl_ms=HOUR,
        before=await clock_ms(scripts) + HOUR,
        order=None,
        copied=[],
        made=made,
    )
    assert reply == ok(1)
    assert await ask(scripts, "HLEN", task.journal) == len(made)
    assert await ask(scripts, "HGET", task.journal, raw("step:\ud800#8999")) == b"8999"


async def test_a_fork_does_not_hear_what_was_said_to_an_earlier_task_of_its_id(
    scripts: Scripts, keys: Keys
) -> None:
    source, task, log = task_keys(keys, task="source"), task_keys(keys), keys.steering("s")
    await make_task(scripts, source, "RUNNING")
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await ask(scripts, "DEL", task.task)
    await append(scripts, log, "said")
    reply = await scripts.fork_task(
        task,
        {"status": b"PENDING"},
        source=source,
        steering=log,
        updates=keys.updates("s"),
        children=keys.children("s", "t"),
        write="fork",
        ttl_ms=HOUR,
        before=await clock_ms(scripts) + HOUR,
        order=int((await fields(scripts, source.task))["order"]),
        copied=[],
        made={},
    )
    assert reply == ok(1)
    assert (await fields(scripts, task.task))["inbox"].startswith(b"1-")


async def test_attributes_are_set_once_per_entry_and_fenced(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)

    async def set_to(value: bytes, entry: str, *, mark: bytes, write: str = "w") -> Reply:
        lane = LaneState("lane:", b"[]")
        return await scripts.set_attributes(
            task, mark=mark, entry=entry, attributes=value, write=write, lane=lane
        )

    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    mark, epoch = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    assert await set_to(b"{}", "a#1", mark=STRANGER) == no(ReplyCode.LOST, epoch)
    known = mark.replace(b"  ", b" 5 ")
    assert await set_to(b"{}", "a#1", mark=known) == no(ReplyCode.REWOUND, 0)
    for _ in range(2):
        assert await set_to(b'{"a":1}', "a#1", mark=mark) == ok(3, 1)
    assert await set_to(b"{}", "a#1", mark=mark, write="again") == no(ReplyCode.STALE, 1)
    assert (await fields(scripts, task.task))["attributes"] == b'{"a":1}'
    assert await set_to(b"{}", "a#2", mark=mark, write="w2") == ok(4, 2)
    assert await fields(scripts, task.journal) == {
        "a#1": b"1",
        "a#2": b"1",
        "lane:": b"[]",
        "entries": b"2",
    }
    await ask(scripts, "DEL", task.task)
    assert await set_to(b"{}", "a#3", mark=mark) == no(ReplyCode.MISSING)


async def test_what_runs_is_noted_under_the_lease_alone(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    mark, epoch = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    assert await scripts.record_running(task, mark=STRANGER, steps=b"[]") == no(
        ReplyCode.LOST, epoch
    )
    version = (await fields(scripts, task.task))["version"]
    for _ in range(2):
        assert await scripts.record_running(task, mark=mark, steps=b'[["a",1,5]]') == ok()
    found = await fields(scripts, task.task)
    assert found["version"] == version
    assert found["doing"].startswith(b"[1,")
    assert found["doing"].endswith(b',[["a",1,5]]]')
    await ask(scripts, "DEL", task.task)
    assert await scripts.record_running(task, mark=mark, steps=b"[]") == no(ReplyCode.MISSING)


async def test_a_task_of_many_failures_is_reopened(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await ended(scripts, task)
    await ask(scripts, "HSET", task.journal, "failed:8999", 1, "step:b#1", 2)
    await ask(scripts, "PEXPIRE", task.journal, HOUR)
    many = [f"failed:{number}" for number in range(9_000)]
    assert await retry(scripts, keys, task, dropped=many) == ok(2)
    assert await fields(scripts, task.journal) == {"step:b#1": b"2"}
