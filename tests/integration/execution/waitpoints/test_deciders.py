"""Pauses that name who decides them: votes, and the inbox of an actor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    AlreadyVoted,
    InvalidDecision,
    InvalidField,
    InvalidTransition,
    NotADecider,
    TokenResolved,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Escalate, OpenPause, TaskContext
from redis_state.worker.tasks.waitpoints.ballots import MAX_DECIDERS
from redis_state.worker.tasks.waitpoints.pause_model import PauseRequest
from tests.support.payloads import KEYS
from tests.support.processes.pools import SESSION, becomes, open_token, pool, updates_of
from tests.support.tasks.deciders import (
    HOUR,
    SECRET,
    THREE,
    Refund,
    notices,
    opened,
    shown,
    states,
    two_of_three,
)

ODD = [
    "",
    " ",
    "a b",
    "ann:ben",
    "seat:ann",
    "ä\u2028",
    "a\nb",
    "%",
    "\ud800",
    "approved 5",
    "n\0",
    "n\0l",
]


async def test_two_of_three_decide_and_the_handler_gets_all_votes(store: RedisStateStore) -> None:
    async with pool(store, {"ask": two_of_three}) as client:
        task, token = await opened(store, client, given="again")
        state = await client.approve(token, Refund(limit=3), actor="cid", idempotency_key="k")
        assert state is not None
        assert state.status is TaskStatus.PAUSED
        with pytest.raises(InvalidDecision):
            await client.approve(token, {"limit": 0}, actor="ann")
        with pytest.raises(AlreadyVoted) as voted:
            await client.reject(token, SECRET, actor="cid")
        assert (voted.value.actor, voted.value.approved) == ("cid", True)
        await client.reject(token, SECRET, actor="ben")
        with pytest.raises(NotADecider) as other:
            await client.approve(token, {"limit": 5}, actor="eve")
        assert (other.value.actor, other.value.delegated_to) == ("eve", None)
        with pytest.raises(NotADecider):
            # Without an actor the process decides, and nobody has named it.
            await client.approve(token, {"limit": 5})
        assert await states(client, token) == {"ann": "open", "ben": "rejected", "cid": "approved"}
        assert await notices(store, task) == [
            {"pause": "await_approval", "voted": True, "actor": "cid"},
            {"pause": "await_approval", "voted": False, "actor": "ben"},
        ]
        assert SECRET not in repr(await shown(client, token))
        state = await client.approve(token, {"limit": 7}, actor="ann")
        for actor in (*THREE, "eve"):
            with pytest.raises(TokenResolved) as lost:
                await client.approve(token, {"limit": 8}, actor=actor)
            assert lost.value.actor == "ann"
        await client.approve(token, Refund(limit=3), actor="cid", idempotency_key="k")
        assert await client.pause(token) is None
        await client.approve(await open_token(store, task, after=1))
        # In a replay, too.
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [
            True,
            "limit 7",
            "ann",
            [["cid", True, "limit 3"], ["ben", False, SECRET], ["ann", True, "limit 7"]],
        ]
        text = str(await updates_of(store, task))
        assert SECRET not in text.partition("'result'")[0].rpartition("RESULT")[0]


async def test_two_rejections_of_three_reject(store: RedisStateStore) -> None:
    async with pool(store, {"ask": two_of_three}) as client:
        task, token = await opened(store, client)
        await client.reject(token, "no", actor="ann")
        payload = {"resume_token": token, "decision": "never"}
        await client.steer(SESSION, task, SteeringEventType.REJECT, payload, source="ben")
        ended = await client.wait(SESSION, task, timeout_s=60)
        votes = [["ann", False, "no"], ["ben", False, "never"]]
        assert ended.result == [False, "never", "ben", votes]


async def test_of_those_who_are_named_one_decides_either_way(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> list[Any]:
        decision = await ctx.pause("who", of={"ann", "ben"})
        return [decision.approved, decision.actor]

    async with pool(store, {"ask": ask}) as client:
        for approved in (True, False):
            task, token = await opened(store, client)
            with pytest.raises(NotADecider):
                await client.resolve(token, approved=approved, actor="eve")
            await client.resolve(token, approved=approved, actor="ben")
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.result == [approved, "ben"]


@pytest.mark.parametrize("policy", ["reject", "resume", "fail"])
async def test_votes_that_came_in_time_are_kept_when_the_deadline_decides(
    store: RedisStateStore, policy: Any
) -> None:
    async def ask(ctx: TaskContext) -> list[Any]:
        pause = await ctx.open_pause("late", approvals=2, of=THREE, on_timeout=policy)
        await eventually(lambda: notices(ctx.store, ctx.task.task_id), "somebody has voted")
        key = ctx.store.base.keys.session_token(pause.token)
        assert key is not None
        await ctx.store.transport.sender.send("HSET", key, "expires", 1, repeatable=True)
        found = await ctx.wait_for(pause)
        return [found.approved, found.timed_out, [vote.actor for vote in found.votes]]

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)

        async def listed() -> list[OpenPause]:
            return await client.pauses(SESSION)

        (pause,) = await eventually(listed, "it is open")
        assert pause.token is not None
        await client.approve(pause.token, actor="ann")
        ended = await client.wait(SESSION, task, timeout_s=60)
        if policy == "fail":
            assert ended.error == "PauseTimeout: the pause 'late' was not resolved in time"
        else:
            assert ended.result == [policy == "resume", True, ["ann"]]


async def test_a_pause_that_is_opened_again_has_no_votes_of_before(store: RedisStateStore) -> None:
    patience = [timedelta(seconds=0.5), HOUR]

    async def ask(ctx: TaskContext) -> list[Any]:
        found = await ctx.pause(
            *("twice", None),
            timeout=patience[min(ctx.attempt - 1, 1)],
            approvals=2,
            of=THREE,
            escalate=[Escalate(timedelta(seconds=0.1), ["eve"])],
        )
        return [found.approved, [vote.actor for vote in found.votes]]

    async with pool(store, {"ask": ask}, lease_s=0.4) as client:
        task, token = await opened(store, client)
        await client.approve(token, "yes", actor="ann", idempotency_key="k")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert str(ended.error).startswith("PauseTimeout")
        await client.retry(SESSION, task)
        token = await open_token(store, task, after=1)

        async def escalated() -> bool:
            return "eve" in await states(client, token)

        await eventually(escalated, "the pause escalates again")
        assert await states(client, token) == dict.fromkeys((*THREE, "eve"), "open")
        for actor in ("ann", "eve"):
            await client.approve(token, "yes", actor=actor, idempotency_key="k")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [True, ["ann", "eve"]]


@pytest.mark.parametrize("note", ["kept", "lost"])
async def test_a_decision_during_the_run_that_waits_has_its_votes(
    store: RedisStateStore, note: str
) -> None:
    async def ask(ctx: TaskContext) -> list[Any]:
        pause = await ctx.open_pause("now", approvals=2, of=THREE)

        async def decided() -> bool:
            return len(await notices(ctx.store, ctx.task.task_id)) == 2

        await eventually(decided, "it is decided")
        if note == "lost":
            journal = ctx.store.base.keys.journal(SESSION, ctx.task.task_id)
            await ctx.store.base.scripts.hdel(journal, "pause:now#1")
        found = await ctx.wait_for(pause)
        return [found.actor, [vote.actor for vote in found.votes], ctx.attempt]

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)

        async def listed() -> list[OpenPause]:
            return await client.pauses(SESSION)

        (pause,) = await eventually(listed, "it is open")
        assert pause.token is not None
        for actor in ("ben", "ann"):
            await client.approve(pause.token, actor=actor)
        ended = await client.wait(SESSION, task, timeout_s=60)
        # What decides is the token. Votes are in the note alone.
        assert ended.result == ["ann", ["ben", "ann"] if note == "kept" else [], 1]


async def test_nobody_is_named_and_anybody_decides(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> list[Any]:
        found = await ctx.pause()
        return [found.actor, list(found.votes)]

    async with pool(store, {"ask": ask}) as client:
        task, token = await opened(store, client)
        pause = await shown(client, token)
        assert (pause.deciders, pause.approvals, pause.rejections, pause.escalations) == (
            (),
            1,
            None,
            (),
        )
        assert pause.may_decide("anybody")
        with pytest.raises(NotADecider):
            await client.delegate(token, "dan", actor="ann")
        await client.approve(token, actor="anybody")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["anybody", []]


async def test_an_inbox_has_what_its_owner_may_decide_now(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> None:
        pauses = [
            await ctx.open_pause("a", of=["ann"]),
            await ctx.open_pause("b", of=["ben"]),
            await ctx.open_pause("c", of=["ann", "ben"], approvals=2),
            await ctx.open_pause("d"),
            await ctx.open_pause("hidden", reveal=False, of=["ann"]),
        ]
        for pause in pauses:
            await ctx.wait_for(pause)

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)

        async def inbox(actor: str) -> dict[str, str | None]:
            return {one.name: one.token for one in await client.pauses(decider=actor)}

        found = await inbox("ann")
        assert sorted(found) == ["a", "c", "d", "hidden"]
        assert found["hidden"] is None
        assert sorted(await inbox("ben")) == ["b", "c", "d"]
        assert sorted(await inbox("eve")) == ["d"]
        assert found["c"] is not None
        assert found["a"] is not None
        await client.approve(found["c"], actor="ann")
        await client.delegate(found["a"], "eve", actor="ann")
        assert sorted(await inbox("ann")) == ["d", "hidden"]
        assert sorted(await inbox("eve")) == ["a", "d"]
        assert sorted(await inbox("ben")) == ["b", "c", "d"]
        assert await client.cancel(SESSION, task)
        for call in (
            client.approve(found["a"], actor="eve"),
            client.delegate(found["a"], "fay", actor="eve"),
        ):
            with pytest.raises(InvalidTransition):
                await call


async def test_names_may_be_any_text(store: RedisStateStore) -> None:
    names = [name for name in ODD if name]

    async def ask(ctx: TaskContext) -> list[str]:
        found = await ctx.pause("odd", of=names, approvals=len(names))
        return [vote.actor for vote in found.votes]

    async with pool(store, {"ask": ask}) as client:
        task, token = await opened(store, client)
        await client.delegate(token, "n\0 c", actor="a b")
        with pytest.raises(NotADecider) as handed:
            await client.approve(token, actor="a b")
        assert handed.value.delegated_to == "n\0 c"
        voters = [name for name in names if name != "a b"] + ["n\0 c"]
        for actor in voters:
            assert (await shown(client, token)).may_decide(actor)
            await client.approve(token, {actor: 2**70, "nan": float("nan")}, actor=actor)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == voters


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("approvals", {"approvals": 2}),
        ("rejections", {"rejections": 2}),
        ("escalate", {"escalate": [Escalate(HOUR, ["lead"])]}),
        ("of", {"of": "ann"}),
        ("of", {"of": []}),
        ("of", {"of": [""]}),
        ("of", {"of": [5]}),
        ("of", {"of": 5}),
        ("of", {"of": ["x" * 201]}),
        ("of", {"of": ["ann", "ann"]}),
        ("of", {"of": [f"a{number}" for number in range(MAX_DECIDERS + 1)]}),
        ("approvals", {"of": THREE, "approvals": 0}),
        ("approvals", {"of": THREE, "approvals": 4}),
        ("approvals", {"of": THREE, "approvals": True}),
        ("approvals", {"of": THREE, "approvals": 1.5}),
        ("rejections", {"of": THREE, "rejections": 0}),
        ("rejections", {"of": THREE, "approvals": 2, "rejections": 3}),
        ("rejections", {"of": THREE, "rejections": "1"}),
        ("escalate", {"of": THREE, "escalate": Escalate(HOUR, ["lead"])}),
        ("escalate", {"of": THREE, "escalate": "lead"}),
        ("escalate", {"of": THREE, "escalate": ["lead"]}),
        ("escalate", {"of": THREE, "escalate": [Escalate(HOUR, "lead")]}),
        ("escalate", {"of": THREE, "escalate": [Escalate(HOUR, [])]}),
        ("escalate", {"of": THREE, "escalate": [Escalate(timedelta(0), ["lead"])]}),
        ("escalate", {"of": THREE, "escalate": [Escalate(5, ["lead"])]}),  # type: ignore[arg-type]
        ("escalate", {"of": THREE, "escalate": [Escalate(HOUR, ["lead"])], "timeout": HOUR}),
        ("escalate", {"of": THREE, "escalate": [Escalate(HOUR, ["a"]), Escalate(HOUR, ["b"])]}),
        (
            "escalate",
            {"of": THREE, "approvals": 2, "escalate": [Escalate(HOUR, ["a"], replace=True)]},
        ),
        ("escalate", {"of": THREE, "escalate": [Escalate(n * HOUR, ["a"]) for n in range(1, 12)]}),
        ("escalate", {"of": THREE, "escalate": [Escalate(HOUR, [f"a{n}" for n in range(98)])]}),
    ],
)
def test_who_cannot_decide_is_refused_by_name(
    store: RedisStateStore, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidField) as caught:
        PauseRequest.read(store.settings, "why", None, options, reveal=True)  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_of_an_approver_whose_name_is_no_text_nothing_is_taken(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"ask": two_of_three}) as client:
        task, token = await opened(store, client)
        with pytest.raises(InvalidField) as wrong:
            await client.approve(token, {"limit": 1}, actor=5)  # type: ignore[arg-type]
        assert wrong.value.field == "actor"
        payload = {"resume_token": token, "value": {"limit": 4}}
        for actor in ("ann", "ben"):
            kind = SteeringEventType.APPROVE
            await client.steer(SESSION, task, kind, payload, source=actor, event_id=actor)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result is not None
        assert ended.result[:3] == [True, "limit 4", "ben"]
        kept = await store.list_steering(SESSION, task_id=task)
        assert ["value" in event.payload for event in kept] == [False, False]


@pytest.mark.parametrize("seals", [False, True])
async def test_a_vote_repeated_behind_the_decision_is_late_unless_its_call_is_named(
    settings: Settings, *, seals: bool
) -> None:
    keys = {"payload_keys": SecretStr(KEYS[0])} if seals else {}
    async with (
        RedisStateStore(settings.model_copy(update=keys)) as store,
        pool(store, {"ask": two_of_three}) as client,
    ):
        _, token = await opened(store, client)
        for _ in range(2):
            await client.approve(token, {"limit": 5}, actor="ann")
        await client.approve(token, {"limit": 6}, actor="cid", idempotency_key="k")
        await client.approve(token, {"limit": 6}, actor="cid", idempotency_key="k")
        for actor, limit in (("ann", 5), ("cid", 6)):
            with pytest.raises(TokenResolved) as late:
                await client.approve(token, {"limit": limit}, actor=actor)
            assert late.value.actor == "cid"
