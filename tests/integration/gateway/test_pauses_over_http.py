"""Pauses over HTTP: who decides them, by what, and what everybody else learns."""

from __future__ import annotations

import asyncio
import html
import re
import sys

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")

from redis_state.errors import BackendUnavailable
from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.gateway.routes.tasks import hooks
from redis_state.testing import eventually
from redis_state.worker import OpenPause, TaskClient
from tests.support.http.gateway import (
    Served,
    at,
    code_of,
    ends,
    links,
    of_pause,
    paused,
    stranger,
    tokens,
)

TOKEN = re.compile(r"\bs\.[A-Za-z0-9_-]{32}")


async def test_of_two_deciders_one_wins_and_the_other_learns_who_when_and_how(
    served: Served,
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    path = of_pause(await paused(served, "s", "t"), "decision")
    async with (
        served.caller("ann", "resolve:session:s") as ann,
        served.caller("bob", "resolve:tag:finance") as bob,
    ):
        answers = await asyncio.gather(
            ann.post(path, json={"approved": True, "value": "yes"}),
            bob.post(path, json={"approved": False, "value": "no"}),
        )
        assert sorted(each.status_code for each in answers) == [200, 409]
        won = next(each.json() for each in answers if each.status_code == 200)
        lost = next(each.json()["error"] for each in answers if each.status_code == 409)
        assert (lost["code"], lost["by"]) == ("already_resolved", won["by"])
        assert lost["decision"]["approved"] is won["approved"]
        assert lost["at"].startswith("20")
        assert won["task"] is None
        read = (await bob.get(path.removesuffix("/decision"))).json()
        assert (read["state"], read["by"]) == ("resolved", won["by"])
    state = await ends(served, "s", "t")
    assert (state.result["by"], state.result["approved"]) == (won["by"], won["approved"])


async def test_a_repeated_decision_is_the_same_for_its_caller_only(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    path = of_pause(await paused(served, "s", "t"), "decision")
    key, body = {"idempotency-key": "k"}, {"approved": True}
    async with served.caller("ann", "resolve:*") as ann, served.caller("bob", "resolve:*") as bob:
        first = await ann.post(path, json=body, headers=key)
        again = await ann.post(path, json=body, headers=key)
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.json()["by"] == again.json()["by"] == "ann"
        foreign = await bob.post(path, json=body, headers=key)
        assert (foreign.status_code, foreign.json()["error"]["by"]) == (409, "ann")
        other = await ann.post(path, json={"approved": False}, headers=key)
        assert other.status_code == 409


async def test_a_pause_that_is_decided_while_it_is_read_is_no_unknown_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    path = of_pause(await paused(served, "s", "t"))
    read, decided = TaskClient.pause, list[str]()

    async def late(client: TaskClient, token: str) -> OpenPause | None:
        await served.client.approve(token, actor="bob")
        decided.append(token)
        return await read(client, token)

    monkeypatch.setattr(TaskClient, "pause", late)
    async with served.caller("ann", "resolve:*") as ann:
        answered = await ann.get(path)
    assert len(decided) == 1
    assert (answered.status_code, answered.json().get("by")) == (200, "bob")


async def test_a_value_that_does_not_fit_the_form_decides_nothing(served: Served) -> None:
    await served.client.submit("fill_in", session_id="s", task_id="t")
    path = of_pause(await paused(served, "s", "t"), "decision")
    async with served.caller("ann", "resolve:*") as http:
        wrong = await http.post(path, json={"approved": True, "value": {"limit": 5000}})
        assert (wrong.status_code, code_of(wrong)) == (422, "invalid_decision")
        assert wrong.json()["error"]["errors"] == [{"path": "$.limit", "rule": "maximum 1000"}]
        right = await http.post(path, json={"approved": True, "value": {"limit": 5}})
        assert right.status_code == 200
    assert (await ends(served, "s", "t")).result == {"limit": 5}


async def test_a_gateway_without_the_extra_for_forms_says_so_in_its_log(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await served.client.submit("fill_in", session_id="s", task_id="t")
    path = of_pause(await paused(served, "s", "t"), "decision")
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    async with served.caller("ann", "resolve:*") as http:
        refused = await http.post(path, json={"approved": True, "value": {"limit": 5}})
    assert (refused.status_code, code_of(refused)) == (500, "config_error")
    assert "jsonschema" not in refused.text
    named = [line for line in caplog.messages if "redis_state[forms]" in line]
    assert len(named) == 1


async def test_pauses_are_listed_to_those_who_see_them(served: Served) -> None:
    for number, handler in enumerate(["ask", "fill_in", "ask"]):
        await served.client.submit(handler, session_id=f"s{number}", task_id="t")
        await paused(served, f"s{number}", "t")

    async def listed(*scopes: str, **params: str) -> list[str]:
        async with served.caller("ann", *scopes) as http:
            found = await http.get("/v1/pauses", params=params)
            assert found.status_code == 200, found.text
            return [each["session_id"] for each in found.json()["pauses"]]

    assert await listed("read:*") == ["s0", "s1", "s2"]
    assert await listed("resolve:tag:finance") == ["s0", "s2"]
    assert await listed("read:session:s1", "resolve:session:s2") == ["s1", "s2"]
    assert await listed("read:*", tag="limits") == ["s1"]
    assert await listed("read:*", session_id="s2") == ["s2"]
    assert await listed("read:*", older_than="3600") == []
    assert await listed("read:*", mine="true") == []
    assert await listed("resolve:*", mine="true") == ["s0", "s1", "s2"]
    async with served.caller("ann", "read:*") as http:
        first = (await http.get("/v1/pauses", params={"limit": "2"})).json()
        rest = await http.get("/v1/pauses", params={"limit": "2", "after": first["cursor"]})
        assert [each["session_id"] for each in rest.json()["pauses"]] == ["s2"]
        assert rest.json()["cursor"] is None
        bad = await http.get("/v1/pauses", params={"after": "AAAA"})
        assert bad.status_code == 400
    assert await listed("resolve:tag:finance", session_id="s1") == []
    # As other lists: who may see none of what is listed is refused.
    for scope in ("steer:*", "read:stream:s0", "write:stream:s/*"):
        async with served.caller("ann", scope) as http:
            for path in ("/v1/pauses", "/v1/sessions", "/v1/tasks", "/v1/queues"):
                assert (await http.get(path)).status_code == 403, (scope, path)
    async with served.caller("ann", "read:session:s1") as http:
        for path in ("/v1/pauses", "/v1/tasks"):
            assert (await http.get(path, params={"session_id": "s2"})).status_code == 403, path


async def test_no_answer_holds_a_token_and_a_token_decides_nothing(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    (pause,) = await served.client.pauses("s")
    token = pause.token
    assert token is not None
    async with served.caller("root", "admin:*") as http:
        paths = [at("s", "t"), at("s", "t", "timeline"), at("s", "t", "tree"), "/v1/pauses"]
        paths += [of_pause(pause_id), "/v1/tasks", "/v1/sessions/s/tree", at("s", "t", "snapshots")]
        for path in paths:
            text = (await http.get(path)).text
            assert token not in text, path
            assert not TOKEN.search(text), path
        rows = (await http.get(at("s", "t", "timeline"))).json()["rows"]
        assert any("token=[token]" in str(row["content"]) for row in rows)
        for name in (token, token.rpartition(".")[2], pause_id.rpartition(":")[2]):
            tried = await http.post(of_pause(name, "decision"), json={"approved": True})
            assert (tried.status_code, token in tried.text) == (404, False)


async def test_a_link_shows_a_page_and_decides_once_as_the_one_it_was_made_for(
    served: Served,
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    link = links.mint(await paused(served, "s", "t"), actor="bob@example.com")
    async with stranger(served.app) as http:
        for _ in range(2):
            page = await http.get(f"/v1/hooks/{link}")
            assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
            assert "&lt;b&gt;bob&lt;/b&gt;" in page.text
            assert "<b>" not in page.text
            assert link not in page.text
            assert "script" not in page.text
        state = await served.client.get("s", "t")
        assert state is not None
        assert state.status.value == "PAUSED"
        done = await http.post(f"/v1/hooks/{link}", data={"decision": "approve", "value": "fine"})
        assert (done.status_code, "approved" in done.text) == (200, True)
        state = await ends(served, "s", "t")
        assert state.result == {"approved": True, "value": "fine", "by": "bob@example.com"}
        late = await http.post(f"/v1/hooks/{link}", data={"decision": "reject"})
        assert (late.status_code, "approved already" in late.text) == (409, True)
        replayed = await http.post(f"/v1/hooks/{link}", json={"approved": False})
        assert (replayed.status_code, replayed.json()["error"]["approved"]) == (409, True)
        assert "by" not in replayed.json()["error"]
        assert (await http.get(f"/v1/hooks/{link}")).status_code == 409


async def test_links_are_counted_one_by_one_and_what_is_none_by_its_address(
    served: Served,
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    few = GatewayLimits(requests_per_s=0.001, burst=3)
    app = create_gateway(served.store, auth=tokens, hooks=links, limits=few)
    async with stranger(app) as http:
        for status in (404, 404, 404, 429):
            wrong = await http.get(f"/v1/hooks/{links.mint(pause_id, actor='bob')}x")
            assert wrong.status_code == status
        assert int(wrong.headers["retry-after"]) > 1
        assert "Try again later" in wrong.text
        # All people may come from the address of one proxy.
        for actor in ("bob", "cid"):
            link = links.mint(pause_id, actor=actor)
            seen = [(await http.get(f"/v1/hooks/{link}")).status_code for _ in range(4)]
            assert seen == [200, 200, 200, 429]
    await app.aclose()


async def test_a_link_may_be_for_one_way_only_and_for_a_pause_that_is_not_shown(
    served: Served,
) -> None:
    await served.client.submit("hidden", session_id="s", task_id="t")

    async def named() -> str | None:
        texts = [str(each.content) for each in await served.store.list_updates("s", task_id="t")]
        return next((found[1] for text in texts if (found := re.search(r"id (\S+?)'", text))), None)

    pause_id = await eventually(named, "the handler has named the id")
    assert pause_id is not None
    link = links.mint(pause_id, actor="bob", decision="reject")
    async with stranger(served.app) as http, served.caller("root", "admin:*") as root:
        refused = await http.post(f"/v1/hooks/{link}", json={"approved": True})
        assert refused.status_code == 403
        assert (await root.get(of_pause(pause_id))).status_code == 404
        done = await http.post(f"/v1/hooks/{link}", json={"approved": False})
        assert done.json() == {"state": "resolved", "approved": False}
    assert (await ends(served, "s", "t")).result == "bob"


async def test_a_form_is_filled_in_on_the_page(served: Served) -> None:
    await served.client.submit("fill_in", session_id="s", task_id="t")
    link = links.mint(await paused(served, "s", "t"), actor="bob")

    async with stranger(served.app) as http:

        async def post(value: str, decision: str = "approve") -> httpx.Response:
            data = {"decision": decision, "value": value}
            return await http.post(f"/v1/hooks/{link}", data=data)

        assert "maximum" in (await http.get(f"/v1/hooks/{link}")).text
        for value, decision, words in (
            ("<no json>", "approve", "is to be JSON"),
            ('{"limit": 0}', "approve", "does not fit: "),
            ("\r\nzwölf", "x", "Choose to approve"),
        ):
            wrong = await post(value, decision)
            assert (wrong.status_code, words in wrong.text) == (422, True)
            # The form is there again, with what was written. A browser drops the first line break.
            assert f">\n{html.escape(value)}</textarea>" in wrong.text.replace("&#34;", "&quot;")
        assert (await http.post(f"/v1/hooks/{link}", content=b"x")).status_code == 415
        assert (await post('{"limit": 7}')).status_code == 200
    assert (await ends(served, "s", "t")).result == {"limit": 7}


async def test_a_page_of_a_link_has_letters_of_all_alphabets(served: Served) -> None:
    payload = {"who": "Ольга Ü", "half": "\ud800"}

    await served.client.submit("asks_about", payload, session_id="s", task_id="t")
    link = links.mint(await paused(served, "s", "t"), actor="bob")
    async with stranger(served.app) as http:
        page = await http.get(f"/v1/hooks/{link}")
        assert page.status_code == 200
        assert "Ольга Ü" in page.text
        assert "\\u" not in page.text


async def test_a_page_of_a_link_stays_a_page_in_an_outage(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    link = links.mint(await paused(served, "s", "t"), actor="bob")
    asked: list[str] = []

    async def away(*_: object, **__: object) -> None:
        asked.append("asked")
        raise BackendUnavailable("redis://secret.test", "it went away")

    monkeypatch.setattr(hooks, "read_known", away)
    written = {"decision": "approve", "value": "long <considered>"}
    async with stranger(served.app) as http:
        shown = await http.get(f"/v1/hooks/{link}")
        sent = await http.post(f"/v1/hooks/{link}", data=written)
        program = await http.post(f"/v1/hooks/{link}", json={"approved": True})
    assert len(asked) == 3
    for page in (shown, sent):
        assert (page.status_code, page.headers["content-type"].split(";")[0]) == (503, "text/html")
        assert "Try again later." in page.text
        assert "secret.test" not in page.text
    # What was typed is still there.
    assert "long &lt;considered&gt;" in sent.text
    assert (program.status_code, program.json()["error"]["code"]) == (503, "unavailable")


async def test_a_link_of_one_of_several_says_what_became_of_its_vote(served: Served) -> None:
    await served.client.submit("vote", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    link = links.mint(pause_id, actor="bob")
    async with stranger(served.app) as http:
        refused = await http.post(f"/v1/hooks/{link}", data={"decision": "approve", "value": "x"})
        assert (refused.status_code, "Others decide this." in refused.text) == (409, True)
        assert "<form" not in refused.text


async def test_a_vote_is_handed_on_by_its_holder(served: Served) -> None:
    await served.client.submit("vote", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    decision, delegate = of_pause(pause_id, "decision"), of_pause(pause_id, "delegate")
    async with served.caller("ann", "resolve:*") as ann, served.caller("bob", "resolve:*") as bob:
        nobody = await bob.post(decision, json={"approved": True})
        assert (nobody.status_code, code_of(nobody)) == (409, "not_a_decider")
        handed = await ann.post(delegate, json={"to": "bob"})
        assert handed.json() == {"pause_id": pause_id, "by": "ann", "to": "bob"}
        assert (await bob.post(decision, json={"approved": True})).status_code == 200
        late = await bob.post(delegate, json={"to": "cid"})
        assert (late.status_code, late.json()["error"]["by"]) == (409, "bob")
    assert (await ends(served, "s", "t")).result == "bob"
