"""What a hostile caller sends: bodies without an end, forms, cursors, and tokens of elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.requests import limits as limits_of_gateway
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.models import StateUpdate, UpdateType
from redis_state.serialization import codec
from redis_state.testing import eventually
from redis_state.worker import TextReader
from tests.integration.gateway.streaming.test_events_over_http import mint
from tests.support.http.gateway import Served, at, code_of, ends, links, of_pause, paused, stranger
from tests.support.http.streams import Reader


async def test_a_token_of_another_session_is_cut_wherever_it_was_copied_to(served: Served) -> None:
    await served.client.submit("ask", session_id="odd/one", task_id="t")
    await paused(served, "odd/one", "t")
    (pause,) = await served.client.pauses("odd/one")
    token = pause.token
    assert token is not None
    secret = token.rpartition(".")[2]
    given = {"links": [f"https://example.com/decide?token={token}&x=1"], token: 1}
    await served.client.submit("echo", given, session_id="s", task_id="t")
    await ends(served, "s", "t")
    await served.store.save_update(
        StateUpdate(session_id="s", task_id="t", update_type=UpdateType.PROGRESS, content=given)
    )
    async with served.caller("eve", "read:session:s") as http:
        for path in (at("s", "t"), at("s", "t", "timeline"), at("s", "t", "tree")):
            assert secret not in (await http.get(path)).text, path
    query = "task=t"
    async with Reader(served.app, "/v1/sessions/s/events", mint("read:*"), query=query) as stream:
        await eventually(lambda: stream.over, "the stream ends")
    assert b"PROGRESS" in stream.body
    assert secret.encode() not in stream.body


def test_what_looks_like_a_token_only_a_little_is_left() -> None:
    digest = hashlib.md5(b"x", usedforsecurity=False).hexdigest()
    kept = [f"style.{digest}.css", "module.a_function_of_thirty_two_letters", f"{digest}.{digest}"]
    kept += ["a.b.c", "https://example.com/x.y", "." + "aB" * 17]
    assert cut_tokens("s", kept) == kept
    made = base64.urlsafe_b64encode(hashlib.sha256(b"x").digest()[:24]).decode()
    assert cut_tokens("s", {"task_id": f"t.{made}"}) == {"task_id": f"t.{made}"}
    assert cut_tokens("s", {"text": f"t.{made}"}) == {"text": "t.[token]"}


async def test_a_token_is_cut_from_a_text_that_comes_in_pieces(served: Served) -> None:
    for size in (1, 5, 100):
        session, task = "a/b", f"t{size}"
        await served.client.submit("recite", size, session_id=session, task_id=task)
        await paused(served, session, task)
        pauses = await served.client.pauses(session)
        token = next(str(each.token) for each in pauses if each.task_id == task)
        path, query = f"/v1/sessions/{quote(session, safe='')}/events", f"task={task}&types=RESULT"
        async with Reader(served.app, path, mint("read:*"), query=query) as stream:
            await eventually(lambda: b'"end":true' in stream.body, "the text ends")
        lines = [line for line in stream.body.decode().splitlines() if line.startswith("data: ")]
        shown = "".join(json.loads(line[6:])["content"]["text"] for line in lines)
        secret = token.rpartition(".")[2]
        assert not [at for at in range(24) if secret[at : at + 8] in shown], size
        plain = shown.replace("a%2Fb.[token]", "[token]")
        assert plain == f"see ?token=[token]&x, [token]and {quote(token, safe='')[:9]}"
        # Who may decide reads all of it.
        reader = TextReader()
        for update in await served.store.list_updates(session, task_id=task):
            reader.feed(update)
        assert token in reader.texts["answer#1"].text


async def test_who_is_too_late_is_not_told_a_token_of_the_decision(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    (pause,) = await served.client.pauses("s")
    assert pause.token is not None
    path = of_pause(pause_id, "decision")
    async with served.caller("ann", "resolve:*") as http:
        body = {"approved": True, "value": pause.token}
        assert (await http.post(path, json=body)).status_code == 200
        late = await http.post(path, json={"approved": False})
        assert (late.status_code, code_of(late)) == (409, "already_resolved")
        assert pause.token not in late.text
        assert late.json()["error"]["decision"]["value"] == "[token]"


@pytest.mark.parametrize("origin", ["http://[", "null", "//", "http://a\x7f[b]"])
async def test_an_origin_that_is_none_is_another_one(served: Served, origin: str) -> None:
    async with stranger(served.app) as http:
        for host in ("gateway", ""):
            headers = {"origin": origin, "host": host}
            answered = await http.post("/v1/tasks", json={}, headers=headers)
            assert (answered.status_code, code_of(answered)) == (403, "cross_site")


async def test_a_form_of_many_fields_is_refused(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    link = links.mint(await paused(served, "s", "t"), actor="bob")
    async with stranger(served.app) as http:
        form = {f"f{n}": "x" for n in range(30)} | {"decision": "approve"}
        assert (await http.post(f"/v1/hooks/{link}", data=form)).status_code == 400


@pytest.mark.parametrize("place", [1, {}, None, [1, 2], "x"])
async def test_a_cursor_that_was_made_up_is_400(served: Served, place: Any) -> None:
    listing = ["pauses", None, None, False]
    written = codec.fingerprint("cursor", listing).encode()[:8] + codec.encode(place)
    cursor = base64.urlsafe_b64encode(written).decode()
    async with served.caller("ann", "read:*") as http:
        assert (await http.get("/v1/pauses", params={"after": cursor})).status_code == 400


async def _sends(served: Served, *messages: dict[str, Any], **headers: str) -> int:
    """Send pieces of a body, and then nothing; return the status."""
    pieces, statuses = list(messages), list[int]()
    sent = {"authorization": f"Bearer {mint('admin:*')}", "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/tasks",
        "raw_path": b"/v1/tasks",
        "root_path": "",
        "query_string": b"",
        "headers": [(k.encode(), v.encode()) for k, v in (sent | headers).items()],
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "http_version": "1.1",
    }

    async def receive() -> Any:
        if pieces:
            return pieces.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    await served.app(scope, receive, send)
    (status,) = statuses
    return status


def _piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": True}


async def test_bodies_without_an_end_hold_little_and_not_for_long(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    chunked = [_piece(b"x" * 40_000)] * 3
    assert await _sends(served, *chunked) == 413
    assert await _sends(served, **{"content-length": "9" * 5000}) == 413
    assert await _sends(served, _piece(b"{"), {"type": "http.disconnect"}) == 400
    monkeypatch.setattr(limits_of_gateway, "_BODY_S", 0.05)
    assert await _sends(served, _piece(b"{")) == 408
    assert await _sends(served, _piece(b"[" * 60_000), {"type": "http.request"}) == 400
    # A caller who leaves is no defect.
    assert not caplog.records
