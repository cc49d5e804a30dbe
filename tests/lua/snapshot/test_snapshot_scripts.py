from __future__ import annotations

import asyncio

from redis_state.scripts import Reply, ReplyCode, Scripts, SnapshotKeys
from redis_state.stores.hosts.snapshots import version_name
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import snapshot_keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


def name(version: int) -> str:
    found = version_name(version)
    assert found is not None
    return found


async def save(
    scripts: Scripts,
    task: SnapshotKeys,
    version: int,
    *,
    snapshot_id: str = "",
    checkpoint: bool = False,
    row: bytes = b"row",
    ttl_ms: int = HOUR,
) -> None:
    saved = await scripts.save_snapshot(
        task,
        version=name(version),
        snapshot_id=snapshot_id or f"id{version}",
        checkpoint=checkpoint,
        row=row,
        ttl_ms=ttl_ms,
    )
    assert saved == ok()


async def entries(scripts: Scripts, task: SnapshotKeys) -> set[str]:
    return {entry.decode() for entry in await ask(scripts, "ZRANGE", task.index, 0, -1)}


def reported(version: int, row: bytes = b"row") -> Reply:
    return ok(name(version).encode(), row)


async def test_a_save_replaces_the_whole_of_its_version(scripts: Scripts, keys: Keys) -> None:
    task = snapshot_keys(keys)
    for row in (b"one", b"one", b"two"):
        await save(scripts, task, 7, snapshot_id="a", checkpoint=True, row=row)
    assert await entries(scripts, task) == {"v:0017", "c:0017", "i:a:0017"}
    assert await scripts.read_snapshot(task, prefix="c:") == reported(7, b"two")
    await save(scripts, task, 7, snapshot_id="b", row=b"three")
    assert await entries(scripts, task) == {"v:0017", "i:b:0017"}
    assert await fields(scripts, task.rows) == {"0017": b"three", "0017:": b"b"}
    assert await scripts.read_snapshot(task, prefix="c:") == no(ReplyCode.MISSING)
    assert await scripts.read_snapshot(task, prefix="i:a:") == no(ReplyCode.MISSING)
    assert all(0 < life <= HOUR for life in await lives(scripts, task.rows, task.index))


async def test_a_later_save_renews_the_life_of_all(scripts: Scripts, keys: Keys) -> None:
    task = snapshot_keys(keys)
    await save(scripts, task, 1, ttl_ms=1000)
    await save(scripts, task, 2, ttl_ms=HOUR)
    assert all(life > 1000 for life in await lives(scripts, task.rows, task.index))


async def test_the_highest_number_is_read_where_doubles_would_see_equals(
    scripts: Scripts, keys: Keys
) -> None:
    task = snapshot_keys(keys)
    for version in (9, 2**53 + 1, 10, 2**53, 10**30, 10**30 - 1, 99, 100):
        await save(scripts, task, version)
        await save(scripts, task, 3)
    assert await scripts.read_snapshot(task, prefix="v:") == reported(10**30)
    for top in (10**30, 10**30 - 1, 2**53 + 1, 2**53, 100, 99, 10, 9, 3):
        assert await scripts.read_snapshot(task, prefix="v:") == reported(top)
        removed = await scripts.delete_snapshots(task, version=name(top))
        assert removed == ok(1)
    assert await scripts.read_snapshot(task, prefix="v:") == no(ReplyCode.MISSING)
    assert await ask(scripts, "EXISTS", task.rows, task.index) == 0


async def test_an_id_is_found_whole_and_at_its_highest_version(
    scripts: Scripts, keys: Keys
) -> None:
    task = snapshot_keys(keys)
    for version, snapshot_id in ((9, "a"), (10, "a"), (11, "ab"), (12, "%")):
        await save(scripts, task, version, snapshot_id=snapshot_id)
    assert await scripts.read_snapshot(task, prefix="i:a:") == reported(10)
    assert await scripts.read_snapshot(task, prefix="i:ab:") == reported(11)
    assert await scripts.read_snapshot(task, prefix="i:%:") == reported(12)
    assert await scripts.read_snapshot(task, prefix="i:b:") == no(ReplyCode.MISSING)


async def test_a_rollback_to_nothing_removes_nothing(scripts: Scripts, keys: Keys) -> None:
    task = snapshot_keys(keys)
    await save(scripts, task, 1)
    assert await scripts.rollback_snapshots(task, prefix="c:") == no(ReplyCode.MISSING)
    there = await scripts.rollback_snapshots(task, prefix="v:" + name(2))
    assert there == no(ReplyCode.MISSING)
    assert await scripts.read_snapshot(task, prefix="v:") == reported(1)
    assert await scripts.delete_snapshots(task, version=name(2)) == ok(0)


async def test_half_of_a_pair_of_keys_is_a_gap_until_the_next_save(
    scripts: Scripts, keys: Keys
) -> None:
    for lost in ("rows", "index"):
        task = snapshot_keys(keys, lost)
        await save(scripts, task, 5)
        await ask(scripts, "DEL", getattr(task, lost))
        assert await scripts.read_snapshot(task, prefix="v:") == no(ReplyCode.GAP)
        assert await scripts.rollback_snapshots(task, prefix="v:") == no(ReplyCode.GAP)
        await save(scripts, task, 1)
        assert await entries(scripts, task) == {"v:0011", "i:id1:0011"}
        assert set(await fields(scripts, task.rows)) == {"0011", "0011:"}


async def test_of_deletions_at_once_one_finds_something(scripts: Scripts, keys: Keys) -> None:
    task = snapshot_keys(keys)
    await save(scripts, task, 1)
    replies = await asyncio.gather(
        *(scripts.delete_snapshots(task, version=None) for _ in range(20))
    )
    assert sorted(reply.facts[0] for reply in replies) == [0] * 19 + [1]


async def test_pruning_thousands_leaves_the_last_and_the_checkpoints(
    scripts: Scripts, keys: Keys
) -> None:
    task = snapshot_keys(keys)
    many = range(1, 3001)
    await asyncio.gather(*(save(scripts, task, n, checkpoint=n % 1000 == 0) for n in many))
    removed = await scripts.prune_snapshots(task, keep_last=5, keep_checkpoints=True)
    assert removed == ok(2993)
    left = await ask(scripts, "ZRANGEBYLEX", task.index, "[v:", "(v;")
    assert left == [f"v:{name(n)}".encode() for n in (1000, 2000, *range(2996, 3001))]
