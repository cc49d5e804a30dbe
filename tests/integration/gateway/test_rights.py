"""Who may do what: every operation, for every kind of caller, with ids of others."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway import Gateway, GatewayLimits, HookLinks, create_gateway
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.durable_streams.operations import OPERATIONS as STREAM_OPERATIONS
from redis_state.worker import Rate, Schedule
from tests.support.http.gateway import (
    Served,
    caller,
    ends,
    gateway_of,
    links,
    paused,
    stranger,
    tokens,
)

MARK = "mark-of-the-other-session"
THEIRS = "theirs"
ROLES: dict[str, tuple[str, ...]] = {
    "nobody": (),
    **{
        f"{right}-elsewhere": tuple(
            f"{right}:{over}" for over in ("session:mine", "tag:limits", "stream:mine/*")
        )
        for right in Right
    },
}
OVERS = (f"session:{THEIRS}", "tag:finance", f"stream:{THEIRS}/*", "*")
# What a caller without any right over it may learn of a thing: nothing.
HIDDEN = (401, 403, 404)
STREAM = f"{THEIRS}/x"
UNKNOWN = {
    "session": "no-session",
    "task": "no-task",
    "version": "9",
    "pause": f"{THEIRS}:{'0' * 40}",
    "queue": "no-queue",
    "key": "no-key",
    "limit_key": "no-key",
    "rate": "no-rate",
    "schedule": "no-schedule",
    "handler": "no-handler",
    "stream": "no-stream",
}
BODIES: dict[str, Any] = {
    "run_agent": {"threadId": THEIRS, "runId": "planted", "messages": []},
    "chat": {"id": THEIRS, "messages": [{"id": "m", "role": "user", "parts": []}]},
    "submit_task": {
        "handler": "echo",
        "session_id": THEIRS,
        "task_id": "planted",
        "delay_s": 3600,
    },
    "steer_task": {"type": "USER_MESSAGE", "payload": {"text": "x"}},
    "signal_task": {"name": "planted"},
    "request_task": {"name": "planted", "wait_s": 0},
    "debounce_task": {"handler": "echo", "session_id": THEIRS, "wait_s": 3600},
    "batch_item": {"handler": "echo", "session_id": THEIRS, "after_s": 3600},
    "set_rate": {"rate": {"limit": 1, "per_s": 1}},
    "backfill_schedule": {"since": "2026-01-01T00:00Z", "until": "2026-01-02T00:00Z"},
    "limit_queue": {"running": 1},
    "limit_key": {"running": 1},
    "change_all": {"action": "cancel", "filter": {"session_id": THEIRS}, "dry_run": False},
    "decide_pause": {"approved": True},
    "delegate_pause": {"to": "eve"},
    "forget_user": {"user": "theirs", "running": "fence"},
    "save_schedule": {
        "schedule_id": "planted",
        "handler": "echo",
        "session_id": THEIRS,
        "every_s": 60,
    },
}
QUERIES = {"find_tasks": f"?session_id={THEIRS}", "list_pauses": f"?session_id={THEIRS}"}
# Rights and over what, of operations that decide by what they find. `admin` is every right.
OWN: dict[str, tuple[set[Right], set[str]]] = {
    "list_sessions": ({Right.READ}, {"session", "*"}),
    "find_tasks": ({Right.READ}, {"session", "*"}),
    "list_pauses": ({Right.READ, Right.RESOLVE}, {"session", "tag", "*"}),
    "read_pause": ({Right.READ, Right.RESOLVE}, {"session", "tag", "*"}),
    "decide_pause": ({Right.RESOLVE}, {"session", "tag", "*"}),
    "delegate_pause": ({Right.RESOLVE}, {"session", "tag", "*"}),
    "submit_task": ({Right.SUBMIT}, {"session", "*"}),
    "debounce_task": ({Right.SUBMIT}, {"session", "*"}),
    "batch_item": ({Right.SUBMIT}, {"session", "*"}),
    "change_all": (set(), {"session", "*"}),
    # They show what they submit, so they need two rights.
    "run_agent": (set(), {"session", "*"}),
    "chat": (set(), {"session", "*"}),
    "rerun_task": (set(), {"session", "*"}),
    "fork_task": (set(), {"session", "*"}),
}
# What an operation that is allowed is called with: it gets past the rights and changes nothing that
# the calls behind it need.
ALLOWED_BODIES: dict[str, Any] = {
    **{name: BODIES[name] for name in ("submit_task", "debounce_task", "batch_item")},
    "change_all": BODIES["change_all"] | {"dry_run": True},
    "decide_pause": {"approved": False},
    "delegate_pause": BODIES["delegate_pause"],
    "run_agent": BODIES["run_agent"],
    "chat": {"id": THEIRS, "messages": [{"role": "user"}]},
    "append_stream": {},
}
ALLOWED_QUERIES = {"forget_session": "?running=odd", "run_agent": "?input=text"}


@pytest.fixture
async def served(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve all handlers, to callers that may call often."""
    async with gateway_of(store, limits=GatewayLimits(requests_per_s=None)) as opened:
        yield opened


