"""A host's filter of updates holds for what else says the same: results, errors, pauses."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.routes.tasks import pauses
from redis_state.gateway.showing.known_pauses import KnownPause, read_known
from redis_state.models import StateUpdate, UpdateType
from tests.support.http.gateway import at, ends, gateway_of, of_pause, paused

SECRET = "4-7-1-1"


def visible(caller: Principal, update: StateUpdate) -> StateUpdate | None:
    """Hide all from bob, and payloads of pauses from carl."""
    if caller.subject == "bob":
        return None
    if caller.subject == "carl" and update.update_type is UpdateType.CHECKPOINT:
        return update.model_copy(update={"content": update.content | {"payload": "hidden"}})
    return update


async def test_what_is_hidden_of_updates_is_hidden_of_tasks_and_pauses(
    store: RedisStateStore,
) -> None:
    handlers = ["echo", "fail", "ask"]
    async with gateway_of(store, handlers=handlers, visible=visible) as served:
        for handler, task_id in (("echo", "good"), ("fail", "bad"), ("ask", "asks")):
            await served.client.submit(handler, SECRET, session_id="s", task_id=task_id)
        await ends(served, "s", "good")
        await ends(served, "s", "bad")
        pause_id = await paused(served, "s", "asks")
        paths = (
            *(at("s", name, *rest) for name in ("good", "bad", "asks") for rest in ((), ("tree",))),
            *(at("s", name, "timeline") for name in ("good", "bad", "asks")),
            "/v1/tasks?session_id=s",
            "/v1/sessions/s/tree",
            "/v1/pauses",
            of_pause(pause_id),
        )
        texts: dict[str, list[str]] = {}
        seen: dict[str, Any] = {}
        for name in ("ann", "bob", "carl"):
            async with served.caller(name, "read:session:s") as http:
                answers = [await http.get(path) for path in paths]
                assert {each.status_code for each in answers} == {200}
                texts[name] = [each.text for each in answers]
                seen[name] = (await http.get("/v1/pauses")).json()["pauses"]
        secrets = (SECRET, "the handler's own reason", "refund?", "bob</b>")
        for secret in secrets:
            assert any(secret in text for text in texts["ann"]), secret
            assert not any(secret in text for text in texts["bob"]), secret
        # What is changed is shown as it was changed; a hidden pause is there, and can be decided.
        assert [each["payload"] for each in seen["carl"]] == ["hidden"]
        assert [each["pause_id"] for each in seen["bob"]] == [pause_id]
        assert any(SECRET in text for text in texts["carl"])


async def test_the_value_of_a_decision_that_comes_before_a_delegation_is_hidden_too(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_of(store, handlers=["ask"], visible=visible) as served:
        await served.client.submit("ask", session_id="s", task_id="t")
        pause_id = await paused(served, "s", "t")

        async def read_before_it_is_decided(*given: Any) -> KnownPause | None:
            known = await read_known(*given)
            assert known is not None
            assert known.is_open
            await served.client.resolve(pause_id, approved=True, value=SECRET, actor="ann")
            return known

        monkeypatch.setattr(pauses, "read_known", read_before_it_is_decided)
        async with served.caller("bob", "resolve:session:s") as bob:
            handed = await bob.post(f"{of_pause(pause_id)}/delegate", json={"to": "carl"})
    assert (handed.status_code, handed.json()["error"]["by"]) == (409, "ann")
    assert SECRET not in handed.text


async def test_the_value_of_a_decision_is_hidden_with_what_its_pause_asks(
    store: RedisStateStore,
) -> None:
    async with gateway_of(store, handlers=["ask"], visible=visible) as served:
        await served.client.submit("ask", session_id="s", task_id="t")
        path = of_pause(await paused(served, "s", "t"))
        scopes = ("read:session:s", "resolve:session:s")
        async with (
            served.caller("ann", *scopes) as ann,
            served.caller("bob", *scopes) as bob,
            served.caller("carl", *scopes) as carl,
        ):
            decided = await ann.post(f"{path}/decision", json={"approved": True, "value": SECRET})
            assert decided.status_code == 200
            found = [(await each.get(path)).json() for each in (ann, bob, carl)]
            late = await bob.post(f"{path}/decision", json={"approved": False})
            handed = await bob.post(f"{path}/delegate", json={"to": "carl"})
    name = found[0]["name"]
    assert name
    assert [each["name"] for each in found] == [name, "", name]
    assert [each["by"] for each in found] == ["ann"] * 3
    decisions = [each["decision"] for each in found]
    assert [each["approved"] for each in decisions] == [True] * 3
    assert [each.get("value") for each in decisions] == [SECRET, None, SECRET]
    for refused in (late, handed):
        assert (refused.status_code, refused.json()["error"]["by"]) == (409, "ann")
        assert SECRET not in refused.text
