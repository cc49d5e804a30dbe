"""Who may do what: every operation, for every kind of caller, with ids of others."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway import GatewayLimits, create_gateway
from tests.support.http.gateway import (
    Served,
    caller,
    ends,
    links,
    of_pause,
    paused,
    stranger,
    tokens,
)

MARK = "mark-of-the-other-session"
ROLES: dict[str, tuple[str, ...]] = {
    "nobody": (),
    **{
        f"{right}-elsewhere": (f"{right}:session:mine", f"{right}:tag:limits")
        for right in ("read", "steer", "resolve", "submit", "admin")
    },
}
# What a caller without any right over it may learn of a thing: nothing.
HIDDEN = (401, 403, 404)
BODIES: dict[str, Any] = {
    "run_agent": {"threadId": "theirs", "runId": "planted", "messages": []},
    "chat": {"id": "theirs", "messages": [{"id": "m", "role": "user", "parts": []}]},
    "submit_task": {"handler": "echo", "session_id": "theirs", "task_id": "planted"},
    "steer_task": {"type": "USER_MESSAGE", "payload": {"text": "x"}},
    "signal_task": {"name": "planted"},
    "limit_queue": {"running": 1},
    "limit_key": {"running": 1},
    "change_all": {"action": "cancel", "filter": {"session_id": "theirs"}, "dry_run": False},
    "decide_pause": {"approved": True},
    "delegate_pause": {"to": "eve"},
    "save_schedule": {
        "schedule_id": "planted",
        "handler": "echo",
        "session_id": "theirs",
        "every_s": 60,
    },
}


async def _others(served: Served) -> dict[str, str]:
    """Make what belongs to another session; return the values of places in paths."""
    await served.client.submit(
        "ask", MARK, session_id="theirs", task_id="t", description=MARK, attributes={"m": MARK}
    )
    await served.client.submit("fail", MARK, session_id="theirs", task_id="failed")
    pause_id = await paused(served, "theirs", "t")
    await ends(served, "theirs", "failed")
    return {
        "session": "theirs",
        "task": "t",
        "version": "1",
        "pause": pause_id,
        "queue": "tasks",
        "key": "k",
        "limit_key": "k",
        "schedule": "s",
        "handler": "ask",
        "link": links.mint(pause_id, actor="bob")[:-2] + "xx",
    }


def _filled(path: str, places: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda at: quote(places[at[1]], safe=""), path)


def _operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


async def _state(served: Served) -> list[Any]:
    tasks = await served.store.list_tasks("theirs")
    pauses = await served.client.pauses("theirs")
    return [
        sorted((task.task_id, task.status.value) for task in tasks),
        [pause.pause_id for pause in pauses],
        len(await served.store.list_steering("theirs")),
        await served.client.schedules.list(),
        (await served.client.queues.get("tasks")).limit,
    ]


async def test_no_role_reads_or_changes_what_is_anothers(served: Served) -> None:
    """Role x route x id, made from the description that is served."""
    places = await _others(served)
    ids = {"theirs": places, "unknown": places | {"task": "nope", "pause": f"theirs:{'0' * 40}"}}
    before = await _state(served)
    described = (await _get(stranger(served.app), "/v1/openapi.json")).json()
    tried = 0
    for role, scopes in ROLES.items():
        answers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        async with served.caller(role, *scopes) as http:
            for method, path, operation in _operations(described):
                if not operation.get("security", True):
                    continue
                for given in ids.values():
                    filled = _filled(path, given)
                    response = await _call(http, method, filled, operation)
                    tried += 1
                    _is_no_leak(role, method, path, response)
                    answers.setdefault((method, path), []).append(
                        (response.status_code, response.text)
                    )
        # Nobody can tell a thing that is there from one that is not.
        different = {key: found for key, found in answers.items() if len(set(found)) > 1}
        assert not different, role
    assert await _state(served) == before
    assert tried > 300


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
    async with stranger(served.app) as http:
        described = (await http.get("/v1/openapi.json")).json()
        for method, path, operation in _operations(described):
            filled = _filled(path, places)
            response = await _call(http, method, filled, operation)
            assert MARK not in response.text
            if operation.get("security", True):
                assert response.status_code == 401, path
                assert response.headers["www-authenticate"].startswith("Bearer")
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/metrics")).status_code == 401


async def test_a_right_over_one_thing_is_no_right_of_another_kind(served: Served) -> None:
    places = await _others(served)
    allowed: dict[str, set[str]] = {}
    for right in ("read", "steer", "resolve", "submit"):
        async with served.caller("ann", f"{right}:session:theirs") as http:
            listed = await http.get("/v1/openapi.json")
            for method, path, operation in _operations(listed.json()):
                if operation["x-over"] != "session" or method != "GET":
                    continue
                filled = _filled(path, places)
                # A stream has no end: its begin is enough.
                streams = "text/event-stream" in operation["responses"]["200"]["content"]
                asked = await (http.head if streams else http.get)(filled)
                if asked.status_code == 200:
                    allowed.setdefault(right, set()).add(path)
            decided = await http.post(of_pause(places["pause"], "delegate"), json={"to": "x"})
            assert (decided.status_code == 409) is (right == "resolve")
            submitted = await http.post(
                "/v1/tasks", json={"handler": "echo", "session_id": "theirs"}
            )
            assert (submitted.status_code == 201) is (right == "submit")
    assert set(allowed) == {"read"}


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
    http: httpx.AsyncClient, method: str, path: str, operation: dict[str, Any]
) -> httpx.Response:
    body: Any = None
    if "requestBody" in operation:
        body = BODIES.get(operation["operationId"], {})
    content = None if body is None else json.dumps(body)
    headers = {} if body is None else {"content-type": "application/json"}
    return await http.request(method, path, content=content, headers=headers)
