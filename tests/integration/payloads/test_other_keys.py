"""A worker whose keys do not read what another process has sealed: it leaves it to others."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
    updates_of,
)
from tests.support.servers.proxies.command_proxy import CommandProxy

OLD, NEW = KEYS[0], KEYS[1]


async def _handed_back(store: RedisStateStore, task: str) -> bool:
    """Tell whether a run of a task has ended with the task PENDING."""
    found = [
        update.content["status"]
        for update in await updates_of(store, task)
        if update.update_type is UpdateType.STATUS_CHANGE
    ]
    return "PENDING" in found[1:]


async def test_a_steering_event_under_another_key_is_not_given_to_the_handler(
    settings: Settings,
) -> None:
    heard: list[Any] = []

    async def listen(ctx: TaskContext) -> Any:
        events = await ctx.inbox.wait()
        heard.append(events[0].payload)
        return events[0].payload["text"]

    async with opened(settings, OLD) as older, opened(settings, NEW) as newer:
        async with pool(newer, {"listen": listen}) as client:
            task = await client.submit("listen", "x", session_id=SESSION)
            await becomes(client, task, TaskStatus.RUNNING)
            event = SteeringEvent(
                session_id=SESSION,
                task_id=task,
                event_type=SteeringEventType.USER_MESSAGE,
                payload={"text": "of the old key"},
                source="host",
            )
            await older.save_steering(event)
            await eventually(lambda: _handed_back(newer, task), "it is handed back")
        assert heard == []
        async with (
            opened(settings, NEW, OLD) as both,
            pool(both, {"listen": listen}) as client,
        ):
            assert await client.result(SESSION, task, timeout_s=60) == "of the old key"


async def test_a_decision_under_another_key_is_not_given_to_the_handler(
    settings: Settings,
) -> None:
    decided: list[Any] = []

    async def ask(ctx: TaskContext) -> Any:
        decision = await ctx.pause("may I?", name="p")
        decided.append(decision.value)
        return decision.value

    async def decide() -> None:
        (pause,) = await operator.pauses()
        assert pause.pause_id is not None
        await operator.approve(pause.pause_id, "of the old key")

    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        opened(settings, OLD) as older,
        client_of(older) as operator,
        opened(settings, NEW, url=SecretStr(proxy.url)) as newer,
    ):
        # Decided between its opening and the run's end.
        with proxy.meanwhile("pause_task", decide):
            async with pool(newer, {"ask": ask}) as client:
                task = await client.submit("ask", "x", session_id=SESSION)
                await eventually(lambda: _handed_back(newer, task), "it is handed back")
        assert decided == []
        async with opened(settings, NEW, OLD) as both, pool(both, {"ask": ask}) as client:
            assert await client.result(SESSION, task, timeout_s=60) == "of the old key"
