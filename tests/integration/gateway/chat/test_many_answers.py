"""Many pauses that are answered in one call: several at once, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")

from redis_state import RedisStateStore
from redis_state.gateway.chat import tasks
from redis_state.gateway.routes.tasks import pauses
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.chat.ag_ui import run_input
from tests.support.http import gateway as support
from tests.support.http.gateway import Served, ends, gateway_of

PAUSES, AT_ONCE = 30, 10
RIGHTS = ("read:*", "submit:*", "resolve:*")


async def ask_much(ctx: TaskContext) -> Any:
    """Open many pauses, and wait for all of them."""
    opened = [await ctx.open_pause(f"{n}?") for n in range(PAUSES)]
    return [(await ctx.wait_for(each)).value for each in opened]


@pytest.fixture(autouse=True)
def _handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(support.HANDLERS, "ask_much", ask_much)


async def _asked(served: Served) -> list[str]:
    """Submit the task; return the ids of its pauses, in the order in which it opened them."""
    await served.client.submit("ask_much", session_id="s", task_id="t")

    async def found() -> list[str] | None:
        # Those of one millisecond are listed in any order.
        listed = sorted(await served.client.pauses("s"), key=lambda each: int(each.reason[:-1]))
        return [str(each.pause_id) for each in listed] if len(listed) == PAUSES else None

    asked = await eventually(found, "all pauses are open")
    assert asked is not None
    return asked


def _resume(answered: list[str], run: str = "r") -> dict[str, Any]:
    entries = [
        {"interruptId": each, "status": "resolved", "payload": {"approved": True, "value": n}}
        for n, each in enumerate(answered)
    ]
    return run_input("s", run, resume=entries)


async def test_many_pauses_are_decided_several_at_once_and_never_more(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def decide(*given: Any, **named: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == AT_ONCE:
            full.set()
        async with asyncio.timeout(20):
            await full.wait()
        try:
            return await pauses.decide(*given, **named)
        finally:
            running -= 1

    monkeypatch.setattr(tasks, "decide", decide)
    async with (
        gateway_of(store, handlers=["ask_much"]) as served,
        served.caller("ann", *RIGHTS) as http,
    ):
        answered = await http.post("/v1/ag-ui/ask_much", json=_resume(await _asked(served)))
        assert answered.status_code == 200, answered.text
        assert (await ends(served, "s", "t")).result == list(range(PAUSES))
    assert most == AT_ONCE


async def test_an_answer_that_is_refused_stops_no_other_and_each_has_its_outcome(
    store: RedisStateStore,
) -> None:
    async with (
        gateway_of(store, handlers=["ask_much"]) as served,
        served.caller("ann", *RIGHTS) as http,
    ):
        asked = await _asked(served)
        await served.client.approve(asked[2], "first", actor="bob")
        given = [*asked[:5], "0" * len(asked[0]), *asked[5:]]
        answered = await http.post("/v1/ag-ui/ask_much", json=_resume(given))
        assert answered.status_code == 409
        error = answered.json()["error"]
        assert (error["code"], error["by"]) == ("already_resolved", "bob")
        listed = error["answers"]
        assert [each["pause_id"] for each in listed] == given
        refused = {n: each["error"]["code"] for n, each in enumerate(listed) if not each["ok"]}
        assert refused == {2: "already_resolved", 5: "not_found"}
        result = (await ends(served, "s", "t")).result
        assert result == [0, 1, "first", 3, 4, *range(6, PAUSES + 1)]
        # The same answers again have the same outcomes.
        again = await http.post("/v1/ag-ui/ask_much", json=_resume(given))
        assert again.json()["error"]["answers"] == listed


async def test_answers_of_several_tasks_or_of_another_session_decide_nothing(
    store: RedisStateStore,
) -> None:
    async with (
        gateway_of(store, handlers=["ask_much", "ask"]) as served,
        served.caller("ann", *RIGHTS) as http,
    ):
        asked = await _asked(served)
        await served.client.submit("ask", session_id="s", task_id="u")
        other = await support.paused(served, "s", "u")
        for given, session in (
            ([*asked, other], "s"),
            ([asked[0], asked[0]], "s"),
            (asked[:2], "elsewhere"),
        ):
            body = _resume(given) | {"threadId": session}
            answered = await http.post("/v1/ag-ui/ask_much", json=body)
            assert answered.status_code == 422
        assert len(await served.client.pauses("s")) == PAUSES + 1
