from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row, listening, read_message
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.subscriber import Subscription
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR
from tests.support.servers.faults import begin_processes
from tests.support.servers.sets.nodes import ask_each, subscribers

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
# What a message is made of stands in ids too.
ROW_IDS = st.binary(min_size=1, max_size=20) | st.from_regex(rb"\A[0-9 -]{1,9} \Z")
ROWS = st.lists(
    st.tuples(ROW_IDS, st.none() | TEXT, st.binary(max_size=50)),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[0],
)


def log_of(scripts: Scripts, keys: Keys, session: str = "s") -> Log:
    return Log(scripts, keys.updates(session), Bounds(0, HOUR), announce=True)


async def heard(subscription: Subscription) -> Row | None:
    async with asyncio.timeout(60):
        message = await subscription.next()
        return None if message is None else read_message(message)


async def play(scripts: Scripts, rows: list[tuple[bytes, str | None, bytes]]) -> list[str]:
    log = log_of(scripts, Keys(scripts.transport.settings.namespace), uuid.uuid4().hex)
    async with listening(scripts.transport, log.keys.channel) as signals:
        assert await heard(signals) is None
        for row_id, topic, data in rows:
            await log.append([(row_id, data)], topic=topic)
        reported = [await heard(signals) for _ in rows]
    assert reported == await log.read_all()
    assert [(row.id, row.topic, row.data) for row in reported if row] == rows
    return ["a space" if b" " in row[0] else "no space" for row in rows]


@pytest.mark.fuzz
def test_a_signal_carries_the_row_as_the_log_has_it(settings: Settings) -> None:
    explore(settings, ROWS, play, wanted={"a space", "no space"})


@given(st.binary(max_size=60) | st.from_regex(rb"\A\d+-\d+ \d{1,2} \d{1,2} .{0,20}\Z"))
def test_no_message_can_be_misread(message: bytes) -> None:
    row = read_message(message)
    assert row is None or row.n >= 0


async def test_listeners_share_a_connection_and_a_channel(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)

    async def listeners() -> int:
        return (await subscribers(scripts.transport, log.keys.channel))[0]

    async with AsyncExitStack() as stack:
        ears = [
            await stack.enter_async_context(listening(scripts.transport, log.keys.channel))
            for _ in range(5)
        ]
        assert [await heard(one) for one in ears] == [None] * 5
        assert (await listeners(), scripts.transport.subscriber.connections) == (1, 1)
        await log.append([(b"a", b"")])
        assert [row.id for one in ears if (row := await heard(one))] == [b"a"] * 5

    async def left() -> bool:
        return await listeners() == 0

    await eventually(left, "the channel is left with the last listener")


async def test_a_new_connection_and_an_overflow_are_told(scripts: Scripts, keys: Keys) -> None:
    log = log_of(scripts, keys)
    async with listening(scripts.transport, log.keys.channel) as signals:
        assert await heard(signals) is None
        await ask_each(scripts.transport, "CLIENT", "KILL", "TYPE", "pubsub")
        assert await heard(signals) is None
        await log.append([(str(number).encode(), b"") for number in range(1500)])
        await log.append([(b"last", b"")])
        reported: list[Row | None] = []
        while not (reported and reported[-1] and reported[-1].id == b"last"):
            reported.append(await heard(signals))
        assert None in reported
        assert len(reported) < 1500
        numbers = [row.n for row in reported[reported.index(None) + 1 :] if row]
        assert numbers == list(range(numbers[0], 1502))


async def test_4_processes_hear_what_one_says(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [
        {**shared, "does": "follow", "writer": f"ready-{place}", "topic": "t"} for place in range(4)
    ]
    running = await begin_processes("use_primitives", arguments)
    log = log_of(scripts, keys)

    async def all_listen() -> bool:
        return await subscribers(scripts.transport, log.keys.channel) == [4]

    await eventually(all_listen, "4 processes listen", timeout_s=60)
    ids = [f"row-{number}" for number in range(200)]
    for row_id in [*ids, "last"]:
        await log.append([(row_id.encode(), b"")], topic="t")
    assert await running == [ids] * 4
