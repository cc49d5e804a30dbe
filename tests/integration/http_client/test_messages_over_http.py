"""Signals and values over HTTP: as by the direct client, and what each caller may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from pydantic import BaseModel

from redis_state import RedisStateStore, errors
from redis_state.gateway.auth.principal import Principal
from redis_state.http_client.requests import streams
from redis_state.http_client.requests.server_events import EventReader
from redis_state.models import StateUpdate, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.http import gateway
from tests.support.http.http_gateway import OverHttp, over_http


class Plan(BaseModel):
    """What a task publishes."""

    steps: int


async def talks(ctx: TaskContext) -> Any:
    """Publish what signals say, until one says that it was the last."""
    seen: list[Any] = []
    await ctx.publish_value("ready", None)
    while (found := await ctx.receive("say", hold_s=60)) != "last":
        seen.append(found)
        await ctx.publish_value("plan", {"steps": len(seen)})
    return seen


@pytest.fixture(autouse=True)
def _handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gateway.HANDLERS, "talks", talks)


async def test_a_signal_is_sent_once_for_each_key_of_a_caller(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["talks"]) as over:
        await over.http.submit("talks", session_id="s", task_id="t")
        sent = [
            await over.http.signal("s", "t", "say", Plan(steps=3), idempotency_key="k")
            for _ in range(2)
        ]
        async with over.caller("ann", "steer:session:s") as ann:
            sent.append(await ann.signal("s", "t", "say", 5, type=int, idempotency_key="k"))
            with pytest.raises(errors.InvalidField, match="payload"):
                await ann.signal("s", "t", "say", "x", type=int)
            with pytest.raises(errors.CommandRefused):
                await ann.signal("other", "t", "say")
        assert len(set(sent)) == 2
        await over.http.signal("s", "t", "say", "last")
        assert await over.http.result("s", "t") == [{"steps": 3}, 5]
        for client in (over.direct, over.http):
            with pytest.raises(errors.InvalidTransition) as ended:
                await client.signal("s", "t", "say")
            assert (ended.value.task_id, ended.value.current) == ("t", "COMPLETE")
            with pytest.raises(errors.TaskUnknown):
                await client.signal("s", "none", "say")
            for name, payload in (("", 1), ("x" * 300, 1), ("say", "x" * 70_000)):
                with pytest.raises(errors.InvalidField):
                    await client.signal("s", "t", name, payload)


async def test_a_value_is_read_and_waited_for(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str | None] = []

    class Noting(EventReader):
        def __init__(self, cursor: str | None = None) -> None:
            opened.append(cursor)
            super().__init__(cursor)

    monkeypatch.setattr(streams, "EventReader", Noting)
    async with over_http(store, handlers=["talks"]) as over:
        await over.http.submit("talks", session_id="s", task_id="t")
        assert await over.http.value("s", "t", "ready", wait=60, default="none") is None
        opened[:] = [None]
        assert await over.http.value("s", "t", "plan", default="none") == "none"
        waiting = asyncio.create_task(over.http.value("s", "t", "plan", wait=60, type=Plan))
        await eventually(lambda: len(opened) > 1, "it waits")
        await over.direct.signal("s", "t", "say", 1)
        assert await waiting == Plan(steps=1)
        with pytest.raises(errors.InvalidMessage):
            await over.http.value("s", "t", "plan", type=int)
        listed = await over.http.values("s", "t")
        assert listed == await over.direct.values("s", "t")
        assert [each.key for each in listed] == ["plan", "ready"]
        missing = asyncio.create_task(over.http.value("s", "t", "never", wait=60, default=0))
        await over.http.signal("s", "t", "say", "last")
        # The end of the task ends the wait.
        assert await missing == 0
        assert (await over.http.wait("s", "t")).status is TaskStatus.COMPLETE
        for client in (over.direct, over.http):
            assert await client.values("s", "none") == []
            assert await client.value("s", "none", "a/b") is None
            with pytest.raises(errors.TaskUnknown):
                await client.value("s", "none", "k", wait=60)
            with pytest.raises(errors.InvalidField):
                await client.value("s", "t", "")


async def test_a_value_is_shown_as_its_update_is(store: RedisStateStore) -> None:
    def visible(principal: Principal, update: StateUpdate) -> StateUpdate | None:
        content = update.content
        if principal.subject == "root" or not isinstance(content, dict) or "key" not in content:
            return update
        if content["key"] == "ready":
            return None
        return update.model_copy(update={"content": {**content, "value": "cut"}})

    async with over_http(store, handlers=["talks"], visible=visible) as over:
        await over.http.submit("talks", session_id="s", task_id="t")
        await over.http.signal("s", "t", "say", 1)
        assert await over.http.value("s", "t", "plan", wait=60) == {"steps": 1}
        async with over.caller("ann", "read:session:s") as ann:
            assert [(each.key, each.value) for each in await ann.values("s", "t")] == [
                ("plan", "cut")
            ]
            assert await ann.value("s", "t", "plan") == "cut"
            assert await ann.value("s", "t", "ready", default="hidden") == "hidden"
        async with over.caller("bob", "read:session:other") as bob:
            assert await bob.values("s", "t") == []


async def test_nothing_is_waited_for_beyond_the_time(over: OverHttp) -> None:
    await over.http.submit("ask", session_id="s", task_id="t")
    assert await over.http.value("s", "t", "never", wait=0.05, default="none") == "none"
