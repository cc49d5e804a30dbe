"""Votes, delegations and escalations that are killed, raced for, and forgotten by the server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Escalate, OpenPause, TaskClient, TaskContext
from tests.processes.deaths.die_at_vote import PHASES
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    pool,
    queue_of,
    serving,
    updates_of,
)
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import run_processes
from tests.support.servers.proxies.command_proxy import CommandProxy

ACTORS = [f"actor {number}" for number in range(40)]
# What must be among the places of death, besides reads.
STEPS = {
    "open": {"watch_entry", "open_pause", "pause_task"},
    "vote": {"watch_entry", "decide_pause"},
    "delegate": {"delegate_pause"},
    "escalate": {"escalate_pause", "settle_claim"},
    "decide": {"watch_entry", "decide_pause", "the queue"},
}


@pytest.mark.slow
@pytest.mark.parametrize("edge", ["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.full), 8], ids=["each", "some"]
)
async def test_who_is_killed_at_a_round_trip_leaves_nothing_half_done(
    settings: Settings, phase: str, edge: str, stride: int
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": f"{settings.namespace}-{phase}",
        "phase": phase,
        "edge": edge,
        "first": 1 if stride == 1 or edge == "before" else 3,
        "stride": stride,
    }
    (deaths,) = await run_processes("die_at_vote", [argument], timeout_s=110)
    assert [death for death in deaths if death["problems"]] == []
    assert deaths
    if stride == 1:
        assert STEPS[phase] - {death["trip"] for death in deaths} == set()


async def many(ctx: TaskContext) -> list[Any]:
    """Ask forty actors three times; return each decision with its votes."""
    pauses = [
        await ctx.open_pause("which?", name=f"p{number}", of=ACTORS, approvals=20 - number)
        for number in range(3)
    ]
    found = [await ctx.wait_for(pause) for pause in pauses]
    return [
        [one.approved, one.actor, [[vote.actor, vote.approved, vote.value] for vote in one.votes]]
        for one in found
    ]


async def listed(client: TaskClient, count: int) -> dict[str, OpenPause]:
    async def found() -> dict[str, OpenPause] | None:
        pauses = {pause.name: pause for pause in await client.pauses(SESSION)}
        return pauses if len(pauses) == count else None

    pauses = await eventually(found, f"{count} pauses are open")
    assert pauses is not None
    return pauses


async def test_a_decision_that_was_made_is_not_said_not_to_have_been(
    store: RedisStateStore, settings: Settings
) -> None:
    async def ask(ctx: TaskContext) -> bool:
        return (await ctx.pause("may I?")).approved

    async with (
        pool(store, {"ask": ask}) as client,
        CommandProxy(settings.url.get_secret_value()) as proxy,
        RedisStateStore(settings.model_copy(update={"url": SecretStr(proxy.url)})) as through,
        client_of(through) as decider,
    ):
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        with proxy.answer("queue_job"), pytest.raises(OutcomeUnknown, match="written, then"):
            await decider.approve(pause.token, idempotency_key="k")
        # So it is to be repeated.
        await decider.approve(pause.token, idempotency_key="k")
        assert await client.result(SESSION, task, timeout_s=60) is True


async def test_forty_actors_in_four_processes_make_one_decision_of_each(
    store: RedisStateStore, settings: Settings
) -> None:
    async with pool(store, {"many": many}) as client:
        task = await client.submit("many", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        pauses = await listed(client, 3)
        tokens = [pause.token for pause in pauses.values()]
        argument = {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "tokens": tokens,
        }
        arguments = [argument | {"actors": ACTORS[start::4]} for start in range(4)]
        found = await run_processes("vote_on_pauses", arguments)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result is not None
        for number, (name, (approved, actor, votes)) in enumerate(
            zip(("p0", "p1", "p2"), ended.result, strict=True)
        ):
            token = pauses[name].token
            taken = [vote for one in found for vote in one["taken"][token]]
            # Each vote that a caller was told of counts, once, and no other.
            assert sorted(taken) == sorted(votes)
            assert len({vote[0] for vote in votes}) == len(votes)
            ways = [vote[1] for vote in votes]
            needed = 20 - number if approved else 40 - (20 - number) + 1
            assert ways.count(approved) == needed
            assert (votes[-1][0], votes[-1][1]) == (actor, approved)
            lost = [one for each in found for one in each["lost"][token]]
            assert len(lost) == 40 - len(votes)
            assert all(one == [actor, approved] for one in lost)
        decided = [
            update.content
            for update in await updates_of(store, task)
            if "approved" in (update.content or {})
        ]
        assert len(decided) == 3


async def brief(ctx: TaskContext) -> list[Any]:
    """Ask two of those who decide, of whom one comes later."""
    rule = Escalate(timedelta(milliseconds=1), ("lead",))
    decision = await ctx.pause("go", approvals=2, of=("ann", "ben"), escalate=[rule])
    return [decision.actor, [vote.actor for vote in decision.votes]]


async def test_what_the_server_forgot_is_done_again(settings: Settings) -> None:
    async with rolling_back() as server:
        own = Settings(url=SecretStr(server.url), namespace=settings.namespace)
        async with (
            RedisStateStore(own) as store,
            client_of(store) as client,
            serving(agent(own, {"brief": brief})),
        ):
            task = await client.submit("brief", session_id=SESSION)
            await becomes(client, task, TaskStatus.PAUSED)
            token = (await listed(client, 1))["go"].token
            assert token is not None

            async def escalated() -> bool:
                pause = await client.pause(token)
                return pause is not None and pause.may_decide("lead")

            await server.mark()
            await client.approve(token, actor="ann", idempotency_key="k")
            await eventually(escalated, "it has escalated")
            await client.approve(token, actor="lead")
            await client.wait(SESSION, task, timeout_s=60)
            await server.go_back()
            # Nothing of it has happened: neither votes nor, if it came later, the escalation.
            pause = await client.pause(token)
            assert pause is not None
            assert {one.state for one in pause.deciders} == {"open"}
            await client.approve(token, actor="ann", idempotency_key="k")
            await eventually(escalated, "it has escalated again", timeout_s=60)
            await client.approve(token, actor="lead", idempotency_key="l")
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.result == ["lead", ["ann", "lead"]]
            told = [
                update.content
                for update in await updates_of(store, task)
                if update.update_type.value == "NOTIFICATION"
            ]
            assert sum("escalated" in one for one in told) == 1
