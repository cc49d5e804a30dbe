"""Worker processes are killed around every script of a talk: nothing is lost or comes twice."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.worker import TaskClient, TextReader
from tests.processes.workers.killed.message_worker import WORDS
from tests.support.processes import children
from tests.support.processes.pools import SESSION, client_of, updates_of
from tests.support.processes.worker_processes import worker_process
from tests.support.sizes import sizes

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

RELAYS = 4
SENDERS = 40
TALKERS = 4
BUYERS = 3
SPEAKERS = 3


class Crew:
    """Worker processes, each of which dies at a call of its own, until enough have."""

    def __init__(self, settings: Settings, deaths: int) -> None:
        self._settings = settings
        self._left = deaths
        self._random = random.Random(20)
        self.killed = 0

    async def keep_one(self, name: str) -> None:
        """Keep one place of the crew filled."""
        for life in range(10_000):
            dies_at = self._random.randint(1, 25) if self._left > 0 else 0
            self._left -= 1
            options: dict[str, Any] = {
                "program": "message_worker",
                "dies_at": dies_at,
                "dies_after": self._random.random() < 0.5,
            }
            async with worker_process(self._settings, f"{name}-{life}", **options) as process:
                await self._end(process)

    async def _end(self, process: children.Process) -> None:
        status = await process.wait()
        assert status == -signal.SIGKILL, f"a worker ended with {status}"
        self.killed += 1


@asynccontextmanager
async def crew(settings: Settings, deaths: int) -> AsyncGenerator[Crew, None]:
    made = Crew(settings, deaths)
    places = [asyncio.create_task(made.keep_one(name)) for name in ("one", "two")]
    try:
        yield made
    finally:
        for place in places:
            if place.done():
                place.result()
            place.cancel()
        await asyncio.gather(*places, return_exceptions=True)


async def send(client: TaskClient, sender: int, relays: list[str], each: int) -> None:
    for number in range(each):
        for task_id in relays:
            for _ in range(2):
                await client.signal(
                    SESSION,
                    task_id,
                    "item",
                    [sender, number],
                    idempotency_key=f"{sender}-{number}",
                )
        await asyncio.sleep(0)


async def ask(client: TaskClient, task_id: str, caller: int, each: int) -> list[list[int]]:
    found: list[list[int]] = []
    for number in range(each):
        key = f"{caller}-{number}"
        replies = [
            await client.request(
                SESSION, task_id, "add", caller + 1, idempotency_key=key, timeout_s=100
            )
            for _ in range(2)
        ]
        assert replies[0] == replies[1]
        found.append(replies[0])
    return found


@pytest.mark.parametrize("deaths", sizes(12, 60))
async def test_a_crew_that_dies_all_the_time_delivers_each_message_once_and_in_order(
    store: RedisStateStore, settings: Settings, deaths: int
) -> None:
    each = 2
    total = SENDERS * each
    async with client_of(store) as client, crew(settings, deaths) as working:
        await client.submit("collect", RELAYS * total, session_id="other", task_id="collector")
        relays = [
            await client.submit("relay", ["other", "collector", total], session_id=SESSION)
            for _ in range(RELAYS)
        ]
        asked = (TALKERS + BUYERS) * 3
        counting = await client.submit("count_up", asked, session_id=SESSION)
        # Each in a session of its own: its request crosses to that of the task that answers.
        buying = [
            await client.submit("buy", [SESSION, counting, 10, 3], session_id=f"buyer {number}")
            for number in range(BUYERS)
        ]
        speaking = [await client.submit("speak", session_id=SESSION) for _ in range(SPEAKERS)]
        talks = [asyncio.create_task(ask(client, counting, caller, 3)) for caller in range(TALKERS)]
        await asyncio.gather(*(send(client, sender, relays, each) for sender in range(SENDERS)))
        relayed = [await client.result(SESSION, one, timeout_s=110) for one in relays]
        collected = await client.result("other", "collector", timeout_s=110)
        replies = await asyncio.gather(*talks)
        bought = [
            await client.result(f"buyer {number}", one, timeout_s=110)
            for number, one in enumerate(buying)
        ]
        summed = await client.result(SESSION, counting, timeout_s=110)
        spoken = [await client.result(SESSION, one, timeout_s=110) for one in speaking]

    assert working.killed >= 5
    for found in relayed:
        _check_items(found, each)
    # What each relay sent on came once, and in the order in which it got it.
    for task_id, found in zip(relays, relayed, strict=True):
        assert [item for sender, item in collected if sender == task_id] == found
    assert len(collected) == RELAYS * total
    for found in bought:
        # Each reply is that to its own request, in order.
        assert [amount for amount, _ in found] == [10] * 3
        assert found == sorted(found)
    given = sorted(total for talk in (*replies, *bought) for _, total in talk)
    assert len(set(given)) == asked
    assert summed == max(given) == 3 * (sum(range(1, TALKERS + 1)) + 10 * BUYERS)
    for task_id, text in zip(speaking, spoken, strict=True):
        await _check_text(store, task_id, text)
    async with client_of(store) as client:
        for task_id in relays:
            assert await client.value(SESSION, task_id, "at") == total


def _check_items(found: list[Any], each: int) -> None:
    assert len(found) == SENDERS * each
    for sender in range(SENDERS):
        assert [number for one, number in found if one == sender] == list(range(each))


async def _check_text(store: RedisStateStore, task_id: str, text: str) -> None:
    """Check that a watcher has the recorded text, of one run, whatever it was shown before."""
    assert text.count("word") == WORDS
    assert len({words.split(" word")[0] for words in text.split(". ") if words}) == 1
    reader = TextReader()
    rows = await updates_of(store, task_id)
    for row in rows:
        reader.feed(row)
    (shown,) = reader.texts.values()
    assert (shown.text, shown.ended, shown.complete) == (text, True, True)
    ids = [row.update_id for row in rows]
    assert len(set(ids)) == len(ids)
