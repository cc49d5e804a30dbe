"""Following a log: every row once, in order, over gaps, silence and cut connections."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import strategies as st

import redis_state.primitives.log.log as log_module
from redis_state import Settings
from redis_state.errors import BackendUnavailable, CursorGap
from redis_state.primitives.log import follower as log_follower
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Page
from redis_state.primitives.signal import Row
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.subscriber import Subscriber, Subscription
from redis_state.transport.transport import Transport
from tests.support.log_rows import TOPICS, log_of, pair
from tests.support.scripts.logs import matching
from tests.support.scripts.models import explore
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.faults import Proxy, begin_processes
from tests.support.servers.sets.nodes import ask_each, subscribers


def row_itself(row: Row) -> Row:
    return row


async def take(rows: AsyncGenerator[Row, None], wanted: int) -> list[str]:
    async with asyncio.timeout(60):
        return [(await anext(rows)).id.decode() for _ in range(wanted)]


async def listeners(scripts: Scripts, log: Log) -> int:
    return (await subscribers(scripts.transport, log.keys.channel))[0]


FOLLOWS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "many", "again", "cut", "restart", "clear"]),
        st.sampled_from(TOPICS),
    ),
    min_size=8,
    max_size=16,
)


class FollowPlay:
    """One follower of all rows and one of each topic, while rows are written and links cut."""

    def __init__(self, scripts: Scripts) -> None:
        keys = Keys(scripts.transport.settings.namespace)
        self.scripts = scripts
        self.log = log_of(scripts, keys, session=uuid.uuid4().hex)
        self.written: list[tuple[str, str | None]] = []
        self.seen: dict[str | None, list[str]] = {topic: [] for topic in TOPICS}
        self.cursors: dict[str | None, str | None] = dict.fromkeys(TOPICS)
        self.cleared = False
        self.tasks: dict[str | None, asyncio.Task[None]] = {}
        for topic in TOPICS:
            self.begin(topic)

    def begin(self, topic: str | None) -> None:
        self.tasks[topic] = asyncio.create_task(self.watch(topic))

    async def watch(self, topic: str | None) -> None:
        async with aclosing(self.log.follow(after=self.cursors[topic], topic=topic)) as rows:
            async for row in rows:
                self.seen[topic].append(row.id.decode())
                self.cursors[topic] = row.cursor

    async def end(self, topic: str | None) -> None:
        self.tasks[topic].cancel()
        await asyncio.wait({self.tasks[topic]})

    def expected(self, topic: str | None) -> list[str]:
        return [row_id for row_id, _ in matching(topic, self.written, lambda row: row[1])]

    async def catch_up(self) -> None:
        def caught_up() -> bool:
            return all(len(self.seen[topic]) >= len(self.expected(topic)) for topic in TOPICS)

        await eventually(caught_up, "every follower has every row")

    async def append(self, topic: str | None, size: int = 1) -> None:
        ids = [f"{len(self.written) + place}" for place in range(size)]
        self.written.extend((row_id, topic) for row_id in ids)
        await self.log.append([pair(row_id) for row_id in ids], topic=topic)
        self.cleared = False

    async def many(self, topic: str | None) -> None:
        await self.append(topic, 1100)

    async def again(self, topic: str | None) -> None:
        if not self.written:
            return
        row_id = self.written[-1][0]
        assert await self.log.add(pair(row_id), topic=topic) == self.cleared
        if self.cleared:
            self.written.append((row_id, topic))
        self.cleared = False

    async def cut(self, _: str | None) -> None:
        await ask_each(self.scripts.transport, "CLIENT", "KILL", "TYPE", "pubsub")

    async def restart(self, topic: str | None) -> None:
        await self.end(topic)
        self.begin(topic)

    async def clear(self, _: str | None) -> None:
        await self.catch_up()
        for topic in TOPICS:
            # Begun again at its own last row, a topic's follower would get a gap.
            await self.end(topic)
            self.cursors[topic] = await self.log.end()
            self.begin(topic)
        await self.log.clear()
        self.cleared = bool(self.written)


async def play_follow(scripts: Scripts, steps: list[tuple[str, str | None]]) -> list[str]:
    play = FollowPlay(scripts)
    for name, topic in steps:
        await getattr(play, name)(topic)
    await play.catch_up()
    for topic in TOPICS:
        await play.end(topic)
        assert play.seen[topic] == play.expected(topic)
    return [name for name, _ in steps]


@pytest.mark.fuzz
def test_a_follower_sees_exactly_what_the_model_says(settings: Settings) -> None:
    wanted = {"append", "many", "again", "cut", "restart", "clear"}
    explore(settings, FOLLOWS, play_follow, wanted=wanted)


async def test_4_processes_follow_what_two_write(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    topics = [None, "0", "1", None]
    followers = [
        {**shared, "does": "follow", "writer": f"ready-{place}", "topic": topic}
        for place, topic in enumerate(topics)
    ]
    running = await begin_processes("use_primitives", followers)
    log = log_of(scripts, keys)

    async def ready() -> bool:
        return len(await log.tail(count=9, topic="ready")) == len(topics)

    await eventually(ready, "the followers have begun", timeout_s=60)

    async def write(writer: str) -> None:
        for number in range(300):
            row_id = f"{writer}-{number}"
            await log.append([pair(row_id)], topic=row_id[-1])

    await asyncio.gather(write("x"), write("y"))
    rows = await log.read_all()
    for topic in ("0", "1"):
        await log.append([pair(f"not-{topic}")], topic="2")
    # Each follower ends at this row: it is of no topic, so topics get one of their own each.
    for topic in ("0", "1"):
        await ask(scripts, "HDEL", log.keys.ids, "last")
        await log.append([pair("last")], topic=topic)
    for followed, seen in zip(topics, await running, strict=True):
        every = [row.id.decode() for row in rows if followed in (None, row.topic)]
        assert [row_id for row_id in seen if not row_id.startswith("not-")] == every


async def test_rows_written_before_during_and_after_the_first_read_come_once(
    scripts: Scripts, keys: Keys
) -> None:
    log = log_of(scripts, keys)
    await log.append([pair("a"), pair("b")])
    async with aclosing(log.follow()) as rows:
        first = asyncio.create_task(take(rows, 4))
        for row_id in "bcd":
            await log.append([pair(row_id)])
        assert await first == ["a", "b", "c", "d"]
    async with aclosing(log.follow(after=await log.find(b"c"))) as rows:
        assert await take(rows, 1) == ["d"]


async def test_a_slow_follower_misses_nothing(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    await log.append([pair("first")])
    async with aclosing(log.follow()) as rows:
        await take(rows, 1)
        await log.append([pair("second")])
        await take(rows, 1)
        for start in range(0, 3000, 500):
            await log.append([pair(str(number)) for number in range(start, start + 500)])
        assert await take(rows, 3000) == [str(number) for number in range(3000)]


async def test_a_follower_that_fell_too_far_behind_is_told(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys, max_rows=10)
    await log.append([pair("first")])
    async with aclosing(log.follow()) as rows:
        await take(rows, 1)
        await log.append([pair(str(number)) for number in range(2000)])
        with pytest.raises(CursorGap) as caught:
            await take(rows, 2000)
    assert caught.value.reason == "trimmed"


async def test_a_log_that_began_anew_is_told_to_its_follower(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    await log.append([pair("a"), pair("b")])
    async with aclosing(log.follow()) as rows:
        await take(rows, 2)
        reading = asyncio.create_task(take(rows, 1))
        await clock_passes(scripts, await clock_ms(scripts) + 1)
        await ask(scripts, "DEL", log.keys.rows, log.keys.ids)
        await log.append([pair("c")])
        with pytest.raises(CursorGap) as caught:
            await reading
    assert caught.value.reason == "foreign"
    assert [row.id for row in (await log.read(after=caught.value.resume_after)).rows] == [b"c"]


async def test_a_follower_of_an_erased_log_hears_of_it_at_once(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 600)
    log = log_of(scripts, keys)
    await log.append([pair("a"), pair("b")])
    async with aclosing(log.follow()) as rows:
        await take(rows, 2)
        reading = asyncio.create_task(take(rows, 1))
        await eventually(lambda: listeners(scripts, log), "the channel is followed")
        await ask(scripts, "DEL", log.keys.rows, log.keys.ids)
        await log.call_followers()
        with pytest.raises(CursorGap) as caught:
            await reading
    assert (caught.value.reason, caught.value.resume_after) == ("ahead", "0-0")


async def test_who_keeps_rows_learns_once_that_they_are_gone(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)

    def follow(after: str | None) -> AsyncGenerator[Row, None]:
        return log.follow_as(
            row_itself, after=after, topic=None, reconnect_timeout_s=60, keeps_rows=True
        )

    await log.append([pair("a"), pair("b")])
    async with aclosing(follow(None)) as rows:
        assert await take(rows, 2) == ["a", "b"]
        await log.clear()
        with pytest.raises(CursorGap) as caught:
            await take(rows, 1)
    assert (caught.value.missed, caught.value.resume_after) == (0, await log.end())
    # It has been given none of the rows that went.
    async with aclosing(follow(caught.value.resume_after)) as rows:
        reading = asyncio.create_task(take(rows, 1))
        await eventually(lambda: listeners(scripts, log), "the channel is followed")
        await log.clear()
        await log.append([pair("c")])
        assert await reading == ["c"]
        await log.append([pair("d")])
        assert await take(rows, 1) == ["d"]
        await log.clear()
        with pytest.raises(CursorGap):
            await take(rows, 1)


async def test_a_follower_that_is_closed_unsubscribes(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    await log.append([pair("a")])
    one, two = log.follow(), log.follow()
    await take(one, 1)
    await take(two, 1)

    async def heard(actor: int) -> bool:
        return await listeners(scripts, log) == actor

    await eventually(lambda: heard(1), "the channel is followed")
    await one.aclose()
    await log.append([pair("b")])
    assert await take(two, 1) == ["b"]
    assert await listeners(scripts, log) == 1
    await two.aclose()
    await eventually(lambda: heard(0), "the channel is left")


async def test_a_follower_of_a_quiet_topic_does_not_read_again_and_again(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(scripts, keys)
    reads = 0
    read = Log.read

    async def counted(
        self: Log, *, after: str | None = None, topic: str | None = None, look: bool = False
    ) -> Page:
        nonlocal reads
        reads += 1
        return await read(self, after=after, topic=topic, look=look)

    monkeypatch.setattr(Log, "read", counted)
    async with aclosing(log.follow(topic="quiet")) as rows:
        waiting = asyncio.create_task(take(rows, 1))
        for number in range(200):
            await log.append([pair(str(number))], topic="loud")
        await log.append([pair("x")], topic="quiet")
        assert await waiting == ["x"]
    assert reads <= 4


@pytest.mark.parametrize("rows_before", [0, 2])
@pytest.mark.parametrize("topic", [None, "a"])
async def test_who_has_read_a_log_reads_on_once_and_misses_nothing(
    rows_before: int, topic: str | None, scripts: Scripts, keys: Keys
) -> None:
    log = log_of(scripts, keys)
    await log.append([pair(f"before-{number}") for number in range(rows_before)], topic=topic)
    cursor = (await log.read(topic=topic)).cursor if rows_before else None
    for appended_between in (False, True):
        if appended_between:
            await log.append([pair("between")], topic=topic)
        followed = log.follow_as(
            row_itself, after=cursor, topic=topic, reconnect_timeout_s=60, was_read=True
        )
        async with aclosing(followed) as rows:
            waiting = asyncio.create_task(take(rows, 2 if appended_between else 1))
            await eventually(lambda: listeners(scripts, log), "the channel is followed")
            name = f"after-{appended_between}"
            await log.append([pair(name)], topic=topic)
            expected = ["after-False", "between", name] if appended_between else [name]
            assert await waiting == expected[: 2 if appended_between else 1]


async def test_who_waited_for_its_subscription_is_patient_with_the_silence_after_it(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_CONFIRMED_S", 300)
    silences: list[float] = []
    ring_after = Subscription._ring_after

    def ringing(self: Subscription, silence_s: float) -> None:
        silences.append(silence_s)
        ring_after(self, silence_s)

    monkeypatch.setattr(Subscription, "_ring_after", ringing)
    log = log_of(scripts, keys)
    followed = log.follow_as(
        row_itself, after=None, topic=None, reconnect_timeout_s=60, was_read=True
    )
    async with aclosing(followed) as rows:
        waiting = asyncio.create_task(take(rows, 1))
        await eventually(lambda: 30 in silences, "the alarm is that of a quiet log")
        await log.append([pair("a")])
        assert await waiting == ["a"]
    assert silences == [300, 30]


async def test_a_subscription_that_is_not_confirmed_keeps_nobody_from_reading(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_CONFIRMED_S", 0.05)
    asked = 0

    def lost(_self: Subscriber, _channel: bytes) -> None:
        nonlocal asked
        asked += 1

    monkeypatch.setattr(Subscriber, "_subscribe", lost)
    log = log_of(scripts, keys)
    await log.append([pair("a")])
    followed = log.follow_as(
        row_itself, after=None, topic=None, reconnect_timeout_s=60, was_read=True
    )
    async with aclosing(followed) as rows, asyncio.timeout(30):
        assert await take(rows, 1) == ["a"]
    assert asked


async def test_silence_is_looked_into(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 0.05)
    log = log_of(scripts, keys, announce=False)
    async with aclosing(log.follow()) as rows:
        waiting = asyncio.create_task(take(rows, 2))
        await log.append([pair("a")])
        await eventually(lambda: listeners(scripts, log), "the channel is followed")
        await log.append([pair("b")])
        assert await waiting == ["a", "b"]


async def test_silence_after_a_message_is_looked_into(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 0.05)
    reported, silent = log_of(scripts, keys), log_of(scripts, keys, announce=False)
    async with aclosing(reported.follow()) as rows:
        waiting = asyncio.create_task(take(rows, 3))
        await reported.append([pair("a")])
        await eventually(lambda: listeners(scripts, reported), "the channel is followed")
        # Heard before the alarm rings, which is put off then.
        await reported.append([pair("b")])
        await silent.append([pair("c")])
        assert await waiting == ["a", "b", "c"]


async def test_a_store_that_is_closed_ends_its_followers(settings: Settings, keys: Keys) -> None:
    transport = Transport(settings)
    log = log_of(Scripts(transport), keys)
    await log.append([pair("a")])
    async with aclosing(log.follow()) as rows:
        await take(rows, 1)
        waiting = asyncio.create_task(take(rows, 1))
        await eventually(lambda: listeners(log.scripts, log), "the channel is followed")
        await transport.aclose()
        with pytest.raises(BackendUnavailable, match="closed"):
            await waiting


@pytest.mark.chaos
async def test_cut_connections_lose_no_row_and_a_server_that_stays_away_is_told(
    settings: Settings, scripts: Scripts, keys: Keys
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = settings.model_copy(
            update={"url": type(settings.url)(proxy.url), "call_timeout_s": 0.5}
        )
        transport = Transport(far)
        here = log_of(scripts, keys)
        log = log_of(Scripts(transport), keys)
        await here.append([pair("0")])
        try:
            async with aclosing(log.follow(reconnect_timeout_s=0.5)) as rows:
                for number in range(1, 20):
                    await here.append([pair(str(number))])
                    assert await take(rows, 1) == [str(number - 1)]
                    if number % 3 == 0:
                        proxy.cut()
                assert await take(rows, 1) == ["19"]
                assert proxy.cuts
                proxy.refuse()
                proxy.cut()
                with pytest.raises(BackendUnavailable):
                    await take(rows, 1)
        finally:
            await transport.aclose(drain_s=0)
