from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import (
    BackendUnavailable,
    CorruptState,
    CursorGap,
    InvalidField,
    LeaseLost,
    OutcomeUnknown,
)
from redis_state.primitives.lease import Leases
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.scripts import Fence, Scripts
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support.log_rows import TOPICS, log_of, pair
from tests.support.scripts.logs import matching
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask, outcome
from tests.support.servers.changes.leaving import Leaving
from tests.support.servers.faults import Proxy, run_processes
from tests.support.servers.proxies.command_proxy import CommandProxy

Step = tuple[str, int, int, str | None]
Numbered = tuple[int, str, str | None]

# What a step is given means what its name wants: which ids, which cursor, how many rows.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "batch", "read", "read", "tail", "clear"]),
        st.integers(0, 1000),
        st.integers(1, 5),
        st.sampled_from(TOPICS),
    ),
    min_size=25,
    max_size=60,
)


@dataclass
class LogModel:
    """What a log should be: a list with a bound."""

    max_rows: int
    rows: list[tuple[int, str, str | None]] = field(
        default_factory=list[tuple[int, str, str | None]]
    )
    last: int = 0
    first: int = 1
    times: dict[int, int] = field(default_factory=lambda: {0: 0})
    happened: list[str] = field(default_factory=list[str])

    def append(self, ids: list[str], topic: str | None) -> list[int]:
        size = min(64, self.max_rows or 64)
        return [
            n
            for start in range(0, len(ids), size)
            for n in self._append(ids[start : start + size], topic)
        ]

    def _append(self, ids: list[str], topic: str | None) -> list[int]:
        numbers: list[int] = []
        for row_id in ids:
            known = [n for n, other, _ in self.rows if other == row_id]
            if not known:
                self.last += 1
                self.rows.append((self.last, row_id, topic))
            numbers += known or [self.last]
        slack = min(64, self.max_rows // 16)
        if self.max_rows and len(self.rows) > self.max_rows + slack:
            self.rows = self.rows[-self.max_rows :]
            self.first = self.rows[0][0]
            self.happened.append("trimmed")
        return numbers

    def clear(self) -> int:
        dropped, self.rows, self.first = len(self.rows), [], self.last + 1
        return dropped

    def gap(self, n: int, ms: int) -> tuple[str, int] | None:
        """Tell why a cursor cannot be followed, and after which row to read on."""
        start = self.first - 1
        if n < start:
            return "trimmed", start
        if n > self.last and ms == 0:
            return "ahead", self.last
        if n == 0 or ms == 0 or self.times.get(n) == ms:
            return None
        # The last row dropped may have come and gone in one call: with the next one, then.
        before = self.times.get(start, self.times.get(self.first, 0))
        kept = [k for k in range(self.first, self.last + 1) if self.times[k] <= ms]
        seen = max(kept, default=start) if before <= ms else 0
        if seen == self.last < n:
            return "ahead", seen
        return ("rewound", seen) if 0 < seen < n else ("foreign", start)

    def after(self, n: int, topic: str | None) -> list[tuple[int, str]]:
        found = [row for row in self.rows if row[0] > n]
        return [(row[0], row[1]) for row in matching(topic, found, lambda row: row[2])]

    @property
    def end(self) -> str:
        return f"{self.last}-{self.times.get(self.last, 0)}"


class LogPlay:
    """Do each step on a real log and on the model, and compare."""

    def __init__(self, log: Log, model: LogModel) -> None:
        self.log = log
        self.model = model
        self.ids = count()
        self.cursors = ["0-0", "999-1", "999-99999999999999", "nonsense", "5-7"]

    async def do(self, name: str, number: int, size: int, topic: str | None) -> None:
        await getattr(self, f"_{name}")(number, size, topic)
        await self._compare()

    async def _append(self, number: int, size: int, topic: str | None) -> None:
        # Every fourth id is one that was given before, and may be gone since.
        newest = next(self.ids)
        await self._write([str(newest if number % 4 else number % (newest + 1))], topic)

    async def _batch(self, number: int, size: int, topic: str | None) -> None:
        ids = [str(next(self.ids)) for _ in range(size * (30 if number % 5 == 0 else 1))]
        await self._write([*ids, ids[0], str(number % (int(ids[-1]) + 1))], topic)

    async def _write(self, ids: list[str], topic: str | None) -> None:
        before = self.model.last
        if len(ids) == 1:
            new = int(await self.log.add(pair(ids[0]), topic=topic))
            self.model.append(ids, topic)
        else:
            appended = await self.log.append([pair(row_id) for row_id in ids], topic=topic)
            assert appended.numbers == self.model.append(ids, topic)
            new = appended.new
        assert new == self.model.last - before
        if new < len(ids):
            self.model.happened.append("repeated id")

    async def _read(self, number: int, size: int, topic: str | None) -> None:
        # The newest cursors too, which are the likelier ones to be good.
        choice = number % (len(self.cursors) + 1)
        if number % 2:
            choice = max(0, len(self.cursors) - 1 - number % 8)
        cursor = None if choice == len(self.cursors) else self.cursors[choice]
        await self.read(cursor, size, topic)
        # The cursor of the newest row dropped is good to the last; one like it is not.
        edge = self.model.first - 1
        if edge in self.model.times:
            for off in (0, number % 2):
                await self.read(f"{edge}-{self.model.times[edge] + off}", size, topic)

    async def read(self, cursor: str | None, size: int, topic: str | None) -> None:
        model = self.model
        try:
            n, ms = (model.first - 1, 0) if cursor is None else map(int, cursor.split("-"))
            gap = model.gap(n, ms)
        except ValueError:
            n, gap = 0, ("foreign", model.first - 1)
        page = await outcome(self.log.read(after=cursor, count=size, topic=topic), CursorGap)
        if isinstance(page, CursorGap):
            model.happened.append(f"gap: {page.reason}")
            assert gap is not None
            assert page.reason == gap[0]
            assert page.missed == (gap[1] - n if page.reason == "trimmed" else None)
            rest = await self.log.read(after=page.resume_after)
            assert [(row.n, row.id.decode()) for row in rest.rows] == model.after(gap[1], None)
            return
        assert gap is None
        expected = model.after(n, topic)
        assert [(row.n, row.id.decode()) for row in page.rows] == expected[:size]
        assert all(row.data == b"row " + row.id for row in page.rows)
        if len(expected) >= size:
            assert page.cursor == page.rows[-1].cursor
            assert page.at_end == (page.rows[-1].n == model.last)
        else:
            assert (page.cursor, page.at_end) == (model.end, True)
        model.happened.append("read a topic" if topic is not None else "read all")
        place, _, time = page.cursor.partition("-")
        self.cursors += [page.cursor, f"{place}-1", f"{int(place) + 1}-{time}"]

    async def _tail(self, number: int, size: int, topic: str | None) -> None:
        row_id = str(number % 40) if number % 3 else ""
        known = [n for n, other, _ in self.model.rows if other == row_id]
        rows = await self.log.tail(after_id=row_id.encode(), count=size, topic=topic)
        expected = self.model.after(known[0] if known else 0, topic)[-size:]
        assert [(row.n, row.id.decode()) for row in rows] == expected
        found = await self.log.find(row_id.encode()) if row_id else await self.log.end()
        if row_id:
            assert found == (f"{known[0]}-{self.model.times[known[0]]}" if known else None)
        else:
            assert found == self.model.end

    async def _clear(self, number: int, size: int, topic: str | None) -> None:
        if number % 3:
            return
        assert await self.log.clear() == self.model.clear()
        self.model.happened.append("cleared")

    async def _compare(self) -> None:
        entries = await ask(self.log.scripts, "XRANGE", self.log.keys.rows, "-", "+")
        found: list[tuple[int, str]] = []
        for entry, row in entries:
            n, ms = entry.split(b"-")
            assert self.model.times.setdefault(int(n), int(ms)) == int(ms)
            found.append((int(n), row[1].decode()))
        assert found == self.model.after(0, None)
        if self.model.last not in self.model.times:
            raise AssertionError


async def play_log(scripts: Scripts, example: tuple[int, list[Step]]) -> list[str]:
    max_rows, steps = example
    keys = Keys(scripts.transport.settings.namespace)
    log = log_of(scripts, keys, max_rows=max_rows, announce=False, session=uuid.uuid4().hex)
    model = LogModel(max_rows)
    play = LogPlay(log, model)
    for step in steps:
        await play.do(*step)
    assert [row.id.decode() for row in await log.read_all()] == [row[1] for row in model.rows]
    return model.happened


@pytest.mark.fuzz
def test_a_log_is_what_the_model_says(settings: Settings) -> None:
    bounds = st.sampled_from([0, 1, 2, 5, 20, 40])
    explore(
        settings,
        st.tuples(bounds, STEPS),
        play_log,
        wanted={
            "trimmed",
            "repeated id",
            "cleared",
            "read all",
            "read a topic",
            "gap: trimmed",
            "gap: foreign",
            "gap: ahead",
            "gap: rewound",
        },
    )


async def test_of_4_processes_each_row_is_new_for_one_and_seen_once_by_a_follower(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    ids = [f"row-{number}" for number in range(400)]
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [
        {**shared, "does": "append", "writer": str(writer), "ids": ids[writer:] + ids[:writer]}
        for writer in range(4)
    ]
    log = log_of(scripts, keys)

    async def watch() -> list[Row]:
        seen: list[Row] = []
        async with aclosing(log.follow()) as rows:
            async for row in rows:
                seen.append(row)
                if len(seen) == len(ids):
                    break
        return seen

    watching = asyncio.create_task(watch())
    new = await run_processes("use_primitives", arguments)
    assert sum(new) == len(ids)
    assert [row.n for row in await watching] == list(range(1, len(ids) + 1))
    rows = await log.read_all()
    assert sorted(row.id.decode() for row in rows) == sorted(ids)
    for digit in "07":
        topic = await log.tail(count=1000, topic=digit)
        assert topic == [row for row in rows if row.topic == digit]


async def test_bad_arguments_are_named(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    with pytest.raises(InvalidField, match="row_id"):
        await log.append([(b"", b"")])
    with pytest.raises(InvalidField, match="row_id"):
        await log.add((b"", b""))
    with pytest.raises(InvalidField, match="count"):
        await log.read(count=0)
    assert await log.tail(count=0) == []
    await log.append([pair("a")])
    assert len(await log.tail(count=1 << 62)) == len((await log.read(count=1 << 62)).rows) == 1
    stale = Fence(keys.lease("s", "t"), 1, "o")
    with pytest.raises(LeaseLost):
        await log.append([pair("b")], fence=stale)
    with pytest.raises(LeaseLost):
        await log.add(pair("b"), fence=stale)
    held = await Leases(scripts, keep_ms=HOUR).acquire(keys.lease("s", "t"), duration_ms=HOUR)
    assert held is not None
    assert (await log.append([pair("b")], fence=held.fence)).numbers == [2]
    assert await log.add(pair("c"), fence=held.fence)
    assert not await log.add(pair("c"), fence=held.fence)


async def test_large_rows_are_read_few_at_a_time(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    await log.append([(b"%d" % number, bytes(300_000)) for number in range(11)], topic="a")
    for topic in ("a", None):
        cursor, sizes, at_end = None, list[int](), False
        while not at_end:
            page = await log.read(after=cursor, topic=topic)
            sizes.append(len(page.rows))
            cursor, at_end = page.cursor, page.at_end
        assert sizes == [4, 4, 3]
    assert len(await log.read_all()) == 11


async def test_the_newest_large_rows_are_read_few_at_a_time(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, sizes, read = log_of(scripts, keys), list[int](), scripts.tail_log

    async def counted(*args: Any, **options: Any) -> Any:
        reply = await read(*args, **options)
        sizes.append(len(reply.facts[0]))
        return reply

    monkeypatch.setattr(scripts, "tail_log", counted)
    await log.append([(b"%d" % number, bytes(300_000)) for number in range(20)], topic="a")
    for topic, slices in (("a", [4, 4, 4, 4, 3]), (None, [8, 8, 3])):
        rows = await log.tail(count=19, topic=topic)
        assert [row.n for row in rows] == list(range(2, 21))
        assert sizes == slices
        sizes.clear()
    rows, newest = await log.before(19, 17)
    assert ([row.n for row in rows], newest, sizes) == ([*range(2, 19)], 20, [8, 8, 1])


async def test_large_rows_behind_many_small_ones_are_read_few_at_a_time(
    scripts: Scripts, keys: Keys
) -> None:
    log = log_of(scripts, keys)
    await log.append([(b"%d" % number, b"small") for number in range(120)])
    await log.append([(b"%d" % number, bytes(1 << 20)) for number in range(120, 140)])
    page = await log.read()
    assert 120 <= len(page.rows) <= 128
    assert not page.at_end
    assert len(await log.read_all()) == 140


async def test_reading_all_passes_over_what_is_dropped_meanwhile(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    log = log_of(scripts, keys, max_rows=700)
    await log.append([pair(str(number)) for number in range(700)])
    async with CommandProxy(settings.url.get_secret_value()) as proxy:
        through = Transport(settings.model_copy(update={"url": SecretStr(proxy.url)}))
        reader = log_of(Scripts(through), keys, max_rows=700)
        # Before its second page.
        more = [pair(f"x{number}") for number in range(600)]
        with proxy.meanwhile("read_log", lambda: log.append(more), at=2):
            rows = [row.id.decode() for row in await reader.read_all()]
        assert rows[:500] == [str(number) for number in range(500)]
        kept = [row.id.decode() for row in (await log.read(count=1000)).rows]
        assert rows[500:] == kept
        assert 700 <= len(kept) < 744
        gone = proxy.meanwhile(
            "read_log", lambda: ask(scripts, "DEL", log.keys.rows, log.keys.ids), at=2
        )
        with gone:
            assert len(await reader.read_all()) == 500
        await through.aclose()


async def test_an_append_does_not_deny_the_slices_that_are_there(
    scripts: Scripts, keys: Keys, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rows = log_of(scripts, keys), [pair(str(number)) for number in range(65)]
    async with Proxy(settings.url.get_secret_value()) as proxy:
        change = {"url": SecretStr(proxy.url), "call_timeout_s": 0.3}
        far = Transport(settings.model_copy(update=change))
        distant = log_of(Scripts(far), keys)
        Leaving(proxy, far, monkeypatch).behind(distant.scripts, "append_log")
        with pytest.raises(OutcomeUnknown, match="written, then"):
            await distant.append(rows)
        with pytest.raises(BackendUnavailable) as denied:
            await distant.append([pair("x")])
        assert not isinstance(denied.value, OutcomeUnknown)
        await far.aclose()
    assert len(await log.read_all()) == 64
    assert (await log.append(rows)).new == 1


# Following


async def test_a_key_of_another_type_is_told(scripts: Scripts, keys: Keys) -> None:
    log = Log(scripts, keys.updates("s"), Bounds(0, HOUR))
    for key in (log.keys.rows, log.keys.ids):
        await ask(scripts, "SET", key, "x", "PX", HOUR)
    with pytest.raises(CorruptState, match="HGET found a key of another type"):
        await log.end()
    with pytest.raises(CorruptState, match="XRANGE found a key of another type"):
        await log.read(after="1-1")
