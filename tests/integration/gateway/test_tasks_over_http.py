"""Tasks over HTTP: submit, find, read, steer, cancel, retry, rerun, fork, bulk."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")


from redis_state.testing import eventually
from tests.support.http.gateway import Served, at, code_of, ends, paused
from tests.support.processes.pools import queue_of
from tests.support.tasks.crash_states import send

ODD_IDS = [
    *("a/b", "..", ".", "", "é\N{SNOWMAN}", "a b", "%2F", "a%", "?x=1#y", "a:b", "s\u0085"),
    *("+", "a\\b", "{s}", "x" * 300, "\ud800"),
]


async def test_a_task_is_submitted_once_under_its_key_and_read_to_its_result(
    served: Served,
) -> None:
    async with served.caller("ann", "submit:session:s", "read:session:s") as http:
        body = {"handler": "echo", "session_id": "s", "input": [1], "attributes": {"tenant": "a"}}
        first = await http.post("/v1/tasks", json=body, headers={"idempotency-key": "t-1"})
        again = await http.post("/v1/tasks", json=body, headers={"idempotency-key": "t-1"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == {"session_id": "s", "task_id": "t-1", "created": True}
        assert again.json()["created"] is False
        for other in ({"input": [2]}, {"handler": "fail"}):
            refused = await http.post(
                "/v1/tasks", json=body | other, headers={"idempotency-key": "t-1"}
            )
            assert (refused.status_code, code_of(refused)) == (409, "key_reused")
            named = await http.post("/v1/tasks", json=body | other | {"task_id": "t-1"})
            assert (named.status_code, code_of(named)) == (409, "key_reused")
            assert named.json()["error"]["key"] == "t-1"
        named = await http.post("/v1/tasks", json=body | {"task_id": "t-1"})
        assert (named.status_code, named.json()["created"]) == (200, False)
        await ends(served, "s", "t-1")
        task = (await http.get(at("s", "t-1"))).json()
        assert (task["status"], task["result"], task["handler"]) == ("COMPLETE", [1], "echo")
        assert task["attributes"] == {"tenant": "a"}
        found = (await http.get("/v1/tasks", params={"attribute": "tenant=a"})).json()
        assert [each["task_id"] for each in found["tasks"]] == ["t-1"]
        listed = (await http.get("/v1/sessions")).json()["sessions"]
        assert [(each["session_id"], each["counts"]["COMPLETE"]) for each in listed] == [("s", 1)]


async def test_a_key_belongs_to_all_that_was_chosen_with_it(served: Served) -> None:
    async with served.caller("ann", "submit:session:s", "read:session:s") as http:

        async def post(path: str, key: str, body: dict[str, Any]) -> str | int:
            sent = await http.post(path, json=body, headers={"idempotency-key": key})
            return sent.status_code if sent.is_success else code_of(sent)

        body = {"handler": "echo", "session_id": "s", "input": 1, "attributes": {"b": 1, "a": 2}}
        later = body | {"delay_s": 600, "limit_key": "acme", "priority": 3}
        assert await post("/v1/tasks", "k", later) == 201
        same = {"attributes": {"a": 2, "b": 1}, "delay_s": 600.0, "on_busy": None}
        assert await post("/v1/tasks", "k", later | same) == 200
        others: tuple[dict[str, Any], ...] = (
            {"queue": "another"},
            {"attributes": {}},
            {"delay_s": 601},
            {"delay_s": None, "at": "2030-01-01T00:00:00Z"},
            {"limit_key": None},
            {"priority": 0},
            {"limit_key": None, "in_turn": True},
        )
        for other in others:
            assert await post("/v1/tasks", "k", later | other) == "key_reused", other
        at_noon = body | {"at": "2030-01-01T12:00:00Z"}
        assert await post("/v1/tasks", "noon", at_noon) == 201
        assert await post("/v1/tasks", "noon", body | {"at": "2030-01-01T14:00:00+02:00"}) == 200
        # One that was not made under a key is compared by its handler and its input.
        await served.client.submit("echo", 1, session_id="s", task_id="plain")
        assert await post("/v1/tasks", "plain", body) == 200
        await ends(served, "s", "plain")
        for way in ("rerun", "fork"):
            path = at("s", "plain", way)
            chosen: dict[str, Any] = {"queue": "elsewhere", "attributes": {"n": 1}}
            for _ in range(2):
                assert await post(path, way, chosen) == 201
            for differing in ({}, {"queue": "elsewhere"}, chosen | {"attributes": {"n": 2}}):
                assert await post(path, way, differing) == "key_reused", (way, differing)


async def test_of_concurrent_submits_under_a_key_one_has_created_the_task(served: Served) -> None:
    async with served.caller("ann", "submit:session:s") as http:
        body = {"handler": "echo", "session_id": "s", "input": 1}
        for key in map(str, range(5)):
            made = await asyncio.gather(
                *(
                    http.post("/v1/tasks", json=body, headers={"idempotency-key": key})
                    for _ in range(8)
                )
            )
            assert sorted(each.status_code for each in made) == [*(200,) * 7, 201]
            assert [each.json()["created"] for each in made].count(True) == 1


async def test_a_damaged_record_is_an_error_that_is_not_over_soon(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await served.client.queues.pause(queue_of(served.store.settings))
    await served.client.submit("echo", session_id="s", task_id="t")
    key = served.store.tasks.keys("s", "t").task
    await send(served.store, "HSET", key, "document", "x")
    async with served.caller("ann", "read:*", "steer:*") as http:
        for answered in (
            await http.get(at("s", "t")),
            await http.post(at("s", "t", "cancel"), json={}),
            await http.post(at("s", "t", "steer"), json={"type": "PAUSE"}),
        ):
            assert (answered.status_code, code_of(answered)) == (500, "corrupt_state")
            assert "retry-after" not in answered.headers
            assert key not in answered.text
    assert key in caplog.text
    assert await served.store.list_steering("s") == []


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_any_id_is_read_from_the_path_as_it_was_given(served: Served, odd: str) -> None:
    await served.client.submit("echo", "x", session_id=odd, task_id=odd or "t")
    async with served.caller("ann", f"read:session:{odd}", f"steer:session:{odd}") as http:
        read = await http.get(at(odd, odd or "t"))
        assert read.status_code == 200, read.text
        assert (read.json()["session_id"], read.json()["task_id"]) == (odd, odd or "t")
        tree = await http.get(at(odd, odd or "t", "tree"))
        assert tree.json()["task_id"] == (odd or "t")


@pytest.mark.parametrize("half", ["\ud800", "a\udfffb", "\udc00\ud800"])
async def test_half_of_a_surrogate_pair_is_an_id_in_each_body(served: Served, half: str) -> None:
    async def post(path: str, body: dict[str, Any]) -> httpx.Response:
        text = json.dumps(body)
        return await http.post(path, content=text, headers={"content-type": "application/json"})

    async with served.caller("root", "admin:*") as http:
        sent = {"handler": "fail", "session_id": half, "task_id": half}
        assert [(await post("/v1/tasks", sent)).status_code for _ in range(2)] == [201, 200]
        await ends(served, half, half)
        again = {"new_session_id": half, "new_task_id": f"{half}2"}
        made = await post(at(half, half, "rerun"), again)
        assert made.status_code == 201, made.text
        assert made.json()["task_id"] == f"{half}2"
        await ends(served, half, f"{half}2")
        listed = await http.get(f"/v1/tasks?session_id={quote(half, errors='surrogatepass')}")
        assert {each["session_id"] for each in listed.json()["tasks"]} == {half}
        wrong = await http.get("/v1/tasks?session_id=%FF")
        assert (wrong.status_code, code_of(wrong)) == (422, "invalid_field")
        found = await post("/v1/bulk", {"action": "retry", "filter": {"session_id": half}})
        assert found.status_code == 200, found.text
        for name in ("session_id", "task_id"):
            long = await post("/v1/tasks", sent | {name: half * 1_001})
            assert (long.status_code, code_of(long)) == (422, "invalid")


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_any_id_is_given_in_a_body(served: Served, odd: str) -> None:
    task, new, fork = odd or "t", f"{odd}-new", f"{odd}-fork"
    kind = {"content-type": "application/json"}
    async with served.caller("root", "admin:*") as http:

        async def post(path: str, **body: Any) -> httpx.Response:
            # httpx writes no half of a surrogate pair, and JSON has an escape for it.
            return await http.post(path, content=json.dumps(body).encode(), headers=kind)

        made = await post("/v1/tasks", handler="echo", session_id=odd, task_id=task, input=1)
        assert made.status_code == 201, made.text
        assert made.json() == {"session_id": odd, "task_id": task, "created": True}
        await ends(served, odd, task)
        rerun = await post(at(odd, task, "rerun"), new_task_id=new, new_session_id=odd)
        assert rerun.status_code == 201, rerun.text
        forked = await post(at(odd, task, "fork"), new_task_id=fork)
        assert forked.json()["task_id"] == fork, forked.text
        for each in (task, new, fork):
            await ends(served, odd, each)
        for wrong in ("x" * 1_001, 1):
            refused = await post("/v1/tasks", handler="echo", session_id=wrong)
            assert (refused.status_code, code_of(refused)) == (422, "invalid")


async def test_tasks_are_found_and_changed_by_the_times_of_their_ends(served: Served) -> None:
    for task in ("late", "early"):
        await served.client.submit("fail", session_id="s", task_id=task, delay=timedelta(days=1))
    for task in ("early", "late"):
        await served.client.cancel("s", task)
    (late, _) = (await served.client.find(ended_after=datetime(2020, 1, 1, tzinfo=UTC))).tasks
    since = late.updated_at.isoformat()
    async with served.caller("root", "admin:*") as http:

        async def find(**params: str) -> Any:
            return await http.get("/v1/tasks", params=params)

        async def names(**params: str) -> list[str]:
            return [each["task_id"] for each in (await find(**params)).json()["tasks"]]

        assert await names() == ["early", "late"]
        assert await names(ended_after="2020-01-01T00:00:00Z") == ["late", "early"]
        assert await names(ended_after=since) == ["late"]
        assert await names(ended_before=since, session_id="s") == ["early"]
        oldest = await names(ended_after="2020-01-01T00:00:00Z", oldest_first="true")
        assert oldest == ["early", "late"]
        page = (await find(limit="1", ended_after="2020-01-01T00:00:00Z")).json()
        foreign = await find(limit="1", after=page["cursor"])
        assert (foreign.status_code, code_of(foreign)) == (400, "invalid_field")
        for wrong in ({"ended_after": "soon"}, {"ended_after": since, "status": "PENDING"}):
            assert (await find(**wrong)).status_code == 422
        body = {"action": "retry", "filter": {"ended_before": since}, "dry_run": False}
        report = (await http.post("/v1/bulk", json=body)).json()
        assert [(each["task_id"], each["outcome"]) for each in report["items"]] == [
            ("early", "done")
        ]
        described = (await http.get("/v1/openapi.json")).json()["paths"]["/v1/tasks"]["get"]
        assert {"ended_after", "ended_before"} <= {each["name"] for each in described["parameters"]}


async def test_pages_of_tasks_follow_their_cursor_and_a_foreign_cursor_is_400(
    served: Served,
) -> None:
    for number in range(5):
        await served.client.submit("echo", number, session_id="s", task_id=f"t{number}")
    async with served.caller("root", "admin:*") as http:
        names: list[str] = []
        after: str | None = None
        while True:
            params = {"limit": "2", "handler": "echo"} | ({"after": after} if after else {})
            page = (await http.get("/v1/tasks", params=params)).json()
            names += [each["task_id"] for each in page["tasks"]]
            after = page["cursor"]
            if after is None:
                break
        assert sorted(names) == [f"t{number}" for number in range(5)]
        wrong = await http.get("/v1/tasks", params={"after": "garbage"})
        assert (wrong.status_code, code_of(wrong)) == (400, "invalid_field")


async def test_a_failed_task_is_retried_rerun_and_forked(served: Served) -> None:
    await served.client.submit("fail", session_id="s", task_id="t")
    await ends(served, "s", "t")
    async with served.caller("ann", "read:*", "steer:*", "submit:*") as http:
        timeline = (await http.get(at("s", "t", "timeline"))).json()
        assert [step["step"] for step in timeline["steps"]] == ["before#1"]
        assert {row["type"] for row in timeline["rows"]} >= {"STATUS_CHANGE"}
        assert timeline["at_end"]
        step = (await http.get(at("s", "t", "snapshots", "1"))).json()
        assert (step["step"], step["result"]) == ("before#1", None)
        assert (await http.get(at("s", "t", "snapshots", "2"))).status_code == 404
        assert (await http.get(at("s", "t", "snapshots", "x"))).status_code == 404
        key = {"idempotency-key": "r"}
        retried = await http.post(at("s", "t", "retry"), json={}, headers=key)
        assert retried.status_code == 200
        assert retried.json()["status"] in {"PENDING", "RUNNING", "FAILED"}
        await ends(served, "s", "t")
        repeated = await http.post(at("s", "t", "retry"), json={}, headers=key)
        assert repeated.status_code == 200
        view = await served.client.inspect("s", "t")
        assert view is not None
        assert view.retries == 1
        rerun = await http.post(at("s", "t", "rerun"), json={"new_session_id": "s2"})
        assert (rerun.status_code, rerun.json()["session_id"]) == (201, "s2")
        for _ in range(2):
            forked = await http.post(
                at("s", "t", "fork"), json={"before": "before"}, headers={"idempotency-key": "f"}
            )
            assert forked.json() == {"session_id": "s", "task_id": "f"}
            assert forked.status_code == 201
        for place, body in (
            (at("s", "f", "fork"), {}),
            (at("s", "t", "fork"), {}),
            (at("s", "t", "fork"), {"before": "after"}),
            (at("s", "t", "rerun"), {}),
        ):
            other = await http.post(place, json=body, headers={"idempotency-key": "f"})
            assert (other.status_code, code_of(other)) == (409, "key_reused"), (place, body)
        # The entry by another of its names is the same one.
        entry = (await http.get(at("s", "f"))).json()["forked_from"]["before"]
        same = await http.post(
            at("s", "t", "fork"), json={"before": entry}, headers={"idempotency-key": "f"}
        )
        assert same.status_code == 201
        made = (await http.get(at("s", "f"))).json()["forked_from"]
        assert made["task_id"] == "t"
        nothing = await http.post(at("s", "t", "fork"), json={"before": "no such step"})
        assert (nothing.status_code, nothing.json()["error"]["field"]) == (422, "before")


async def test_steering_and_cancelling_say_who_did_it(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    await paused(served, "s", "t")
    async with served.caller("ann", "steer:session:s") as http:
        body = {"type": "USER_MESSAGE", "payload": {"text": "hello"}}
        sent = await http.post(at("s", "t", "steer"), json=body, headers={"idempotency-key": "e"})
        assert (sent.status_code, sent.json()["source"]) == (202, "ann")
        again = await http.post(at("s", "t", "steer"), json=body, headers={"idempotency-key": "e"})
        assert again.json()["event_id"] == sent.json()["event_id"]
        for other_body in (
            {"type": "USER_MESSAGE", "payload": {"text": "no, go on"}},
            {"type": "REDIRECT", "payload": {"instruction": "hello"}},
        ):
            refused = await http.post(
                at("s", "t", "steer"), json=other_body, headers={"idempotency-key": "e"}
            )
            assert (refused.status_code, code_of(refused)) == (409, "key_reused")
            assert refused.json()["error"]["what"] == "event"
        async with served.caller("bob", "steer:session:s") as other:
            his = await other.post(
                at("s", "t", "steer"), json=body, headers={"idempotency-key": "e"}
            )
        # The key of one caller is not that of another: neither event takes the other's place.
        assert (his.json()["source"], his.json()["event_id"] == sent.json()["event_id"]) == (
            "bob",
            False,
        )
        forged = await http.post(at("s", "t", "steer"), json=body | {"source": "root"})
        assert forged.status_code == 422
        decided = await http.post(
            at("s", "t", "steer"), json={"type": "APPROVE", "payload": {"resume_token": "x"}}
        )
        assert (decided.status_code, decided.json()["error"]["field"]) == (422, "type")
        unknown = await http.post(at("s", "nope", "steer"), json=body)
        assert unknown.status_code == 404
        cancelled = await http.post(at("s", "t", "cancel"), json={"reason": "enough"})
        assert cancelled.status_code == 202
        assert (await ends(served, "s", "t")).status.value == "CANCELLED"
        late = await http.post(at("s", "t", "cancel"), json={})
        assert (late.status_code, late.json()["error"]["current"]) == (409, "CANCELLED")
        assert (await http.post(at("s", "nope", "cancel"), json={})).status_code == 404
    events = await served.store.list_steering("s")
    assert len([event for event in events if event.event_type.value == "USER_MESSAGE"]) == 2
    assert {event.source for event in events} == {"ann", "bob"} | {
        event.source for event in events if event.event_type.value == "CANCEL"
    }


async def test_a_tree_shows_parents_and_children(served: Served) -> None:
    await served.client.submit("parent", session_id="s", task_id="t")
    await ends(served, "s", "t")
    async with served.caller("ann", "read:session:s") as http:
        found = (await http.get("/v1/sessions/s/tree")).json()
        assert found["incomplete"] is False
        trees = found["trees"]
        assert [tree["task_id"] for tree in trees] == ["t"]
        assert [child["status"] for child in trees[0]["children"]] == ["COMPLETE"]
        assert (await http.get(at("s", "t", "tree"))).json() == trees[0] | {"incomplete": False}


async def test_bulk_changes_what_matches_with_an_outcome_for_each(served: Served) -> None:
    for number in range(3):
        await served.client.submit("fail", session_id="s", task_id=f"t{number}")
        await ends(served, "s", f"t{number}")
    async with served.caller("ann", "admin:session:s") as http:
        body = {"action": "retry", "filter": {"session_id": "s", "handler": "fail"}}
        dry = (await http.post("/v1/bulk", json=body)).json()
        assert (dry["dry_run"], dry["counts"]["would"]) == (True, 3)
        wet = body | {"dry_run": False, "limit": 2}
        done = (await http.post("/v1/bulk", json=wet)).json()
        assert (done["counts"]["done"], done["more"]) == (2, True)
        assert {item["outcome"] for item in done["items"]} == {"done"}
        many = await http.post("/v1/bulk", json=body | {"limit": 501})
        assert many.status_code == 422
        wide = await http.post("/v1/bulk", json={"action": "retry", "filter": {}})
        assert wide.status_code == 403


async def test_a_bulk_fork_with_another_entry_under_its_key_is_refused(served: Served) -> None:
    await served.client.submit("echo", session_id="s", task_id="t")
    await ends(served, "s", "t")
    async with served.caller("ann", "admin:session:s") as http:
        body: dict[str, Any] = {"action": "fork", "filter": {"session_id": "s"}, "dry_run": False}
        key = {"idempotency-key": "k"}
        for _ in range(2):
            done = await http.post("/v1/bulk", json=body, headers=key)
            assert done.json()["counts"]["done"] == 1
        other = await http.post("/v1/bulk", json=body | {"before": "a"}, headers=key)
        assert (other.status_code, code_of(other)) == (409, "key_reused")


async def test_a_busy_session_refuses_with_the_task_in_the_way(served: Served) -> None:
    async with served.caller("ann", "admin:session:s") as http:
        body = {"handler": "ask", "session_id": "s", "on_busy": "reject", "delay_s": 600}
        first = (await http.post("/v1/tasks", json=body)).json()
        second = await http.post("/v1/tasks", json=body)
        assert (second.status_code, code_of(second)) == (409, "task_in_progress")
        assert second.json()["error"]["task_id"] == first["task_id"]
    async with served.caller("eve", "submit:session:s") as http:
        for way in ("interrupt", "replace"):
            refused = await http.post("/v1/tasks", json=body | {"on_busy": way})
            assert refused.status_code == 403
    state = await served.client.get("s", first["task_id"])
    assert state is not None
    assert not state.status.is_terminal


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"handler": "echo"}', 422),
        (b'{"handler": "echo", "session_id": "s", "by": "root"}', 422),
        (b'{"handler": "echo", "session_id": "s", "delay_s": -1}', 422),
        (b'{"handler": "echo", "session_id": "s", "attributes": {"a b": 1}}', 422),
        (b"[]", 422),
        (b'{"handler": "echo", "session_id": "s", "input": "%s"}' % (b"x" * 70_000), 413),
    ],
)
async def test_a_wrong_body_is_told_by_its_field_and_does_nothing(
    served: Served, body: bytes, status: int
) -> None:
    async with served.caller("ann", "admin:*") as http:
        headers = {"content-type": "application/json"}
        refused = await http.post("/v1/tasks", content=body, headers=headers)
        assert refused.status_code == status, refused.text
        assert set(refused.json()) == {"error"}
        assert (await http.get("/v1/tasks")).json()["tasks"] == []
        text = await http.post("/v1/tasks", content=b"x", headers={"content-type": "text/plain"})
        assert text.status_code == 415


async def test_queues_workers_and_schedules(served: Served) -> None:
    async with served.caller("root", "admin:*") as http:

        async def workers() -> list[str]:
            listed = (await http.get("/v1/workers")).json()["workers"]
            return [queue for each in listed for queue in each["queues"]]

        (queue,) = await eventually(workers, "a worker is listed")
        assert queue in {each["name"] for each in (await http.get("/v1/queues")).json()["queues"]}
        assert (await http.post(f"/v1/queues/{queue}/pause", json={})).json()["paused"] is True
        assert (await http.post(f"/v1/queues/{queue}/resume", json={})).json()["paused"] is False
        body = {"schedule_id": "a/b", "handler": "echo", "session_id": "s", "cron": "0 3 * * *"}
        saved = await http.post("/v1/schedules", json=body)
        assert (saved.status_code, saved.json()["cron"]) == (200, "0 3 * * *")
        one = "/v1/schedules/a%2Fb"
        assert (await http.post(f"{one}/pause", json={})).json()["paused"] is True
        assert (await http.post(f"{one}/resume", json={})).json()["paused"] is False
        key = {"idempotency-key": "k"}
        made = [await http.post(f"{one}/trigger", json={}, headers=key) for _ in range(2)]
        assert [each.status_code for each in made] == [201, 201]
        assert made[0].json() == made[1].json()
        # What cancels other tasks needs the right to.
        replacing = body | {"schedule_id": "r", "on_busy": "replace"}
        assert (await http.post("/v1/schedules", json=replacing)).status_code == 200
        async with (
            served.caller("bob", "submit:*") as bob,
            served.caller("eve", "submit:*", "steer:*") as eve,
        ):
            codes = [
                (await each.post(f"/v1/schedules/{name}/trigger", json={})).status_code
                for each, name in ((bob, "a%2Fb"), (bob, "r"), (eve, "r"))
            ]
        assert codes == [201, 403, 201]
        assert (await http.delete("/v1/schedules/r")).json() == {"deleted": True}
        assert (await http.get(one)).json()["schedule_id"] == "a/b"
        listed = (await http.get("/v1/schedules")).json()["schedules"]
        assert [each["schedule_id"] for each in listed] == ["a/b"]
        wrong = await http.post("/v1/schedules", json=body | {"cron": "nonsense"})
        assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "cron")
        stale = await http.post("/v1/schedules", json=body | {"expected": "other"})
        assert stale.status_code == 409
        assert (await http.delete(one)).json() == {"deleted": True}
        assert (await http.get(one)).status_code == 404
