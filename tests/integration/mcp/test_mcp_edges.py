"""MCP with answers of proxies, changes that are gone, and damaged rows."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventMessage
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import ErrorData, JSONRPCNotification, JSONRPCResponse

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError
from redis_state.integrations.mcp import (
    RedisEventStore,
    RedisSubscriptionBus,
    RedisTasks,
    SteadyTransport,
    TaskFollower,
    mcp_handlers,
)
from redis_state.integrations.mcp.events import SCOPE, new_scope
from redis_state.serialization.codec import DecodeError
from redis_state.testing import eventually
from tests.support.mcp.tools import TOOLS
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import pool
from tests.support.servers.faults import Proxy

pytestmark = pytest.mark.worker

ANSWER = JSONRPCResponse(jsonrpc="2.0", id="1", result={})
LISTS: list[ServerEvent] = [ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()]


async def test_an_answer_of_a_proxy_is_that_of_no_server() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/lost":
            raise httpx2.ReadError("gone")
        return httpx2.Response(int(request.url.path[1:]), text="of the proxy")

    transport = SteadyTransport(httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as http:
        for path in ("lost", "502", "503", "504"):
            found = await http.get(f"http://x/{path}")
            assert (found.status_code, found.json()["error"]["code"]) == (503, -32000)
        for status in (200, 404, 500):
            assert (await http.get(f"http://x/{status}")).text == "of the proxy"


async def test_a_bus_that_missed_changes_tells_of_all_lists(
    store: RedisStateStore, settings: Settings
) -> None:
    heard: list[Any] = []

    def hear(event: Any) -> None:
        heard.append(event)
        raise RuntimeError("a listener's own")

    async with Proxy(settings.url.get_secret_value()) as proxy:
        behind = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with (
            RedisStateStore(behind) as cut_off,
            RedisSubscriptionBus(cut_off) as bus,
            RedisSubscriptionBus(store) as sender,
        ):
            end = bus.subscribe(hear)
            for event in (*LISTS, ResourceUpdated("a \u00e9")):
                await sender.publish(event)
            await eventually(lambda: len(heard) == 4, "all kinds are heard")
            assert heard == [*LISTS, ResourceUpdated("a \u00e9")]
            heard.clear()
            proxy.refuse()
            assert proxy.cut()
            for _ in range(12):
                await asyncio.gather(
                    *(sender.publish(ResourceUpdated(f"{each}")) for each in range(100))
                )
            proxy.refuse(refusing=False)
            await eventually(lambda: heard[:3] == LISTS, "the lists may have changed")
            await eventually(lambda: len(heard) >= 1000, "what is kept is heard")
            end()
            end()
            count = len(heard)
            await sender.publish(ToolsListChanged())
            await bus.publish(ToolsListChanged())
            assert len(heard) == count


async def test_a_bus_without_the_key_of_a_change_tells_of_all_lists(
    store: RedisStateStore,
) -> None:
    heard: list[Any] = []
    async with (
        opened(store.settings, KEYS[0]) as old,
        opened(store.settings, KEYS[1], KEYS[0]) as new,
        RedisSubscriptionBus(old) as bus,
        RedisSubscriptionBus(new) as sender,
    ):
        bus.subscribe(heard.append)
        await sender.publish(ResourceUpdated("a"))
        await eventually(lambda: heard == LISTS, "the lists may have changed")


async def test_a_bus_that_was_closed_takes_no_listeners(store: RedisStateStore) -> None:
    heard: list[Any] = []
    bus = RedisSubscriptionBus(store)
    async with bus:
        bus.subscribe(heard.append)
    with pytest.raises(ConfigError, match="closed"):
        bus.subscribe(heard.append)
    assert bus._following is None
    async with bus:
        bus.subscribe(heard.append)()
        await bus.publish(ToolsListChanged())
        await eventually(lambda: len(heard) == 1, "the listener of before hears it again")


async def test_a_damaged_message_is_no_gap_to_step_over(store: RedisStateStore) -> None:
    async with RedisEventStore(store) as events:
        mine = events.session("s")
        first = await mine.store_event("1", None)
        await events.log(first.partition(".")[0])._log.add((b"damaged", b"[1]"))
        with pytest.raises(DecodeError):
            await mine.replay_events_after(first, _nothing)
        await events.begin()
        await events.aclose()
        await events.aclose()


async def test_what_a_session_asks_of_the_store_is_about_that_session(
    store: RedisStateStore,
) -> None:
    heard: list[Any] = []

    async def take(event: EventMessage) -> None:
        heard.append(event.message)

    said = JSONRPCNotification(jsonrpc="2.0", method="notifications/x")
    async with RedisEventStore(store) as events:
        token = SCOPE.set(new_scope("ann"))
        try:
            first = await events.store_event("1", None)
            await events.store_event("1", said)
            await events.store_event("2", said)
            await events.store_event("1", ANSWER)
            assert await events.replay_events_after(first, take) is None
            SCOPE.set(new_scope("ann"))
            assert await events.replay_events_after(first, take) is None
        finally:
            SCOPE.reset(token)
    assert heard == [said, ANSWER]


async def test_a_connection_that_resumed_gets_what_cannot_be_kept(settings: Settings) -> None:
    heard: list[Any] = []

    async def take(event: EventMessage) -> None:
        heard.append((event.event_id, event.message))

    said, large = (
        JSONRPCNotification(jsonrpc="2.0", method="notifications/x", params={"text": "x" * size})
        for size in (1, 5000)
    )
    small = settings.model_copy(update={"max_payload_bytes": 2000})
    async with RedisStateStore(small) as store, RedisEventStore(store) as events:
        token = SCOPE.set(new_scope("ann"))
        try:
            first = await events.store_event("1", None)
            kept = await events.store_event("1", said)
            resumed = asyncio.create_task(events.replay_events_after(first, take))
            await eventually(lambda: heard, "what was missed is sent")
            assert await events.store_event("2", large) == ""
            assert await events.store_event("1", large) == ""
            await eventually(lambda: len(heard) > 1, "what is not kept is sent")
            await events.store_event("1", ANSWER)
            assert await resumed is None
        finally:
            SCOPE.reset(token)
    assert [message for _, message in heard] == [said, large, ANSWER]
    assert heard[0][0] == kept
    assert heard[1][0] is None


async def test_a_call_fails_with_what_its_client_or_an_operator_did(
    store: RedisStateStore,
) -> None:
    async def refuse(context: Any, params: Any) -> ErrorData:
        del context, params
        return ErrorData(code=-1, message="the user is not there")

    async with pool(store, mcp_handlers(*TOOLS)) as tasks:
        server = MCPServer("x", extensions=[RedisTasks(tasks, TOOLS)], log_level="CRITICAL")
        follower = TaskFollower()
        async with Client(server, extensions=[follower], elicitation_callback=refuse) as client:
            with pytest.raises(MCPError, match="the user is not there"):
                await client.call_tool("ask_twice", {})
            calling = asyncio.create_task(client.call_tool("approve", {}))
            pause = (await eventually(tasks.pauses, "an operator is asked"))[0]
            await tasks.cancel(pause.session_id, pause.task_id)
            with pytest.raises(MCPError, match="was cancelled"):
                await calling


async def _nothing(event: Any) -> None:
    pytest.fail(f"sent {event.event_id}")
