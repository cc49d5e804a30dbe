"""What is stored, and the password, are in no log line, no repr and no error's text."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable
from typing import Any

import pytest

from redis_state import RedisStateError, RedisStateStore, Settings
from redis_state.models import StateUpdate, SteeringEvent, Trajectory
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from tests.support.samples import (
    admin,
    binding,
    event,
    own_server,
    planner_event,
    steering,
    strange,
    task,
    update,
)
from tests.support.servers.faults import Proxy

SECRET = "s3cr3t"
HIDDEN: dict[str, Any] = {SECRET: [SECRET, {"deep": SECRET, **strange()}]}


class Shown:
    """Everything that the library said."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors = 0

    def add(self, *things: object) -> None:
        self.texts += [f"{thing!r} {thing!s}" for thing in things]

    async def fails(self, call: Awaitable[Any]) -> None:
        with pytest.raises(RedisStateError) as caught:
            await call
        self.errors += 1
        self.add(caught.value)
        self.texts += traceback.format_exception_only(caught.value)
        cause = caught.value.__cause__
        if cause is not None:
            self.add(cause)


async def _use(store: RedisStateStore, shown: Shown) -> None:
    await store.save_events([event(payload=HIDDEN), event(trace_id=None, payload=HIDDEN)])
    await store.save_remote_binding(binding(metadata=HIDDEN))
    await store.save_planner_state(f"token-{SECRET}", HIDDEN)
    await store.save_memory_state("key", HIDDEN)
    await store.save_task(task(result=HIDDEN, progress=HIDDEN, error=SECRET))
    await store.save_update(update("u", HIDDEN))
    payload = {"text": SECRET}
    await store.save_steering(steering("e", payload))
    await store.save_trajectory("trace", "session", Trajectory(SECRET, metadata=HIDDEN))
    await store.save_planner_event("trace", planner_event(extra=HIDDEN))
    assert await store.load_planner_state(f"token-{SECRET}")
    assert await store.load_planner_state(f"token-{SECRET}") is None
    shown.add(store.changes_of(HIDDEN["s3cr3t"]))
    await shown.fails(store.save_planner_state(f"token-{SECRET}", {"other": SECRET}))


async def _refuse(store: RedisStateStore, shown: Shown) -> None:
    no_text: Any = [SECRET]
    await shown.fails(store.save_event(event(SECRET)))
    await shown.fails(store.save_event(event(payload=SECRET)))
    await shown.fails(store.save_event(event(trace_id=no_text)))
    await shown.fails(store.save_memory_state("key", no_text))
    await shown.fails(store.save_memory_state(no_text, {}))
    await shown.fails(store.save_planner_state("t", no_text))
    await shown.fails(store.save_planner_state(no_text, {}))
    await shown.fails(store.list_tasks(no_text))
    bad_task = task()
    bad_task.status = SECRET  # type: ignore[assignment]
    await shown.fails(store.save_task(bad_task))
    bad_update: dict[str, Any] = {**dict(update("u")), "update_type": SECRET}
    await shown.fails(store.save_update(StateUpdate.model_construct(None, **bad_update)))
    bad_event: dict[str, Any] = {**dict(steering("e")), "created_at": SECRET}
    await shown.fails(store.save_steering(SteeringEvent.model_construct(None, **bad_event)))
    await shown.fails(store.memory.save("key", HIDDEN, expected_version=99))
    await shown.fails(store.read_updates("session", after="9-9"))


async def _damage(store: RedisStateStore, shown: Shown) -> None:
    garbage = f'{{"{SECRET}": "{SECRET}'.encode()
    rows = [garbage, f'["{SECRET}"]'.encode(), f'[1,"{SECRET}","{SECRET}",1,1,1,1,1]'.encode()]
    bounds = Bounds(1000, 60_000)
    keys = store.base.keys
    for log in (keys.events("trace"), keys.updates("session"), keys.steering("session")):
        numbered = [(str(n).encode(), row) for n, row in enumerate(rows)]
        await Log(store.base.scripts, log, bounds).append(numbered)
    for key in (keys.memory("key"), store.tasks.keys("session", "task").task):
        await admin(store, "HSET", key, "document", garbage)
    await store.load_history("trace")
    await store.list_updates("session")
    await store.list_steering("session")
    await store.list_tasks("session")
    assert await store.load_memory_state("key") is None
    shown.add(*await store.unreadable(session_id="session"))
    shown.add(*await store.unreadable(trace_id="trace"))


async def test_no_payload_and_no_password_is_ever_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = Shown()
    with own_server() as server:
        async with RedisStateStore.from_url(server.url) as open_store:
            await admin(open_store, "CONFIG", "SET", "requirepass", SECRET)
        async with Proxy(server.url) as proxy:
            port = proxy.url.rpartition(":")[2]
            url = f"redis://:{SECRET}@127.0.0.1:{port}"
            options = {"call_timeout_s": 0.5, "connect_timeout_s": 0.5}
            async with RedisStateStore.from_url(url, **options) as store:
                await _use(store, shown)
                await _refuse(store, shown)
                await _damage(store, shown)
                shown.add(store, store.settings, store.transport.address, await store.health())
                shown.add(store.base.settings, vars(store)["transport"].address)
                proxy.silence()
                lost = asyncio.ensure_future(store.save_update(update("lost", HIDDEN)))
                await shown.fails(lost)
                proxy.refuse()
                proxy.cut()
                await shown.fails(store.save_update(update("away", HIDDEN)))
                shown.add(await store.health())
            proxy.refuse(refusing=False)
            proxy.silence(silent=False)
            wrong = url.replace(SECRET, f"{SECRET}-wrong")
            async with RedisStateStore.from_url(wrong, **options) as store:
                await shown.fails(store.list_tasks("session"))
                shown.add(store, await store.health())
    stated = "\n".join([*shown.texts, caplog.text, *capfd.readouterr()])
    assert shown.errors == 17
    assert "cannot be read" in caplog.text
    assert SECRET not in stated, [line for line in stated.splitlines() if SECRET in line]


def test_a_setting_that_cannot_be_used_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_URL", f"redis://:{SECRET}@[::1")
    bad: list[dict[str, Any]] = [{}, {"queue_url": [SECRET]}, {"call_timeout_s": SECRET}]
    for options in bad:
        with pytest.raises(RedisStateError) as caught:
            RedisStateStore.from_url(**options)
        assert SECRET not in "".join(traceback.format_exception(caught.value)[-1:])
        assert SECRET not in f"{caught.value!r}"
    assert SECRET not in repr(Settings())
