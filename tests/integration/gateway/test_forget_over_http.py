"""DELETE of a session: who may, what it answers, what the log says of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.archive.working import WorkingArchivers
from redis_state.gateway import GatewayLimits
from tests.support.erasure import nothing_is_left
from tests.support.http.gateway import Served, gateway_of, paused

pytestmark = pytest.mark.role("any", why="it reads the names of all keys")
SESSION = "to-be-erased"


@pytest.mark.parametrize(
    "scopes",
    [
        (),
        ("read:*", "steer:*", "submit:*", "resolve:*", "write:*"),
        ("admin:session:another", f"steer:session:{SESSION}", f"admin:tag:{SESSION}"),
    ],
)
async def test_only_an_admin_of_the_session_may(served: Served, scopes: tuple[str, ...]) -> None:
    await served.client.submit("ask", session_id=SESSION, task_id="t")
    await paused(served, SESSION, "t")
    async with served.caller("eve", *scopes) as http:
        for query in ("", "?dry_run=true"):
            assert (await http.delete(f"/v1/sessions/{SESSION}{query}")).status_code == 403
    assert len(await served.store.list_tasks(SESSION)) == 1


async def test_an_admin_counts_and_erases_and_is_named_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await served.client.submit("ask", "a secret input", session_id=SESSION, task_id="t")
    await paused(served, SESSION, "t")
    async with served.caller("ann", f"admin:session:{SESSION}") as http:
        counted = (await http.delete(f"/v1/sessions/{SESSION}?dry_run=true")).json()
        assert (counted["dry_run"], counted["redis"]["tasks"]) == (True, 1)
        assert len(await served.store.list_tasks(SESSION)) == 1
        with caplog.at_level(logging.INFO, "redis_state.erasure.eraser"):
            answered = await http.delete(f"/v1/sessions/{SESSION}")
        assert answered.status_code == 200
        report = answered.json()
        assert (report["cancelled"], report["complete"], report["failed"]) == (1, True, {})
        assert (await http.delete(f"/v1/sessions/{SESSION}?running=maybe")).status_code == 422
    (said,) = [r.getMessage() for r in caplog.records if r.name == "redis_state.erasure.eraser"]
    assert "by 'ann'" in said
    assert SESSION not in said
    assert "secret" not in said
    await nothing_is_left(served.store, SESSION)


async def test_only_who_may_do_everything_erases_a_user_who_is_named_exactly(
    served: Served,
) -> None:
    await served.client.submit("ask", session_id=SESSION, task_id="t", attributes={"user": True})
    await paused(served, SESSION, "t")
    path = "/v1/users/forget"
    for scopes in (
        ["admin:session:*", f"admin:session:{SESSION}", "admin:tag:finance"],
        ["read:*"],
    ):
        async with served.caller("eve", *scopes) as http:
            assert (await http.post(path, json={"user": True})).status_code == 403
    async with served.caller("ann", "admin:*") as http:
        # Neither a number nor a text is taken for another value.
        unfit: list[Any] = [1.0, None, [], {"a": 1}, "x" * 300]
        for odd in unfit:
            assert (await http.post(path, json={"user": odd})).status_code == 422, odd
        for other in (1, "true"):
            answered = await http.post(path, json={"user": other})
            assert (answered.status_code, answered.json()["sessions"]) == (200, []), other
        assert len(await served.store.list_tasks(SESSION)) == 1
        counted = (await http.post(path, json={"user": True, "dry_run": True})).json()
        assert (counted["sessions"], counted["redis"]["tasks"]) == ([SESSION], 1)
        report = (await http.post(path, json={"user": True})).json()
        assert (report["sessions"], report["cancelled"], report["complete"]) == ([SESSION], 1, True)
    await nothing_is_left(served.store, SESSION)


async def test_without_the_archives_address_an_erasure_is_a_conflict(served: Served) -> None:
    await served.client.submit("ask", session_id=SESSION, task_id="t", attributes={"user": "u"})
    await paused(served, SESSION, "t")
    path, body = f"/v1/sessions/{SESSION}", {"user": "u"}
    async with served.caller("ann", "admin:*") as http, WorkingArchivers(served.store) as signs:
        await signs.sign()
        for refused in (await http.delete(path), await http.post("/v1/users/forget", json=body)):
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "erasure_out_of_reach"
        counted = (await http.delete(f"{path}?dry_run=true")).json()
        assert (list(counted["failed"]), counted["complete"]) == (["archive"], False)
        assert len(await served.store.list_tasks(SESSION)) == 1
        left = await http.post("/v1/users/forget", json=body | {"leave_unset": True})
        assert (left.json()["sessions"], left.json()["complete"]) == ([SESSION], True)
        assert "archive" in left.json()["kept"]


async def test_a_users_durable_streams_go_also_of_a_gateway_that_does_not_count_them(
    store: RedisStateStore,
) -> None:
    text = {"content-type": "text/plain"}
    async with gateway_of(store, limits=GatewayLimits(kept_streams=None)) as served:
        for subject in ("ann", "bob"):
            async with served.caller(subject, "write:*") as http:
                made = await http.put(f"/v1/stream/of/{subject}", headers=text, content="words")
                assert made.status_code == 201
        async with served.caller("root", "admin:*") as http:
            answered = await http.post("/v1/users/forget", json={"user": "ann"})
            assert answered.json()["redis"] == {"durable streams": 1}
            left = [
                (await http.get(f"/v1/stream/of/{name}")).status_code for name in ("ann", "bob")
            ]
    assert left == [404, 200]
