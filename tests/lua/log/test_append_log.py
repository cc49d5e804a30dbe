from __future__ import annotations

import pytest

from redis_state.errors import CommandRefused, CorruptState
from redis_state.primitives.signal import listening, read_message
from redis_state.scripts import Fence, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append, ids_hash, ids_of, rows_of, topic_of
from tests.support.scripts.replies import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    lives,
    no,
    ok,
)
from tests.support.scripts.tasks import epoch_of
from tests.support.servers.sets.nodes import ask_each


async def test_rows_are_numbered_once_and_all_keys_have_a_lifetime(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    assert await append(scripts, log, "a", "b", "a", topic="t") == ok(2, 1, 2, 1)
    assert await append(scripts, log, "a", "b", "a", topic="t") == ok(0, 1, 2, 1)
    assert await append(scripts, log, "c", "b", topic="t") == ok(1, 3, 2)
    assert await rows_of(scripts, log) == [(1, "a"), (2, "b"), (3, "c")]
    assert await topic_of(scripts, log, "t") == [1, 2, 3]
    left = await lives(scripts, log.rows, log.ids)
    assert all(HOUR < life <= 1.5 * HOUR for life in left)


async def test_a_stale_epoch_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    log, lease = keys.updates("s"), keys.lease("s", "t")
    assert await append(scripts, log, "a", fence=Fence(lease, 1, "x")) == no(ReplyCode.LOST, 0)
    epochs: list[int] = []
    for owner in "xy":
        await scripts.acquire_lease(lease, owner=owner, duration_ms=1, keep_ms=HOUR)
        epochs.append(await epoch_of(scripts, lease))
        await clock_passes(scripts, await clock_ms(scripts) + 1)
    # Neither the epoch alone nor the owner alone is the lease's.
    for stale in (Fence(lease, epochs[0], "x"), Fence(lease, epochs[1], "x")):
        assert await append(scripts, log, "a", fence=stale) == no(ReplyCode.LOST, epochs[1])
    assert await lives(scripts, log.rows, log.ids) == [-2, -2]
    assert await append(scripts, log, "a", fence=Fence(lease, epochs[1], "y")) == ok(1, 1)


@pytest.mark.parametrize(("max_rows", "most"), [(1, 1), (10, 10), (32, 34), (0, 90)])
async def test_count_is_bounded_and_what_is_dropped_leaves_no_trace(
    scripts: Scripts, keys: Keys, max_rows: int, most: int
) -> None:
    log = keys.updates("s")
    sizes: list[int] = []
    for start in range(0, 90, 3):
        ids = [str(number) for number in range(start, start + 3)]
        topic = "t" if start % 2 else "u"
        await append(scripts, log, *ids, topic=topic, max_rows=max_rows)
        sizes.append(await ask(scripts, "XLEN", log.rows))
        assert len(await ids_of(scripts, log)) == sizes[-1]
    assert max(sizes) <= most
    kept = await rows_of(scripts, log)
    assert kept == [(number + 1, str(number)) for number in range(90 - sizes[-1], 90)]
    for topic in "tu":
        rows = [n for n, _ in kept if ((n - 1) // 3 * 3 % 2 == 1) == (topic == "t")]
        found = await topic_of(scripts, log, topic)
        # One block may still name rows that are gone.
        assert found[len(found) - len(rows) :] == rows
        assert len(found) - len(rows) <= 21


async def test_more_than_a_slice_too_many_is_dropped_by_later_calls(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    ids = [f"many-{number}" for number in range(1000)]
    assert (await append(scripts, log, *ids)).facts[0] == 1000
    for number in range(5):
        await append(scripts, log, f"late-{number}", max_rows=1)
    assert await rows_of(scripts, log) == [(1005, "late-4")]
    assert await ask(scripts, "HLEN", log.ids) == 2


async def test_rows_past_their_time_are_dropped_and_the_newest_stays(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, *(str(number) for number in range(100)), topic="t")
    await clock_passes(scripts, await clock_ms(scripts) + 20)
    await append(scripts, log, "x", topic="t", ttl_ms=20)
    assert len(await rows_of(scripts, log)) == 101 - 63
    await append(scripts, log, "y", topic="t", ttl_ms=HOUR)
    await append(scripts, log, "z", topic="t", ttl_ms=20)
    assert [row_id for _, row_id in await rows_of(scripts, log)][-1] == "z"
    kept = [n for n, _ in await rows_of(scripts, log)]
    assert (await topic_of(scripts, log, "t"))[-len(kept) :] == kept
    assert len(await ids_of(scripts, log)) == len(kept)


async def test_life_is_prolonged_when_less_than_the_ttl_is_left(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", topic="t", ttl_ms=60_000)
    await append(scripts, log, "b", topic="u", ttl_ms=80_000)
    rows, ids = await lives(scripts, log.rows, log.ids)
    assert 60_000 < min(rows, ids) <= max(rows, ids) <= 90_000
    await append(scripts, log, "c", topic="u", ttl_ms=100_000)
    rows, ids = await lives(scripts, log.rows, log.ids)
    assert 100_000 < min(rows, ids) <= max(rows, ids) <= 150_000
    assert abs(rows - ids) < 10_000


async def test_each_new_row_is_announced_once(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    async with listening(scripts.transport, log.channel) as subscription:
        assert await subscription.next() is None
        await append(scripts, log, "a b", topic="", announce=True)
        await append(scripts, log, "a b", topic="", announce=True)
        await append(scripts, log, "c", announce=False)
        await append(scripts, log, "d", announce=True)
        reported = [await subscription.next() or b"" for _ in range(2)]
    first, second = map(read_message, reported)
    assert first is not None
    assert (first.n, first.id, first.topic, first.data) == (1, b"a b", "", b"row a b")
    assert second is not None
    assert (second.n, second.id, second.topic) == (3, b"d", None)


async def test_numbers_beyond_32_bits_are_written_whole(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    last = 3_000_000_000_000
    await append(scripts, log, "a", topic="t")
    head = f"{last}-0 {last + 1} 0 0 0"
    await ask(scripts, "DEL", log.rows)
    await ask(scripts, "HSET", log.ids, "", head, b"\xfft", f"{last} 0 0 {last}")
    assert await append(scripts, log, "b", "c", topic="t") == ok(2, last + 1, last + 2)
    for topic in ("t", None):
        reply = await scripts.read_log(
            log, after=last, after_ms=0, count=9, topic=topic, most_bytes=1 << 20
        )
        assert [entry[1][1] for entry in reply.facts[3]] == [b"b", b"c"]
    assert await append(scripts, log, "b") == ok(0, last + 1)


async def test_a_log_whose_head_was_evicted_begins_anew(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b", topic="t")
    await ask(scripts, "DEL", log.ids)
    assert await append(scripts, log, "b", topic="t") == ok(1, 1)
    assert await rows_of(scripts, log) == [(1, "b")]
    assert await topic_of(scripts, log, "t") == [1]


async def test_a_key_of_another_type_is_told_and_nothing_is_half_written(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", topic="t")
    was = await ids_hash(scripts, log)
    await ask(scripts, "SET", log.rows, "x", "PX", HOUR)
    for topic in ("t", "u", None):
        with pytest.raises(CorruptState, match="append_log found a key of another type") as told:
            await append(scripts, log, "b", topic=topic)
        assert told.value.key == log.rows
        assert await ids_hash(scripts, log) == was
    await ask(scripts, "DEL", log.rows)
    assert await append(scripts, log, "b", topic="t") == ok(1, 2)
    # The new stream lives as long as what the log knows of itself.
    rows_left, ids_left = await lives(scripts, log.rows, log.ids)
    assert rows_left > 0
    assert abs(rows_left - ids_left) <= 1_000


@pytest.mark.role("any", why="it makes users")
async def test_a_writer_without_a_right_to_the_channel_leaves_nothing_half_written(
    scripts: Scripts, keys: Keys
) -> None:
    log, user = keys.updates("s"), f"{keys.namespace}-writer"
    rules = ("on", "nopass", "allkeys", "+@all", "resetchannels")
    await ask_each(scripts.transport, "ACL", "SETUSER", user, *rules)
    await ask_each(scripts.transport, "AUTH", user, "any")
    with pytest.raises(CommandRefused):
        await append(scripts, log, "a", "b", topic="t", announce=True)
    assert await lives(scripts, log.rows, log.ids) == [-2, -2]
    assert await append(scripts, log, "a", "b", topic="t") == ok(2, 1, 2)
    with pytest.raises(CommandRefused):
        await append(scripts, log, "b", "c", topic="t", announce=True)
    assert await topic_of(scripts, log, "t") == [1, 2]
    assert await append(scripts, log, "c", topic="t") == ok(1, 3)
    assert await rows_of(scripts, log) == [(1, "a"), (2, "b"), (3, "c")]
    # A cleared log is nothing but its head, which must not lose its lifetime either.
    await scripts.clear_log(log)
    with pytest.raises(CommandRefused):
        await append(scripts, log, "d", topic="t", announce=True)
    rows, ids = await lives(scripts, log.rows, log.ids)
    assert rows == -2
    assert 0 < ids <= 1.5 * HOUR
    assert list(await ids_hash(scripts, log)) == [b""]
    assert await append(scripts, log, "d", topic="t") == ok(1, 4)
    await ask_each(scripts.transport, "AUTH", "default", "any")
    await ask_each(scripts.transport, "ACL", "DELUSER", user)


async def test_no_row_is_dropped_before_its_time_when_the_clock_was_set_back(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "old", "young")
    now = await clock_ms(scripts)
    await ask(scripts, "DEL", log.rows)
    for n, (row_id, ms) in enumerate([("old", now - 20_000), ("young", now)], start=1):
        await ask(scripts, "XADD", log.rows, f"{n}-{ms}", "id", row_id, "topic", "", "row", "")
    await ask(scripts, "PEXPIRE", log.rows, HOUR)
    # Row 2 was written in the next hour, before the clock was set back.
    head = f"2-{now + HOUR} 1 {now - 20_000} {now + HOUR} 0"
    await ask(scripts, "HSET", log.ids, "", head)
    await append(scripts, log, "new", ttl_ms=10_000)
    assert await rows_of(scripts, log) == [(2, "young"), (3, "new")]