async def _others(served: Served) -> dict[str, str]:
    """Make what belongs to another session; return the values of places in paths."""
    client = served.client
    for task_id in ("t", "decided"):
        await client.submit(
            *("ask", MARK),
            session_id=THEIRS,
            task_id=task_id,
            description=MARK,
            attributes={"m": MARK, "user": "theirs"},
        )
    await client.submit("fail", MARK, session_id=THEIRS, task_id="failed")
    await client.submit("publish", MARK, session_id=THEIRS, task_id="published")
    await client.schedules.save(
        Schedule(
            schedule_id="s",
            handler="echo",
            session_id=THEIRS,
            cron="0 3 * * *",
            description=MARK,
        ),
        paused=True,
    )
    await client.queues.limit("tasks", running=7)
    await client.queues.limit_key("tasks", "k", running=5)
    await client.rates.set("r", Rate(9, timedelta(seconds=1)))
    pause_id, decided = [await paused(served, THEIRS, each) for each in ("t", "decided")]
    await client.reject(decided, actor="bob")
    for task_id in ("failed", "published", "decided"):
        await ends(served, THEIRS, task_id)
    return {
        "session": THEIRS,
        "task": "t",
        "version": "1",
        "pause": pause_id,
        "decided": decided,
        "queue": "tasks",
        "key": "k",
        "limit_key": "k",
        "rate": "r",
        "schedule": "s",
        "handler": "ask",
        "stream": "x",
        "link": links.mint(pause_id, actor="bob")[:-2] + "xx",
    }


def _filled(path: str, places: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda at: quote(places[at[1]], safe=""), path)


