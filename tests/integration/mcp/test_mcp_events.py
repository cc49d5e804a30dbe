"""The event store of MCP servers: its contract, and clients that resume on another replica."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

import httpx2
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError, InvalidField
from redis_state.integrations.mcp import RedisEventStore, SessionEventStore
from tests.support.http.asgi_servers import PLAIN
from tests.support.mcp.servers import mcp_client, serving_mcp
from tests.support.pages import block_of, run_block
from tests.support.payloads import KEYS
from tests.support.processes import children
from tests.support.servers.faults import Proxy, start_process

pytestmark = pytest.mark.worker


def said(number: Any) -> JSONRPCMessage:
    """Make a message."""
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/x", params={"n": number})


async def replayed(events: SessionEventStore, last: str) -> tuple[str | None, list[Any]]:
    """Return the stream of an event, and what came after it."""
    found: list[Any] = []

    async def take(event: EventMessage) -> None:
        message: Any = event.message
        found.append(message.params["n"])
        ids.append(event.event_id)

    ids: list[str | None] = []
    stream = await events.replay_events_after(last, take)
    assert len(set(ids)) == len(ids)
    return stream, found


async def test_each_stream_is_replayed_in_order_by_another_replica(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisEventStore(store) as events, RedisStateStore(settings) as other:
        mine = events.session("s")
        first = await mine.store_event("1", None)
        ids = [await mine.store_event(str(each % 2), said(each)) for each in range(700)]
        async with RedisEventStore(other) as others:
            there = others.session("s")
            assert await replayed(there, first) == ("1", list(range(1, 700, 2)))
            assert await replayed(there, ids[690]) == ("0", [692, 694, 696, 698])
            assert await replayed(there, ids[-1]) == ("1", [])


async def test_the_lines_of_the_guide_attach_a_store(store: RedisStateStore) -> None:
    server = MCPServer("tests")
    code = block_of("mcp.md", "RedisEventStore(store) as events:")
    names = await run_block(code, store=store, server=server, RedisEventStore=RedisEventStore)
    with pytest.raises(ConfigError, match="attached already"):
        names["events"].attach(server.session_manager)


async def test_an_event_that_is_not_kept_or_not_of_this_session_replays_nothing(
    store: RedisStateStore,
) -> None:
    async with RedisEventStore(store, max_events=4) as events:
        mine, another = events.session("s"), events.session("t")
        ids = [await mine.store_event("1", said(each)) for each in range(100)]
        for last in (
            ids[0],
            "",
            ".",
            "nonsense",
            "x" * 9000,
            "a.b",
            "\u00e9.\u00e9",
            f"{ids[-1]}x",
        ):
            assert await replayed(mine, last) == (None, [])
        assert await replayed(another, ids[-2]) == (None, [])
        assert await replayed(mine, ids[-2]) == ("1", [99])


async def test_without_a_session_nothing_is_stored(store: RedisStateStore) -> None:
    events = RedisEventStore(store)
    with pytest.raises(ConfigError, match="attach"):
        await events.store_event("1", None)
    with pytest.raises(ConfigError, match="attach"):
        await events.replay_events_after("a.b", _nothing)
    server = MCPServer("x", log_level="CRITICAL")
    server.streamable_http_app()
    with pytest.raises(ConfigError, match="another event store"):
        events.attach(server.session_manager)
    with pytest.raises(InvalidField, match="session_id"):
        events.session("")
    unfit: list[dict[str, Any]] = [{"max_events": 0}, {"keep": timedelta(0)}, {"lease_s": 0}]
    for wrong in unfit:
        with pytest.raises(InvalidField, match=next(iter(wrong))):
            RedisEventStore(store, **wrong)


async def _nothing(event: EventMessage) -> None:
    pytest.fail(f"sent {event.event_id}")


async def test_40_sessions_at_once_mix_nothing(store: RedisStateStore) -> None:
    async def talk(events: RedisEventStore, number: int) -> None:
        mine = events.session(f"s {number} {{}}*:\n")
        first = await mine.store_event("1", None)
        for each in range(10):
            await mine.store_event("1", said([number, each]))
        assert await replayed(mine, first) == ("1", [[number, each] for each in range(10)])

    async with RedisEventStore(store) as events:
        await asyncio.gather(*(talk(events, number) for number in range(40)))


async def test_what_is_stored_is_sealed_and_has_a_lifetime(settings: Settings) -> None:
    sealed = settings.model_copy(update={"payload_keys": SecretStr(KEYS[0])})
    async with RedisStateStore(sealed) as store, RedisEventStore(store) as events:
        mine = events.session("s")
        first = await mine.store_event("1", None)
        await mine.store_event("1", said("a secret"))
        rows = events.log(first.partition(".")[0])._log.keys.rows
        stored = await store.transport.commands.xrange(rows, "-", "+")
        assert b"secret" not in b"".join(stored[1][1])
        assert await replayed(mine, first) == ("1", ["a secret"])


TEXTS = st.text(max_size=30)


@example(stream="{s}" + "\0" * 500, session="\U0001f642}{" * 300, value=None)
@given(
    stream=TEXTS.filter(bool),
    session=TEXTS.filter(bool),
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    ),
)
async def test_streams_and_messages_are_any_text(
    settings: Settings, stream: str, session: str, value: Any
) -> None:
    async with RedisStateStore(settings) as store, RedisEventStore(store) as events:
        mine = events.session(session)
        first = await mine.store_event(stream, None)
        await mine.store_event(f"{stream}x", said("of another stream"))
        await mine.store_event(stream, said(value))
        answer = JSONRPCResponse(jsonrpc="2.0", id=stream, result={"v": value})
        await mine.store_event("r", answer)
        assert await replayed(mine, first) == (stream, [value])


async def test_a_client_that_reconnects_to_another_replica_misses_and_repeats_nothing(
    store: RedisStateStore, settings: Settings
) -> None:
    heard: list[float] = []
    moved = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (60, f"number {progress:.0f} \u00e9\n")
        heard.append(progress)
        if progress == 20:
            moved.set()

    async with (
        RedisStateStore(settings) as other,
        serving_mcp(store) as first,
        serving_mcp(other) as second,
        Proxy(f"redis://127.0.0.1:{first}") as proxy,
        mcp_client(proxy.port, mode="legacy") as client,
    ):
        # It checks results by what is listed, and a new replica does not know its session.
        await client.list_tools()
        calling = asyncio.create_task(
            client.call_tool("count", {"upto": 60, "pause_s": 0.01}, progress_callback=hear)
        )
        await moved.wait()
        proxy.lead_to(f"redis://127.0.0.1:{second}")
        assert proxy.cut()
        async with asyncio.timeout(30):
            result: Any = await calling
        assert result.content[0].text == "counted"
        assert heard == list(range(60))


async def test_requests_of_a_replica_that_was_killed_end_on_another_one(
    store: RedisStateStore, settings: Settings
) -> None:
    heard: list[float] = []
    begun = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        heard.append(progress)
        if progress == 3:
            begun.set()

    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "role": "server",
        "lease_s": 0.3,
    }
    process = await start_process("mcp_replica", argument)
    try:
        port = int(await process.stdout.readline())
        async with (
            serving_mcp(store, lease_s=0.3) as second,
            Proxy(f"redis://127.0.0.1:{port}") as proxy,
            mcp_client(proxy.port, mode="legacy") as client,
        ):
            calling = asyncio.create_task(
                client.call_tool("count", {"upto": 9999, "pause_s": 0.01}, progress_callback=hear)
            )
            await begun.wait()
            process.kill()
            await process.wait()
            proxy.lead_to(f"redis://127.0.0.1:{second}")
            proxy.cut()
            with pytest.raises(Exception, match="worked on this request died"):
                async with asyncio.timeout(30):
                    await calling
            assert heard == [float(each) for each in range(len(heard))]
    finally:
        await children.end(process)


async def test_nobody_resumes_the_session_of_another_user(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        RedisStateStore(settings) as other,
        serving_mcp(store, users=True) as first,
        serving_mcp(other, users=True) as second,
        httpx2.AsyncClient(verify=PLAIN, trust_env=False, timeout=20) as http,
    ):
        opened, last = await _open(http, first, "ann")
        for user, port, status in (
            ("ann/new token", second, 200),
            ("bob", second, 404),
            ("bob", first, 404),
            (None, second, 401),
        ):
            headers = {
                "Accept": "text/event-stream",
                "Mcp-Session-Id": opened,
                "Last-Event-ID": last,
                **({} if user is None else {"Authorization": f"Bearer {user}"}),
            }
            asking = http.stream("GET", f"http://127.0.0.1:{port}/mcp", headers=headers)
            async with asking as answer:
                assert answer.status_code == status, user
        strange = {"Host": "evil.example", "Mcp-Session-Id": opened, "Last-Event-ID": last}
        strange |= {"Authorization": "Bearer ann", "Accept": "text/event-stream"}
        answer = await http.get(f"http://127.0.0.1:{second}/mcp", headers=strange)
        assert answer.status_code == 421


async def _open(http: Any, port: int, user: str) -> tuple[str, str]:
    """Open a session; return its id, and the id of its first event."""
    asked = {
        "jsonrpc": "2.0",
        "id": "first \u00e9",
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    headers = {
        "Authorization": f"Bearer {user}",
        "Accept": "application/json, text/event-stream",
    }
    answer = await http.post(f"http://127.0.0.1:{port}/mcp", json=asked, headers=headers)
    assert answer.status_code == 200
    ids = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]
    return answer.headers["mcp-session-id"], ids[0]
