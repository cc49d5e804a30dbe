"""Events of `delayed` are in PostgreSQL within the stated delay, by a clock that the test moves on.

How busy the machine is decides nothing: the clock stands still until the mover waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.stores.durable_events import store as event_store
from redis_state.testing import eventually
from redis_state.testing.clock import ClockSettings
from tests.integration.durable_events.test_faults import durable, event
from tests.support.samples import admin
from tests.support.servers.postgres import OwnPostgres
from tests.support.timing import LONG_S

DELAY_S, STEPS = 12.0, 16
_DAY_MS = 86_400_000


class Clock:
    """Stands for `asyncio` in what moves events: its sleeps end when the test moves the clock on.

    ``saved`` is what it waits for before it sleeps.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.saved = Saved()
        self._sleep: tuple[float, asyncio.Future[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        """Wait until the clock has moved on by so much."""
        ends = asyncio.get_running_loop().create_future()
        self._sleep = self.now_s + delay_s, ends
        await ends

    def is_awaited(self) -> bool:
        """Return whether the mover has done all that it does at this time."""
        return self._sleep is not None or (self.saved.waiting and not self.saved.is_set())

    async def move(self, store: RedisStateStore, by_s: float) -> None:
        """Move on, also the clock of the server, and wait until the mover has done its part."""
        self.now_s += by_s
        shift = store.base.keys.test_clock()
        await admin(store, "SET", shift, round(self.now_s * 1000), "PX", _DAY_MS)
        if self._sleep is not None and self._sleep[0] <= self.now_s:
            self._sleep[1].set_result(None)
            self._sleep = None
        await eventually(self.is_awaited, "the mover waits")


class Saved(asyncio.Event):
    """What says that there is something to be moved. It knows whether that is awaited."""

    waiting = False

    async def wait(self) -> Literal[True]:
        """Wait for it."""
        self.waiting = True
        try:
            return await super().wait()
        finally:
            self.waiting = False


async def test_events_are_in_postgresql_within_the_delay(
    own_url: str, postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ClockSettings(
        url=SecretStr(own_url),
        namespace=f"test-clock-{secrets.token_hex(8)}",
        durable_events=SecretStr(postgres.url),
        durable_events_mode="delayed",
        durable_events_delay=timedelta(seconds=DELAY_S),
    )
    clock = Clock()
    monkeypatch.setattr(event_store, "asyncio", clock)
    monkeypatch.setattr(event_store, "_Parts", partial(event_store._Parts, saved=clock.saved))
    # What a process has not saved itself is no help.
    monkeypatch.setattr(event_store, "_IDLE_S", LONG_S)
    saved_s: dict[str, float] = {}
    moved_s: dict[str, float] = {}
    async with RedisStateStore(settings) as store:
        await durable(store).prepare()
        with psycopg.connect(postgres.url, autocommit=True) as beside:
            for step in range(4 * STEPS):
                # One more of a busy trace, and the only one of another.
                for n, trace in ((step, "busy"), (1_000 + step, f"t{step}")):
                    if step < 3 * STEPS:
                        await store.save_event(event(n, trace))
                        saved_s[f"n{n}"] = clock.now_s
                await clock.move(store, DELAY_S / STEPS)
                rows = beside.execute(
                    "SELECT node_name FROM redis_state_events.events WHERE namespace = %s",
                    [settings.namespace],
                )
                for (name,) in rows.fetchall():
                    moved_s.setdefault(name, clock.now_s)
    took_s = {name: moved_s.get(name, LONG_S) - at for name, at in saved_s.items()}
    # Some are not due when they are looked for first. The rest of the delay is for the rounds.
    assert DELAY_S / 4 < max(took_s.values()) <= DELAY_S * 3 / 8
