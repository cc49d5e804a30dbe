"""The WebSocket of a session: commands that are acknowledged, and each one's rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import websockets
from websockets.asyncio.client import connect

from redis_state import RedisStateStore
from redis_state.errors import AuthenticationFailed, RedisStateError, TaskUnknown
from redis_state.gateway import ApiKeys, GatewayLimits, create_gateway, make_api_key
from redis_state.gateway import app as gateway_app
from redis_state.gateway.app import Gateway
from redis_state.gateway.auth import files
from redis_state.gateway.streaming.hub import Hub
from redis_state.http_client import HttpTaskClient
from redis_state.testing import eventually
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.event_streams import EventParser
from tests.support.http.gateway import Served, at, ends, gateway_of, of_pause, paused, tokens
from tests.support.processes.pools import queue_of

PATIENCE_S = 10.0


class Socket:
    """A client that reads events by name."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.events: list[Any] = []
        self._parser = EventParser()
        self._sent = 0

    async def next(self, name: str) -> Any:
        """Return the next event of a name."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [event for event in self.events if event.name == name]):
                self.events.extend(self._parser.feed((await self.socket.recv()).encode()))
        self.events.remove(found[0])
        return found[0]

    async def command(self, name: str, *, key: str | None = None, **more: Any) -> dict[str, Any]:
        """Send a command; return its acknowledgement."""
        self._sent += 1
        key = key or str(self._sent)
        await self.socket.send(json.dumps({"id": key, "type": name} | more))
        ack: dict[str, Any] = (await self.next("ack")).data
        assert ack["id"] == key
        return ack

    async def refusal(self, name: str, **more: Any) -> str:
        """Send a command; return the code of its error."""
        ack = await self.command(name, **more)
        assert ack["ok"] is False
        return str(ack["error"]["code"])


@asynccontextmanager
async def served_by_sockets(served: Served) -> AsyncGenerator[int]:
    """Serve a gateway on a port."""
    async with serving_asgi(served.app, stop=served.app.end_streams) as port:
        yield port


@asynccontextmanager
async def joined(
    port: int, *scopes: str, subject: str = "ann", session: str = "s", **options: Any
) -> AsyncGenerator[Socket]:
    """Follow a session as a caller."""
    token = tokens.mint(subject, scopes, ttl=options.pop("ttl", timedelta(minutes=1)))
    headers = {"authorization": f"Bearer {token}"}
    url = f"ws://127.0.0.1:{port}/v1/sessions/{session}/socket?after=0"
    async with connect(url, additional_headers=headers, **options) as socket:
        yield Socket(socket)


MESSAGE = {"type": "USER_MESSAGE", "payload": {"text": "hello"}}


async def test_a_socket_steers_and_decides_once_for_each_id(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    (pause,) = await served.client.pauses("s")
    async with (
        served_by_sockets(served) as port,
        joined(port, "read:session:s", "steer:session:s", "resolve:tag:finance") as ann,
    ):
        assert (await ann.next("CHECKPOINT")).content["pause_id"] == pause_id
        sent = [await ann.command("steer", key="k", task="t", body=MESSAGE) for _ in range(2)]
        assert sent[0]["result"] == sent[1]["result"]
        assert sent[0]["result"]["source"] == "ann"
        other = {"type": "USER_MESSAGE", "payload": {"text": "another"}}
        assert await ann.refusal("steer", key="k", task="t", body=other) == "key_reused"
        approval = {"approved": True, "value": 1}
        done = await ann.command("decide", key="d", pause=pause_id, body=approval)
        assert (done["result"]["by"], done["result"]["pause_id"]) == ("ann", pause_id)
        again = await ann.command("decide", key="d", pause=pause_id, body=approval)
        assert again["ok"]
        assert await ann.refusal("decide", pause=pause_id, body={"approved": False}) == (
            "already_resolved"
        )
        assert pause.token is not None
        assert pause.token not in str(ann.events)
    state = await ends(served, "s", "t")
    assert state.result == {"approved": True, "value": 1, "by": "ann"}
    events = await served.store.list_steering("s")
    assert len([each for each in events if each.event_type.value == "USER_MESSAGE"]) == 1


async def test_a_key_that_was_removed_commands_nothing_over_an_open_socket(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    key, kept = make_api_key("ann", ["read:*", "steer:*"])
    _, fewer = make_api_key("ann", ["read:*"])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document()]))
    keys, queue = ApiKeys.from_file(file), queue_of(served.store.settings)
    app = create_gateway(served.store, auth=keys, queue=queue)
    await served.client.submit("ask", session_id="s", task_id="t")
    await paused(served, "s", "t")
    async with serving_asgi(app, stop=app.end_streams) as port:
        url = f"ws://127.0.0.1:{port}/v1/sessions/s/socket"
        async with connect(url, additional_headers={"authorization": f"Bearer {key}"}) as socket:
            ann = Socket(socket)
            assert (await ann.command("steer", task="t", body=MESSAGE))["ok"]
            # The same key, with a scope less.
            file.write_text(json.dumps([kept.document() | {"scopes": fewer.document()["scopes"]}]))
            assert await ann.refusal("cancel", task="t") == "forbidden"
            file.write_text("[]")
            assert await ann.refusal("cancel", task="t") == "unauthenticated"
            await socket.wait_closed()
            assert socket.close_code == 1008
    state = await served.client.get("s", "t")
    assert state is not None
    assert state.status.value == "PAUSED"


@pytest.mark.parametrize(
    ("scopes", "error"), [([], AuthenticationFailed), (["read:session:other"], TaskUnknown)]
)
async def test_open_streams_of_a_key_end_once_it_is_removed_or_may_not_read(
    scopes: list[str],
    error: type[RedisStateError],
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    monkeypatch.setattr(gateway_app, "Hub", partial(Hub, heartbeat_s=0.05))
    key, kept = make_api_key("ann", ["read:session:s"])
    other, others = make_api_key("bob", ["read:session:s"])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document(), others.document()]))
    app = create_gateway(
        served.store, auth=ApiKeys.from_file(file), queue=queue_of(served.store.settings)
    )
    await served.client.submit("ask", session_id="s", task_id="t")
    await paused(served, "s", "t")
    async with serving_asgi(app, stop=app.end_streams) as port:
        url = f"ws://127.0.0.1:{port}/v1/sessions/s/socket"
        async with (
            connect(url, additional_headers={"authorization": f"Bearer {key}"}) as socket,
            connect(url, additional_headers={"authorization": f"Bearer {other}"}) as staying,
            HttpTaskClient(f"http://127.0.0.1:{port}", key) as http,
            aclosing(http.watch("s", "t")) as entries,
        ):
            await anext(entries)
            asked = app._answers.copy()
            left = [kept.document() | {"scopes": scopes}] if scopes else []
            file.write_text(json.dumps([*left, others.document()]))
            await Socket(socket).next("expired")
            await socket.wait_closed()
            assert socket.close_code == 1008
            with pytest.raises(error):
                async for _ in entries:
                    pass
            # The client has come back once, and has then given up.
            assert sum((app._answers - asked).values()) == 1
            await eventually(lambda: _clients(app, 1), "the other one stays")
            await served.client.cancel("s", "t", reason="enough")
            await Socket(staying).next("STATUS_CHANGE")


async def _clients(app: Gateway, count: int) -> bool:
    return (await app.services()).hub.clients == count


async def test_each_command_needs_its_own_right_and_form(served: Served) -> None:
    for session in ("s", "theirs"):
        await served.client.submit("ask", session_id=session, task_id="t")
    own, theirs = await paused(served, "s", "t"), await paused(served, "theirs", "t")
    async with (
        served_by_sockets(served) as port,
        joined(port, "read:session:s") as reader,
        joined(port, "read:session:s", "steer:session:s", "resolve:session:s") as ann,
    ):
        assert await reader.refusal("steer", task="t", body=MESSAGE) == "forbidden"
        assert await reader.refusal("cancel", task="t") == "forbidden"
        assert await reader.refusal("decide", pause=own, body={"approved": True}) == "forbidden"
        approval = {"approved": True}
        for pause in (theirs, "nope", theirs.replace("%", "%25"), "s/../theirs"):
            assert await ann.refusal("decide", pause=pause, body=approval) == "not_found"
        assert await ann.refusal("steer", task="nope", body=MESSAGE) == "not_found"
        assert await ann.refusal("steer", task="../../theirs/tasks/t", body=MESSAGE) == "not_found"
        # No other session can be named, nor who it was.
        for more in ({"session": "theirs"}, {"source": "root"}, {"by": "root"}):
            assert await ann.refusal("steer", task="t", body=MESSAGE, **more) == "invalid_field"
        assert await ann.refusal("steer", body=MESSAGE) == "invalid_field"
        assert await ann.refusal("steer", task=["t"], body=MESSAGE) == "invalid_field"
        assert await ann.refusal("steer", task="t", body=[]) == "invalid"
        assert await ann.refusal("steer", task="t", body={"type": "APPROVE"}) == "invalid_field"
        assert await ann.refusal("submit", task="t") == "invalid_field"
        assert (await ann.command("cancel", task="t", body={"reason": "enough"}))["ok"]
    assert (await ends(served, "s", "t")).status.value == "CANCELLED"
    other = await served.client.get("theirs", "t")
    assert other is not None
    assert other.status.value == "PAUSED"


async def test_a_socket_is_refused_before_it_opens(served: Served) -> None:
    async with served_by_sockets(served) as port:

        async def refused(session: str, query: str = "", **headers: str) -> int:
            url = f"ws://127.0.0.1:{port}/v1/sessions/{session}/socket{query}"
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with connect(url, additional_headers=headers):
                    pass
            return caught.value.response.status_code

        known = {"authorization": f"Bearer {tokens.mint('ann', ['read:session:s'])}"}
        assert await refused("s") == 401
        for session in ("theirs", "sa", "s%2Fa", "s%252Fa", "%2E%2E", "s%00"):
            assert await refused(session, **known) == 404, session
        assert await refused("s", "?after=x", **known) == 400
        assert await refused("s", "?nope=1", **known) == 422
        # A page of another site may open a socket with the cookies of this one.
        foreign: list[dict[str, str]] = [
            {"origin": "https://evil.example.com"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{port}", "sec-fetch-site": "cross-site"},
        ]
        for headers in foreign:
            assert await refused("s", **known, **headers) == 403, headers
        async with joined(port, "read:session:s", origin=f"http://127.0.0.1:{port}"):
            pass
    services = await served.app.services()
    await eventually(lambda: services.hub.clients == 0, "no stream is left")
    assert services.usage.streams == 0


async def test_a_socket_ends_with_its_token_and_with_the_gateway(store: RedisStateStore) -> None:
    limits = GatewayLimits(streams=1, burst=4, requests_per_s=0.01)
    async with (
        gateway_of(store, handlers=["echo"], limits=limits) as served,
        served_by_sockets(served) as port,
    ):
        async with joined(port, "read:session:s", ttl=timedelta(seconds=2)) as short:
            await short.next("expired")
            with pytest.raises(websockets.ConnectionClosed):
                await short.next("never")
        async with joined(port, "read:session:s") as ann:
            # One client has one stream and so many commands, whatever it sends.
            with pytest.raises(websockets.InvalidStatus):
                async with joined(port, "read:session:s"):
                    pass
            codes = [await ann.refusal("steer", task="t", body=MESSAGE) for _ in range(3)]
            assert codes == ["forbidden", "too_many_requests", "too_many_requests"]
            served.app.end_streams()
            with pytest.raises(websockets.ConnectionClosed):
                await ann.next("never")


@pytest.mark.parametrize("max_body_bytes", [8 << 10, 256 << 10])
async def test_a_command_may_have_the_body_that_its_post_may_have(
    store: RedisStateStore, max_body_bytes: int
) -> None:
    limits = GatewayLimits(max_body_bytes=max_body_bytes)
    value = "x" * (max_body_bytes - 100)
    async with (
        gateway_of(store, handlers=["ask"], limits=limits) as served,
        served_by_sockets(served) as port,
        served.caller("ann", "resolve:session:s") as http,
        joined(port, "read:session:s", "resolve:session:s") as ann,
    ):
        pauses: list[str] = []
        for task_id in ("post", "command", "larger"):
            await served.client.submit("ask", session_id="s", task_id=task_id)
            pauses.append(await paused(served, "s", task_id))
        approval = {"approved": True, "value": value}
        posted = await http.post(of_pause(pauses[0], "decision"), json=approval)
        assert posted.status_code == 200
        # An id whose characters are all written with escapes.
        key = "\N{GRINNING FACE}" * 200
        done = await ann.command("decide", key=key, pause=pauses[1], body=approval)
        assert done["ok"], done
        for task_id in ("post", "command"):
            assert (await ends(served, "s", task_id)).result["value"] == value
        larger = {"approved": True, "value": value + "x" * (16 << 10)}
        with pytest.raises(websockets.ConnectionClosed):
            await ann.command("decide", pause=pauses[2], body=larger)
        assert ann.socket.close_code == 1009
        assert [each.pause_id for each in await served.client.pauses("s")] == pauses[2:]


async def test_a_path_of_a_socket_is_no_page(served: Served) -> None:
    async with served.caller("ann", "admin:*") as http:
        assert (await http.get("/v1/sessions/s/socket")).status_code == 404
        assert (await http.get(at("s", "t", "socket"))).status_code == 404
