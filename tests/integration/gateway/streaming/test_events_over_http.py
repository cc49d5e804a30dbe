"""The stream of a session over HTTP: joined, resumed, ended, and refused before it begins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits, Principal
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.http.gateway import Served, at, ends, gateway_of, paused, tokens
from tests.support.http.streams import Reader


def mint(*scopes: str) -> str:
    return tokens.mint("ann", scopes)


async def test_a_stream_resumes_behind_the_last_event_and_ends_with_its_task(
    served: Served,
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    await paused(served, "s", "t")
    (pause,) = await served.client.pauses("s")
    token, path, query = mint("read:session:s"), "/v1/sessions/s/events", "task=t"
    async with Reader(served.app, path, token, query=query) as first:
        await eventually(lambda: b"CHECKPOINT" in first.body, "the pause is streamed")
    seen = first.ids()
    async with Reader(served.app, path, token, query=query, after=seen[1]) as second:
        await served.client.approve(str(pause.pause_id), actor="bob")
        await ends(served, "s", "t")
        await eventually(lambda: second.over, "the stream ends")
    assert b"event: end" in second.body
    assert pause.token is not None
    assert pause.token.encode() not in first.body + second.body
    again = [*seen[:2], *second.ids()]
    whole = [entry.cursor for entry in (await served.store.read_updates("s")).entries]
    assert again == whole
    assert again[: len(seen)] == seen


async def test_what_is_wrong_with_a_stream_is_told_before_it_begins(served: Served) -> None:
    await served.client.submit("echo", session_id="s", task_id="t")
    async with served.caller("ann", "read:session:s") as http:
        for query, status in [
            ("after=garbage", 400),
            ("types=NOPE", 422),
            ("task=nope", 404),
            ("x=1", 422),
        ]:
            refused = await http.get(f"/v1/sessions/s/events?{query}")
            assert refused.status_code == status, query
            assert set(refused.json()) == {"error"}
        assert (await http.get("/v1/sessions/other/events")).status_code == 404
        head = await http.head("/v1/sessions/s/events")
        assert head.headers["content-type"].startswith("text/event-stream")
        assert head.headers["cache-control"] == "no-store, no-transform"


@pytest.fixture
async def narrow(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve one stream a caller; who is not root sees no progress, and no reason of a pause."""

    def visible(caller: Principal, update: StateUpdate) -> StateUpdate | None:
        if caller.subject == "root":
            return update
        if update.update_type.value == "PROGRESS":
            return None
        if update.update_type.value == "CHECKPOINT":
            return update.model_copy(update={"content": {"reason": "hidden"}})
        return update

    limits = GatewayLimits(streams=1)
    async with gateway_of(store, visible=visible, limits=limits) as opened:
        yield opened


async def test_a_caller_has_so_many_streams_and_sees_what_is_shown(narrow: Served) -> None:
    await narrow.client.submit("ask", session_id="s", task_id="t")
    await paused(narrow, "s", "t")
    path, token = "/v1/sessions/s/events", mint("read:*")
    async with Reader(narrow.app, path, token) as stream:
        await eventually(lambda: b"CHECKPOINT" in stream.body, "the pause is streamed")
        assert b"refund" not in stream.body
        assert b"PROGRESS" not in stream.body
        async with Reader(narrow.app, path, token) as other:
            assert other.status == 429
            assert json.loads(other.body)["error"]["limit"] == 1
        async with Reader(narrow.app, path, tokens.mint("root", ["read:*"])) as root:
            await eventually(lambda: b"refund" in root.body, "root sees all")
            narrow.app.end_streams()
            await eventually(lambda: stream.over and root.over, "all streams end")
    async with narrow.caller("ann", "read:*") as http:
        shown = (await http.get(at("s", "t", "timeline"))).json()
        assert "refund" not in str(shown["rows"])


async def test_a_client_that_leaves_while_the_log_is_read_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await served.store.save_update(
            StateUpdate(
                session_id="s", task_id="t", update_type=UpdateType.PROGRESS, content={"n": n}
            )
        )
    reading = asyncio.Event()

    async def reads(*_: Any, **__: Any) -> Any:
        reading.set()
        await asyncio.get_running_loop().create_future()

    services = await served.app.services()
    monkeypatch.setattr(type(services.hub.store), "read_updates", reads)
    async with Reader(served.app, "/v1/sessions/s/events", mint("read:*"), query="after=0"):
        await reading.wait()
        assert (services.usage.streams, services.hub.clients) == (1, 1)
    assert (services.usage.streams, services.hub.clients) == (0, 0)
    async with served.caller("ann", "read:*") as http:
        assert (await http.head("/v1/sessions/s/events")).status_code == 200
    assert (services.usage.streams, services.hub.clients) == (0, 0)
