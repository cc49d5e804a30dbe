"""MCP over TLS, on links to Redis that die, with sessions that end, and when history goes back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel, Field, SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventMessage
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from redis_state import RedisStateStore, Settings
from redis_state.errors import AuthenticationFailed, BackendUnavailable, ConfigError
from redis_state.integrations.mcp import (
    RedisEventStore,
    RedisSubscriptionBus,
    RedisTasks,
    SteadyTransport,
    TaskFollower,
    durable_tool,
    mcp_handlers,
)
from redis_state.integrations.mcp.following import CreatedTask, GetTask, ReportedTask
from redis_state.integrations.mcp.tasks import TaskParams
from redis_state.models import TaskStatus
from redis_state.serialization.codec import DecodeError
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.http.asgi_servers import PLAIN
from tests.support.mcp.servers import mcp_client, serving_app, serving_mcp
from tests.support.mcp.tools import TOOLS
from tests.support.payloads import KEYS
from tests.support.processes.pools import client_of, pool, queue_of
from tests.support.samples import changed
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

pytestmark = pytest.mark.worker

CALLERS = 40


class Badge(BaseModel):
    """A model whose JSON is not what it is read from."""

    name: str = Field(validation_alias="from")
    number: int = Field(exclude=True)


@durable_tool
async def enter(ctx: TaskContext, key: SecretStr, badge: Badge, many: list[int]) -> str:
    """Tell what was given."""
    del ctx
    return f"{key.get_secret_value()} {badge.name} {badge.number} {many}"


async def test_a_worker_gets_arguments_whose_json_says_less(store: RedisStateStore) -> None:
    async with pool(store, mcp_handlers(enter)) as tasks:
        server = MCPServer("x", extensions=[RedisTasks(tasks, [enter], poll_s=0.05)])
        async with Client(server, extensions=[TaskFollower()]) as client:
            given = {"key": "a secret", "badge": {"from": "ann", "number": 3}, "many": "[1, 2]"}
            result: Any = await client.call_tool("enter", given)
    assert result.structured_content == {"result": "a secret ann 3 [1, 2]"}


async def test_40_callers_over_tls_get_their_results_though_their_links_die(
    settings: Settings, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    heard: list[Any] = []
    async with Proxy(settings.url.get_secret_value(), tls=tls_server_context(cert, key)) as proxy:
        proxy.dribble(900)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        changed: dict[str, Any] = {"url": SecretStr(url), "payload_keys": SecretStr(KEYS[0])}
        # Dead links may come one after the other, each found by its own deadline.
        changed["call_timeout_s"] = 20.0
        async with (
            RedisStateStore(settings.model_copy(update=changed)) as store,
            RedisSubscriptionBus(store) as bus,
            RedisEventStore(store) as events,
            pool(store, mcp_handlers(*TOOLS)) as tasks,
        ):
            bus.subscribe(heard.append)
            server = MCPServer(
                "x", extensions=[RedisTasks(tasks, TOOLS, poll_s=0.05)], log_level="CRITICAL"
            )
            async with Client(server, extensions=[TaskFollower()]) as client:

                async def call(number: int) -> None:
                    value = f"{number} {'x' * 2000}"
                    mine = events.session(f"s {number}")
                    first = await mine.store_event("1", None)
                    await mine.store_event("1", _said(value))
                    await bus.publish(ResourceUpdated(f"u {number}"))
                    result: Any = await client.call_tool("echo", {"value": value})
                    assert result.structured_content == {"value": value}
                    assert await _replayed(mine, first) == [value]

                await client.list_tools()
                callers = [asyncio.create_task(call(each)) for each in range(CALLERS)]
                cut = 0
                while cut < 2 and not all(each.done() for each in callers):
                    await asyncio.wait(callers, timeout=0.1)
                    cut += bool(proxy.half_open())
                await asyncio.gather(*callers)
                assert cut
            await eventually(lambda: len(heard) >= CALLERS, "all changes are heard", timeout_s=60)
            assert sorted(each.uri for each in heard) == sorted(f"u {n}" for n in range(CALLERS))


def _said(value: Any) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/x", params={"n": value})


async def _replayed(events: Any, last: str) -> list[Any] | None:
    found: list[Any] = []

    async def take(event: EventMessage) -> None:
        message: Any = event.message
        found.append(message.params["n"])

    return None if await events.replay_events_after(last, take) is None else found


async def test_a_history_that_goes_back_loses_what_was_told_since_and_nothing_else() -> None:
    heard: list[Any] = []
    async with (
        rolling_back() as redis,
        RedisStateStore.from_url(redis.url) as store,
        TaskClient(store) as tasks,
        RedisSubscriptionBus(store) as bus,
    ):
        server = MCPServer("x", extensions=[RedisTasks(tasks, TOOLS)], log_level="CRITICAL")
        async with Client(server, extensions=[TaskFollower()]) as caller:
            client = caller.session

            async def begin() -> str:
                created: Any = await client.call_tool("echo", {"value": 1}, allow_claimed=True)
                assert isinstance(created, CreatedTask)
                return created.task_id

            async def get(task_id: str) -> ReportedTask:
                asking = GetTask(params=TaskParams(task_id=task_id))
                return await client.send_request(asking, ReportedTask)

            bus.subscribe(heard.append)
            kept = await begin()
            await bus.publish(ResourceUpdated("kept"))
            await eventually(lambda: len(heard) == 1, "the first change is heard")
            await redis.mark()
            async with RedisEventStore(store, lease_s=0.5) as events:
                lost = await begin()
                mine = events.session("s")
                first = await mine.store_event("1", None)
                last = await mine.store_event("1", _said(1))
                await bus.publish(ResourceUpdated("lost"))
                await eventually(lambda: len(heard) == 2, "the second change is heard")
                await redis.go_back()
                assert (await get(kept)).status == "working"
                with pytest.raises(MCPError, match="Unknown task") as refused:
                    await get(lost)
                assert lost not in str(refused.value)
                assert await _replayed(mine, first) is None
                # It was forgotten that this process lives: it says so without an event.
                key = events._base.keys.mcp_server(events._server)
                await eventually(lambda: events._leases.is_held(key), "the lease is held again")
                again = await mine.store_event("1", None)
                await mine.store_event("1", _said(2))
                assert await _replayed(mine, last) is None
                assert await _replayed(mine, again) == [2]
                await bus.publish(ResourceUpdated("new"))
                await eventually(
                    lambda: ResourceUpdated("new") in heard, "a change is heard", timeout_s=30
                )
                assert heard.count(ResourceUpdated("new")) == 1
                assert heard.count(ResourceUpdated("kept")) == 1


async def test_a_session_outlives_a_redis_that_is_away(settings: Settings) -> None:
    heard: list[float] = []
    begun = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        heard.append(progress)
        begun.set()

    async with Proxy(settings.url.get_secret_value()) as proxy:
        away = {"url": SecretStr(proxy.url), "call_timeout_s": 0.5}
        async with (
            RedisStateStore(settings.model_copy(update=away)) as store,
            serving_mcp(store) as port,
            mcp_client(port, mode="legacy") as client,
        ):
            await client.list_tools()
            calling = asyncio.create_task(
                client.call_tool("count", {"upto": 90, "pause_s": 0.01}, progress_callback=hear)
            )
            await begun.wait()
            proxy.refuse()
            assert proxy.cut()
            refused = proxy.refused
            # Longer than a call to Redis may take.
            await asyncio.wait({calling}, timeout=1.5)
            assert not calling.done()
            assert proxy.refused > refused
            proxy.refuse(refusing=False)
            async with asyncio.timeout(30):
                result: Any = await calling
            assert result.content[0].text == "counted"
            assert heard == list(range(90))


async def test_a_message_that_is_too_large_does_not_end_its_session(settings: Settings) -> None:
    small = settings.model_copy(update={"max_payload_bytes": 3000})
    async with RedisStateStore(small) as store:
        async with RedisEventStore(store) as events:
            mine = events.session("s")
            first = await mine.store_event("1", None)
            assert await mine.store_event("1", _said("x" * 4000)) == ""
            answer = JSONRPCResponse(jsonrpc="2.0", id=7, result={"text": "x" * 4000})
            assert await mine.store_event("1", answer)
            found: list[Any] = []

            async def take(event: EventMessage) -> None:
                found.append(event.message)

            await mine.replay_events_after(first, take)
            assert [(type(each), each.id) for each in found] == [(JSONRPCError, 7)]
        async with serving_mcp(store) as port, mcp_client(port, mode="legacy") as client:
            async with asyncio.timeout(30):
                for _ in range(2):
                    # The list of tools is larger than that too.
                    assert (await client.list_tools()).tools
                    result: Any = await client.call_tool("count", {"upto": 2})
                    assert result.content[0].text == "counted"


@pytest.mark.parametrize("ends", [False, True])
async def test_an_answer_that_comes_while_its_client_resumes_reaches_it(
    settings: Settings,
    ends: bool,  # noqa: FBT001
) -> None:
    begun, released, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    server = MCPServer("tests", log_level="CRITICAL")

    @server.tool()
    async def wait() -> str:
        """Wait until the test releases it."""
        begun.set()
        await released.wait()
        left.set()
        return "released"

    async def release() -> None:
        if ends:
            (transport,) = server.session_manager._server_instances.values()
            await transport.terminate()
        else:
            released.set()
            await left.wait()

    async with CommandProxy(settings.url.get_secret_value()) as proxy:
        through = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with (
            RedisStateStore(through) as store,
            RedisEventStore(store) as events,
            httpx2.AsyncClient(verify=PLAIN, trust_env=False, timeout=20) as http,
        ):
            app = server.streamable_http_app(event_store=events)
            events.attach(server.session_manager)
            async with serving_app(app) as port:
                url = f"http://127.0.0.1:{port}/mcp"
                headers = {"Accept": "application/json, text/event-stream"}
                about = {"name": "t", "version": "1"}
                opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
                asked: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
                opened = await http.post(url, json=asked | {"params": opening}, headers=headers)
                headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
                headers["MCP-Protocol-Version"] = "2025-11-25"
                called = {"id": 7, "method": "tools/call", "params": {"name": "wait"}}
                async with http.stream(
                    "POST", url, json=asked | called, headers=headers
                ) as calling:
                    async for line in calling.aiter_lines():
                        if line.startswith("id: "):
                            headers["Last-Event-ID"] = line[4:]
                            break
                    await begun.wait()
                # The answer is stored behind what the replay reads.
                with proxy.meanwhile("XRANGE", release, at=2):
                    async with (
                        asyncio.timeout(20),
                        http.stream("GET", url, headers=headers) as following,
                    ):
                        async for line in following.aiter_lines():
                            if "released" in line:
                                return
        assert ends, "the stream ended without the answer"


async def test_a_session_that_was_ended_is_not_followed_elsewhere(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        RedisStateStore(settings) as other,
        serving_mcp(store, lease_s=0.3) as first,
        serving_mcp(other, lease_s=0.3) as second,
        httpx2.AsyncClient(verify=PLAIN, trust_env=False, timeout=20) as http,
    ):

        async def post(port: int, headers: Any, method: str, number: Any, **params: Any) -> Any:
            asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            request = http.build_request(
                "POST", f"http://127.0.0.1:{port}/mcp", json=asked, headers=headers
            )
            return await http.send(request, stream=True)

        headers = {"Accept": "application/json, text/event-stream"}
        about = {"name": "t", "version": "1"}
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
        opened = await post(first, headers, "initialize", 1, **opening)
        await opened.aread()
        headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        headers["MCP-Protocol-Version"] = "2025-11-25"
        arguments = {"upto": 99999, "pause_s": 0.05}
        calling = await post(first, headers, "tools/call", "007", name="count", arguments=arguments)
        primed = ""
        async for line in calling.aiter_lines():
            if line.startswith("id: "):
                primed = str(line[4:])
                break
        await calling.aclose()
        last = {"Last-Event-ID": primed}
        there = f"http://127.0.0.1:{second}/mcp"
        scope = primed.partition(".")[0]
        for forged in (f"{scope}.", f"{scope}.end", f"{scope}.x", "."):
            answer = await http.get(there, headers={**headers, "Last-Event-ID": forged})
            assert answer.status_code == 404, forged
        asking = http.build_request("GET", there, headers={**headers, **last})
        following = await http.send(asking, stream=True)
        assert following.status_code == 200
        ended = await http.delete(f"http://127.0.0.1:{first}/mcp", headers=headers)
        assert ended.status_code == 200
        async with asyncio.timeout(20):
            said = (await following.aread()).decode()
        data = [line for line in said.splitlines() if line.startswith("data: ")]
        assert '"id":"007"' in data[-1], data[-1]
        assert "session of this request has ended" in data[-1]
        for path in (there, f"http://127.0.0.1:{first}/mcp"):
            again = await http.get(path, headers={**headers, **last})
            assert again.status_code == 404


async def test_a_session_that_was_idle_for_too_long_ends_on_the_replicas_that_follow_it(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        RedisStateStore(settings) as other,
        serving_mcp(store, idle_s=1.0) as first,
        serving_mcp(other) as second,
        httpx2.AsyncClient(verify=PLAIN, trust_env=False, timeout=60) as http,
    ):
        about = {"name": "t", "version": "1"}
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
        headers = {"Accept": "application/json, text/event-stream"}
        here, there = (f"http://127.0.0.1:{port}/mcp" for port in (first, second))
        opened = await http.post(here, json=asked, headers=headers)
        headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        headers["MCP-Protocol-Version"] = "2025-11-25"
        ids = [line[4:] for line in opened.text.splitlines() if line.startswith("id: ")]
        # No request of the first replica is in flight; the second one follows what it sends.
        headers["Last-Event-ID"] = ids[-1]
        async with (
            asyncio.timeout(30),
            http.stream("GET", there, headers=headers) as following,
        ):
            assert following.status_code == 200
            said = (await following.aread()).decode()
        (data,) = [line for line in said.splitlines() if line.startswith("data: ")]
        assert "session of this request has ended" in data
        for path in (here, there):
            again = await http.get(path, headers=headers)
            assert again.status_code == 404


async def test_a_body_that_is_cut_off_is_that_of_no_server() -> None:
    class Cut(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncGenerator[bytes]:
            yield b'{"jsonrpc"'
            raise httpx2.ReadError("cut")

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/whole":
            return httpx2.Response(200, json={"a": "\u00e9"})
        return httpx2.Response(200, headers={"Content-Type": "application/json"}, stream=Cut())

    transport = SteadyTransport(httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as http:
        async with http.stream("POST", "http://x/cut") as cut:
            await cut.aread()
            assert (cut.status_code, cut.json()["error"]["code"]) == (503, -32000)
        async with http.stream("POST", "http://x/whole") as whole:
            await whole.aread()
            assert (whole.status_code, whole.json()) == (200, {"a": "\u00e9"})


async def test_a_damaged_message_is_not_quoted(store: RedisStateStore) -> None:
    async with RedisEventStore(store) as events:
        mine = events.session("s")
        first = await mine.store_event("1", None)
        log = events.log(first.partition(".")[0])
        data = store.base.payloads.write(["", "", "1", {"a": "a secret"}], field="message")
        await log._log.add((secrets.token_bytes(8).hex().encode(), data))
        with pytest.raises(DecodeError) as found:
            await _replayed(mine, first)
        assert "secret" not in str(found.value)
        server = MCPServer("x", log_level="CRITICAL")
        server.streamable_http_app(event_store=events)
        events.attach(server.session_manager)
        with pytest.raises(ConfigError, match="already"):
            events.attach(server.session_manager)


@pytest.mark.role("any", why="it logs in with a wrong password")
async def test_a_bus_that_cannot_begin_says_so_and_leaves_no_task(settings: Settings) -> None:
    def listening() -> int:
        return sum(each.get_name() == "redis_state mcp bus" for each in asyncio.all_tasks())

    async with Proxy(settings.url.get_secret_value()) as proxy:
        wrong = SecretStr(f"redis://nobody:wrong@127.0.0.1:{proxy.port}/0")
        async with RedisStateStore(settings.model_copy(update={"url": wrong})) as refused:
            with pytest.raises(AuthenticationFailed):
                async with asyncio.timeout(20):
                    await RedisSubscriptionBus(refused).__aenter__()
        proxy.refuse()
        away = SecretStr(proxy.url)
        async with RedisStateStore(settings.model_copy(update={"url": away})) as silent:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await RedisSubscriptionBus(silent).__aenter__()
    assert not listening()


async def test_a_task_whose_question_nobody_can_answer_ends(store: RedisStateStore) -> None:
    async def broken(context: Any, params: Any) -> Any:
        raise RuntimeError("the host's own")

    begun: list[str] = []
    async with pool(store, mcp_handlers(*TOOLS)) as tasks:
        server = MCPServer("x", extensions=[RedisTasks(tasks, TOOLS, poll_s=0.05)])
        follower = TaskFollower(on_task=begun.append)
        async with Client(server, extensions=[follower], elicitation_callback=broken) as client:
            with pytest.raises(RuntimeError, match="host's own"):
                await client.call_tool("ask_twice", {})
        assert len(begun) == 1
        assert not await tasks.unfinished()


async def test_a_call_that_is_given_up_leaves_no_task_to_a_worker(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as behind,
        TaskClient(behind, queue=queue_of(settings)) as client,
        client_of(store) as finder,
    ):
        tasks = RedisTasks(client, [enter])
        calling = asyncio.create_task(tasks._run(enter, {}))

        async def give_up() -> None:
            calling.cancel()

        with proxy.meanwhile("create_task", give_up):
            await asyncio.wait({calling})
        assert calling.cancelled()
        (found,) = (await finder.find()).tasks
        assert found.status is TaskStatus.CANCELLED


async def test_a_call_that_cannot_name_its_task_leaves_none_to_a_worker(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TaskClient(store, queue=queue_of(settings)) as client:
        tasks, get = RedisTasks(client, TOOLS), client.get

        async def away(*_: Any) -> Any:
            monkeypatch.setattr(client, "get", get)
            raise BackendUnavailable("a server", "away")

        server = MCPServer("x", extensions=[tasks], log_level="CRITICAL")
        async with Client(server, extensions=[TaskFollower()]) as caller:
            monkeypatch.setattr(client, "get", away)
            with pytest.raises(MCPError):
                await caller.call_tool("echo", {"value": 1})
        assert client.get == get
        (found,) = (await client.find()).tasks
        assert found.status is TaskStatus.CANCELLED


async def test_a_call_that_cannot_cancel_its_task_ends_as_it_was_ended(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as behind,
        TaskClient(behind, queue=queue_of(settings)) as client,
        client_of(store) as finder,
    ):
        tasks = RedisTasks(client, [enter])
        calling = asyncio.create_task(tasks._run(enter, {}))

        async def waits() -> bool:
            return bool((await finder.find()).tasks)

        await eventually(waits, "the call waits for its task")
        with proxy.answer("append_log", OOM):
            calling.cancel()
            await asyncio.wait({calling})
        assert calling.cancelled()
