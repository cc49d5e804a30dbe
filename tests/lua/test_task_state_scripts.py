"""register_task_state, record_task_event, read_/drop_/count_task_states and set_task_stream."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.script_samples import registered_keys
from tests.support.scripts import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok


class Task:
    """One task, called in short."""

    def __init__(self, scripts: Scripts, keys: Keys, name: str = "t") -> None:
        self.scripts, self.name = scripts, name
        self.keys = registered_keys(keys, name)

    async def register(self, write: str = "w", *, ttl_ms: int = HOUR, stream: str = "s") -> Reply:
        return await self.scripts.register_task_state(
            self.keys,
            task_id=self.name,
            context_id="c",
            stream_id=stream,
            state="working",
            write=write,
            ttl_ms=ttl_ms,
        )

    async def record(self, event_id: str, state: str | None = None, **more: Any) -> Reply:
        asked: dict[str, Any] = {"ends": False, "max_rows": 0, "kept_ms": HOUR // 2, **more}
        return await self.scripts.record_task_event(
            self.keys,
            task_id=self.name,
            event_id=event_id.encode(),
            state=state,
            row=b"row " + event_id.encode(),
            active_ms=HOUR,
            **asked,
        )

    async def end(self, event_id: str = "end", **more: Any) -> Reply:
        return await self.record(event_id, "completed", ends=True, **more)

    async def drop(self, before_us: int = 1 << 52) -> Reply:
        return await self.scripts.drop_task_state(self.keys, task_id=self.name, before_us=before_us)

    async def counts(self) -> list[Any]:
        keys = self.keys
        reply = await self.scripts.count_task_states(active=keys.active, kept=keys.kept)
        return reply.facts

    async def listed(self) -> list[list[bytes]]:
        keys = self.keys
        lists = (keys.active, keys.completed, keys.kept)
        return [await ask(self.scripts, "ZRANGE", key, 0, -1) for key in lists]

    async def rows(self) -> list[bytes]:
        found = await ask(self.scripts, "XRANGE", self.keys.events.rows, "-", "+")
        return [row[1][5] for row in found]


def names(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_a_task_is_registered_once(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    assert await scripts.read_task_state(task.keys) == no(ReplyCode.MISSING)
    reply = await task.register()
    assert (reply.word, reply.facts[1:]) == (ReplyCode.OK, [0, 0])
    assert await task.register() == reply
    other = await task.register("other", stream="stolen")
    assert other.word is ReplyCode.TAKEN
    assert other.facts == reply.facts == (await scripts.read_task_state(task.keys)).facts
    assert names(other.facts[0])[b"stream"] == b"s"
    await task.record("e")
    assert (await task.register("other")).facts[1] == 1
    assert (await task.register()).word is ReplyCode.OK


async def test_of_many_registrations_at_once_one_wins(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    replies = await asyncio.gather(*(task.register(str(n)) for n in range(50)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.TAKEN] * 49
    assert await task.counts() == [1, 0]


async def test_an_event_is_recorded_once_and_moves_the_task(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    assert await task.record("a") == no(ReplyCode.MISSING)
    assert await task.rows() == []
    await task.register()
    first = await task.record("a", "input-required")
    assert first.word is ReplyCode.OK
    assert await task.record("b") != first
    again = await task.record("a", "working")
    assert again == no(ReplyCode.TAKEN, first.facts[0], b"row a")
    assert await task.rows() == [b"row a", b"row b"]
    assert (await fields(scripts, task.keys.task))["state"] == b"input-required"


async def test_nothing_is_recorded_after_the_end(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    await task.register()
    end = await task.end()
    before = await fields(scripts, task.keys.task)
    for event_id, state, ends in (
        ("x", "working", False),
        ("y", "failed", True),
        ("z", None, False),
    ):
        assert await task.record(event_id, state, ends=ends) == no(ReplyCode.DENIED, b"completed")
    # The call that ended it may be repeated.
    assert await task.end() == no(ReplyCode.TAKEN, end.facts[0], b"row end")
    assert await fields(scripts, task.keys.task) == before
    assert await task.rows() == [b"row end"]
    assert await task.counts() == [0, 1]


async def test_of_many_ends_at_once_one_wins(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    await task.register()
    replies = await asyncio.gather(*(task.end(str(n)) for n in range(50)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.DENIED] * 49 + [ReplyCode.OK]
    assert len(await task.rows()) == 1


async def test_all_of_a_task_lives_equally_long_and_shorter_once_it_is_over(
    scripts: Scripts, keys: Keys
) -> None:
    task = Task(scripts, keys)
    await task.register(ttl_ms=HOUR // 4)
    own = (task.keys.task, task.keys.events.rows, task.keys.events.ids)
    assert HOUR // 5 < (await lives(scripts, *own))[0] <= HOUR // 4
    for n in range(3):
        await task.record(f"e{n}")
        assert all(HOUR * 0.9 < left <= HOUR for left in await lives(scripts, *own))
    await task.end()
    assert all(HOUR * 0.4 < left <= HOUR // 2 for left in await lives(scripts, *own))
    lists = (task.keys.active, task.keys.completed, task.keys.kept)
    gone, *kept = await lives(scripts, *lists)
    assert gone == -2
    assert all(HOUR * 0.4 < left <= HOUR // 2 for left in kept)


async def test_the_oldest_events_are_dropped_by_number_never_by_age(
    scripts: Scripts, keys: Keys
) -> None:
    task = Task(scripts, keys)
    await task.register()
    for n in range(40):
        await task.record(f"e{n}", max_rows=10)
    rows = await task.rows()
    assert rows == [b"row e%d" % n for n in range(40 - len(rows), 40)]
    assert 10 <= len(rows) <= 11
    assert await ask(scripts, "HLEN", task.keys.events.ids) == len(rows) + 1


async def test_a_task_whose_time_is_over_is_not_counted_and_leaves_the_lists(
    scripts: Scripts, keys: Keys
) -> None:
    lost, over, other, long = (Task(scripts, keys, name) for name in ("lost", "over", "o", "long"))
    await long.register()
    await long.end()
    await lost.register(ttl_ms=30)
    await over.register()
    await over.end(kept_ms=30)
    await clock_passes(scripts, await clock_ms(scripts) + 30)
    assert await other.counts() == [0, 1]
    assert await other.listed() == [[b"lost"], [b"long", b"over"], [b"over", b"long"]]
    await other.register()
    assert await other.listed() == [[b"o"], [b"long"], [b"long"]]
    assert await other.counts() == [1, 1]
    # The id is free again, and what was told of the earlier task is not this one's.
    again = await over.register("again")
    assert (again.word, again.facts[1:]) == (ReplyCode.OK, [0, 0])
    assert await over.rows() == []


async def test_of_lists_that_many_leave_at_once_a_slice_is_taken_at_a_time(
    scripts: Scripts, keys: Keys
) -> None:
    last = Task(scripts, keys, "last")
    await last.register()
    await last.end()
    tasks = [Task(scripts, keys, f"t{n}") for n in range(150)]
    await asyncio.gather(*(task.register() for task in tasks))
    await asyncio.gather(*(task.end(kept_ms=1000) for task in tasks))
    assert await last.counts() == [0, 151]
    await clock_passes(scripts, await clock_ms(scripts) + 1000)
    assert await last.counts() == [0, 1]
    new = Task(scripts, keys, "new")
    await new.register()
    assert [len(names) for names in await last.listed()] == [1, 51, 51]
    await new.record("e")
    assert await last.listed() == [[b"new"], [b"last"], [b"last"]]


async def test_a_task_is_dropped_if_it_ended_before(scripts: Scripts, keys: Keys) -> None:
    task = Task(scripts, keys)
    await task.register()
    await task.record("e")
    assert await task.drop() == no(ReplyCode.STALE)
    await task.end()
    ended = int((await fields(scripts, task.keys.task))["completed"])
    assert await task.drop(ended) == no(ReplyCode.STALE)
    replies = await asyncio.gather(*(task.drop(ended + 1) for _ in range(20)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.MISSING] * 19 + [ReplyCode.OK]
    own = (task.keys.task, task.keys.events.rows, task.keys.events.ids)
    assert set(await lives(scripts, *own)) == {-2}
    assert await task.listed() == [[], [], []]


async def test_a_stream_is_named_anew_and_nothing_else_changes(
    scripts: Scripts, keys: Keys
) -> None:
    task = Task(scripts, keys)
    assert await scripts.set_task_stream(task.keys, stream_id="x") == no(ReplyCode.MISSING)
    await task.register(ttl_ms=HOUR // 4)
    before = await fields(scripts, task.keys.task)
    assert await scripts.set_task_stream(task.keys, stream_id="x") == ok()
    assert await fields(scripts, task.keys.task) == {**before, "stream": b"x"}
    assert (await lives(scripts, task.keys.task))[0] <= HOUR // 4