def _operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """List what the description has, and the durable streams, which it has not."""
    streams: list[tuple[str, str, dict[str, Any]]] = [
        (
            each.method,
            f"/v1/stream/{THEIRS}/{{stream}}",
            {"operationId": each.name, "x-right": each.right, "x-over": "stream"}
            | ({"requestBody": {}} if each.method in ("PUT", "POST") else {}),
        )
        for each in STREAM_OPERATIONS
    ]
    listed = [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    return [*listed, *streams]


def _with_ids(path: str, operation: dict[str, Any], places: dict[str, str]) -> list[Any]:
    """Make a call with ids of another session, and calls with each of them unknown in turn."""
    name = operation["operationId"]
    body, query = BODIES.get(name, {}), QUERIES.get(name, "")
    others = [places, *(places | {at: UNKNOWN[at]} for at in re.findall(r"\{(\w+)\}", path))]
    calls = [(_filled(path, each) + query, body) for each in others]
    for known, unknown in ((THEIRS, "no-session"), ("echo", "no-handler")):
        asked, given = query.replace(known, unknown), json.dumps(body).replace(known, unknown)
        calls.append((_filled(path, places) + asked, json.loads(given)))
    return [each for at, each in enumerate(calls) if each not in calls[:at]]


async def _state(served: Served) -> list[Any]:
    client = served.client
    tasks = await served.store.list_tasks(THEIRS)
    pauses = await client.pauses(THEIRS)
    stream = await served.store.streams.read(STREAM)
    return [
        sorted((task.task_id, task.status.value) for task in tasks),
        [(pause.pause_id, [each.state for each in pause.deciders]) for pause in pauses],
        len(await served.store.list_steering(THEIRS)),
        await client.schedules.list(),
        [(each.name, each.paused, each.limit, each.keys) for each in await client.queues.list()],
        await client.queues.get("tasks"),
        await client.rates.list(),
        (stream.offset, stream.closed),
    ]


async def _plant_stream(served: Served) -> None:
    data = json.dumps([MARK]).encode()
    await served.store.streams.create(STREAM, content_type="application/json", data=data)


async def test_no_role_reads_or_changes_what_is_anothers(served: Served) -> None:
    """Role x route x id, made from the description that is served."""
    places = await _others(served)
    await _plant_stream(served)
    before = await _state(served)
    described = (await _get(stranger(served.app), "/v1/openapi.json")).json()
    tried = 0
    for role, scopes in ROLES.items():
        answers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        async with served.caller(role, *scopes) as http:
            for method, path, operation in _operations(described):
                if not operation.get("security", True):
                    continue
                for filled, body in _with_ids(path, operation, places):
                    response = await _call(http, method, filled, operation, body)
                    tried += 1
                    _is_no_leak(role, method, path, response)
                    answers.setdefault((method, path), []).append(
                        (response.status_code, response.text)
                    )
            opened = [await _opened(served.app, http, each) for each in (THEIRS, "no-session")]
            assert opened == [404, 404], role
        # Nobody can tell a thing that is there from one that is not.
        different = {key: found for key, found in answers.items() if len(set(found)) > 1}
        assert not different, role
    assert await _state(served) == before
    assert tried > 900


def _is_no_leak(role: str, method: str, path: str, response: httpx.Response) -> None:
    where = f"{role}: {method} {path} -> {response.status_code}"
    assert MARK not in response.text, where
    assert "refund" not in response.text, where
    if response.status_code == 200:
        # Lists of what is the caller's own; "mine" has nothing.
        document: dict[str, Any] = response.json()
        lists: list[Any] = [each for each in document.values() if isinstance(each, list)]
        assert lists, where
        assert not any(lists), where
    else:
        assert response.status_code in HIDDEN, where
        if method != "GET":
            assert response.status_code != 401, where


async def test_without_credentials_nothing_is_served_but_health_and_the_description(
    served: Served,
) -> None:
    places = await _others(served)
    await _plant_stream(served)
    async with stranger(served.app) as http:
        described = (await http.get("/v1/openapi.json")).json()
        for method, path, operation in _operations(described):
            filled = _filled(path, places)
            body = BODIES.get(operation["operationId"], {})
            response = await _call(http, method, filled, operation, body)
            assert MARK not in response.text
            if operation.get("security", True):
                assert response.status_code == 401, path
                assert response.headers["www-authenticate"].startswith("Bearer")
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/metrics")).status_code == 401


async def test_a_link_that_is_not_one_of_this_gateways_is_like_every_other(served: Served) -> None:
    places = await _others(served)
    await _plant_stream(served)
    before = await _state(served)
    made = links.mint(places["pause"], actor="bob")
    wrong = [
        places["link"],
        made[:-1],
        f"{made}x",
        places["pause"],
        HookLinks("another secret, of 32 bytes or more").mint(places["pause"], actor="bob"),
        links.mint(UNKNOWN["pause"], actor="bob"),
        tokens.mint("ann", ["admin:*"]),
    ]
    answers: set[tuple[Any, ...]] = set()
    async with stranger(served.app) as http:
        for link in wrong:
            path = f"/v1/hooks/{quote(link, safe='')}"
            shown, form = await http.get(path), await http.post(path, data={"decision": "approve"})
            program = await http.post(path, json={"approved": True})
            found = (shown, form, program)
            answers.add(tuple((each.status_code, each.text) for each in found))
        assert {each[0] for each in answers.pop()} == {404}
        assert not answers
        assert (await http.get(f"/v1/hooks/{made}")).status_code == 200
    assert await _state(served) == before


def _allows(operation: dict[str, Any], right: Right, over: str) -> bool:
    needed, kinds = OWN.get(operation["operationId"], (None, set[str]()))
    if needed is None:
        needed = {Right(operation["x-right"])}
        found = {"session": {"session", "*"}, "everything": {"*"}, "stream": {"stream", "*"}}
        kinds = found[operation["x-over"]]
    return right in needed | {Right.ADMIN} and over.partition(":")[0] in kinds


@pytest.mark.parametrize("right", list(Right))
async def test_a_right_over_a_thing_is_no_right_of_another_kind(
    served: Served, right: Right
) -> None:
    """Each right alone, over the session, a tag of it, a stream and everything: every operation."""
    places = await _others(served)
    described = (await _get(stranger(served.app), "/v1/openapi.json")).json()
    for over in OVERS:
        await _plant_stream(served)
        before = await _state(served)
        async with served.caller("ann", f"{right}:{over}") as http:
            allowed: list[tuple[str, str, dict[str, Any]]] = []
            for method, path, operation in _operations(described):
                if not operation.get("security", True):
                    continue
                if _allows(operation, right, over):
                    allowed.append((method, path, operation))
                    continue
                where = f"{right}:{over}: {method} {path}"
                body = BODIES.get(operation["operationId"], {})
                response = await _call(http, method, _filled(path, places), operation, body)
                _is_no_leak(where, method, path, response)
                assert response.status_code in (403, 404), where
            assert await _state(served) == before, over
            for method, path, operation in allowed:
                answered = await _allowed(http, method, path, operation, places)
                where = f"{right}:{over}: {method} {path} -> {answered.status_code}"
                assert answered.status_code not in HIDDEN, where
            follows = right in (Right.READ, Right.ADMIN) and over in (f"session:{THEIRS}", "*")
            assert await _opened(served.app, http, THEIRS) == (101 if follows else 404), over


async def _allowed(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    operation: dict[str, Any],
    places: dict[str, str],
) -> httpx.Response:
    """Call what is allowed, so that what is planted stays."""
    name = operation["operationId"]
    others: dict[str, dict[str, str]] = {
        "read_value": {"task": "published"},
        "read_snapshot": {"task": "failed"},
        "decide_pause": {"pause": places["decided"]},
        "delegate_pause": {"pause": places["decided"]},
        "delete_schedule": {"schedule": UNKNOWN["schedule"]},
        "stop_chat": {"handler": UNKNOWN["handler"]},
    }
    if name == "metrics" and find_spec("prometheus_client") is None:
        path = "/v1/workers"
    # The body is read behind the rights.
    body = ALLOWED_BODIES.get(name, {"no-such-field": 1})
    content = operation.get("responses", {}).get("200", {}).get("content", {})
    # A stream has no end: its begin is enough.
    if method == "GET" and "text/event-stream" in content:
        method = "HEAD"
    filled = _filled(path, places | others.get(name, {})) + ALLOWED_QUERIES.get(name, "")
    return await _call(http, method, filled, operation, body)


async def test_a_caller_is_held_to_its_rate_and_told_when_to_come_again(served: Served) -> None:
    app = create_gateway(
        served.store, auth=tokens, limits=GatewayLimits(requests_per_s=0.01, burst=3)
    )
    async with caller(app, "ann", "read:*") as ann, caller(app, "bob", "read:*") as bob:
        answers = [(await ann.get("/v1/sessions")).status_code for _ in range(4)]
        assert answers == [200, 200, 200, 429]
        refused = await ann.get("/v1/sessions")
        assert int(refused.headers["retry-after"]) > 1
        assert (await bob.get("/v1/sessions")).status_code == 200
        assert (await ann.get("/healthz")).status_code == 200
    await app.aclose()


async def _get(http: httpx.AsyncClient, path: str) -> httpx.Response:
    async with http:
        return await http.get(path)


async def _call(
    http: httpx.AsyncClient, method: str, path: str, operation: dict[str, Any], body: Any
) -> httpx.Response:
    has_body = "requestBody" in operation
    content = json.dumps(body) if has_body else None
    headers = {"content-type": "application/json"} if has_body else {}
    return await http.request(method, path, content=content, headers=headers)


async def _opened(app: Gateway, http: httpx.AsyncClient, session_id: str) -> int:
    """Open a session's WebSocket as a caller; return the status."""
    path = f"/v1/sessions/{session_id}/socket"
    headers = [(b"host", b"gateway.test")]
    headers += [(b"authorization", http.headers["authorization"].encode())]
    scope: dict[str, Any] = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "scheme": "ws",
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    said: list[Any] = [
        {"type": "websocket.disconnect", "code": 1000},
        {"type": "websocket.connect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return said.pop() if len(said) > 1 else said[0]

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return 101 if sent[0]["type"] == "websocket.accept" else int(sent[0]["status"])
