"""A vote is delegated, and a pause escalates to others when its time has come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    AlreadyVoted,
    DelegationRefused,
    InvalidField,
    NotADecider,
    TokenResolved,
    TokenUnknown,
)
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import Fate
from redis_state.scripts import Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import Escalate, TaskClient, TaskContext
from redis_state.worker.tasks.waitpoints.deciders import escalate_pause, open_watched, pause_of
from tests.support.processes.pools import SESSION, becomes, open_token, pool
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.deciders import (
    HOUR,
    notices,
    opened,
    shown,
    states,
    two_of_three,
)


async def test_an_actor_hands_the_vote_on(store: RedisStateStore) -> None:
    async with pool(store, {"ask": two_of_three}) as client:
        task, token = await opened(store, client)
        for _ in range(2):
            await client.delegate(token, "dan", actor="ann")
        await client.delegate(token, "eve", actor="dan")
        for to, reason in (
            ("ann", "has delegated a vote of this pause"),
            ("dan", "has delegated a vote of this pause"),
            ("ben", "already decides this pause"),
            ("eve", "it is the same actor"),
        ):
            with pytest.raises(DelegationRefused) as refused:
                await client.delegate(token, to, actor="eve")
            assert (refused.value.to, refused.value.reason) == (to, reason)
        with pytest.raises(NotADecider) as handed:
            await client.approve(token, {"limit": 1}, actor="ann")
        assert handed.value.delegated_to == "dan"
        with pytest.raises(NotADecider):
            await client.delegate(token, "fay", actor="ann")
        await client.approve(token, {"limit": 1}, actor="eve")
        with pytest.raises(AlreadyVoted):
            await client.delegate(token, "fay", actor="eve")
        with pytest.raises(DelegationRefused, match="has voted"):
            await client.delegate(token, "eve", actor="ben")
        deciders = {one.name: one for one in (await shown(client, token)).deciders}
        assert (deciders["ann"].state, deciders["ann"].delegated_to) == ("delegated", "dan")
        assert deciders["ann"].at is not None
        handed_on = [one for one in await notices(store, task) if "to" in one]
        assert handed_on == [
            {"pause": "await_approval", "delegated_by": "ann", "to": "dan"},
            {"pause": "await_approval", "delegated_by": "dan", "to": "eve"},
        ]
        await client.approve(token, {"limit": 2}, actor="ben")
        with pytest.raises(TokenResolved):
            await client.delegate(token, "fay", actor="cid")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result is not None
        assert ended.result[3] == [["eve", True, "limit 1"], ["ben", True, "limit 2"]]
        with pytest.raises(TokenUnknown):
            await client.delegate(f"{SESSION}.none", "fay", actor="cid")


async def test_a_pause_escalates_while_its_task_does_something_else(
    store: RedisStateStore,
) -> None:
    soon = timedelta(milliseconds=5)

    async def ask(ctx: TaskContext) -> list[Any]:
        rules = [Escalate(soon, ["lead"]), Escalate(2 * soon, ["boss"], replace=True)]
        first = await ctx.open_pause("first", of=["ann"], escalate=rules)
        other = await ctx.wait_for(await ctx.open_pause("other"))
        found = await ctx.wait_for(first)
        return [other.actor, found.actor]

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token, other = await open_token(store, task), await open_token(store, task, after=1)

        async def escalated() -> bool:
            return all(one.done for one in (await shown(client, token)).escalations)

        await eventually(escalated, "it has escalated")
        assert await states(client, token) == {"ann": "retired", "lead": "retired", "boss": "open"}
        await client.approve(other, actor="x")

        async def replayed() -> bool:
            state = await client.inspect(SESSION, task)
            return state is not None and state.attempts == 2

        await eventually(replayed, "the handler ran again")
        await becomes(client, task, TaskStatus.PAUSED)
        told = [one for one in await notices(store, task) if "escalated" in one]
        assert told == [
            {"pause": "first", "escalated": 1, "to": ["lead"], "replaces": False},
            {"pause": "first", "escalated": 2, "to": ["boss"], "replaces": True},
        ]
        for actor in ("ann", "lead"):
            with pytest.raises(NotADecider):
                await client.approve(token, actor=actor)
        await client.approve(token, actor="boss")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["x", "boss"]


async def test_what_shall_escalate_later_shows_when(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> None:
        await ctx.pause("first", of=["ann"], escalate=[Escalate(HOUR, ("lead", "boss"))])

    async with pool(store, {"ask": ask}) as client:
        before = await clock_ms(store.base.scripts)
        task, token = await opened(store, client)
        pause = await shown(client, token)
        (rule,) = pause.escalations
        assert (rule.to, rule.replace, rule.done) == (("lead", "boss"), False, False)
        assert rule.at == pause.opened_at + HOUR
        assert rule.at.timestamp() * 1000 >= before
        assert not pause.may_decide("lead")
        assert await client.cancel(SESSION, task)


@pytest.mark.parametrize("name", ["", 5, None, "x" * 201])
async def test_nobody_without_a_name_is_delegated_to(store: RedisStateStore, name: Any) -> None:
    async with TaskClient(store) as client:
        for options in ({"to": name, "actor": "ann"}, {"to": "ann", "actor": name}):
            with pytest.raises(InvalidField):
                await client.delegate("s.token", **options)


async def test_a_sweeper_finds_what_is_due_of_a_pause(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> None:
        rules = [Escalate(timedelta(milliseconds=1), ["lead"]), Escalate(HOUR, ["boss"])]
        pauses = [
            await ctx.open_pause(name, of=["ann"], escalate=rules[start:])
            for name, start in (("both", 0), ("decided", 1), ("overdue", 1), ("over", 1))
        ]
        for pause in pauses:
            await ctx.wait_for(pause)

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        ids = {pause.name: pause.pause_id or "" for pause in await client.pauses(SESSION)}

        async def once() -> bool:
            return (await escalate_pause(store, ids["both"]))[1] is not Fate.OUT

        await eventually(once, "the first escalation is done, and the second is not due")
        made, next_ms = await escalate_pause(store, ids["both"])
        assert made == 0
        assert isinstance(next_ms, int)
        assert 0 < next_ms <= 3_600_001
        await client.approve(ids["decided"], actor="ann")
        key = store.base.keys.session_token(ids["overdue"])
        assert key is not None
        await store.transport.sender.send("HSET", key, "expires", 1, repeatable=True)
        for name in ("decided", "overdue"):
            assert await escalate_pause(store, ids[name]) == (0, Fate.OUT)
        assert await client.cancel(SESSION, task)
        assert await escalate_pause(store, ids["over"]) == (0, Fate.OUT)
        task_key = store.base.keys.task(SESSION, task)
        await store.transport.sender.send("DEL", task_key, repeatable=True)
        for pause_id in (ids["over"], f"{SESSION}:{'0' * 40}"):
            assert await escalate_pause(store, pause_id) == (0, Fate.OUT)
        with pytest.raises(TokenUnknown) as gone:
            await client.delegate(ids["over"], "dan", actor="ann")
        assert gone.value.expired
        assert await client.pause("no token") is None
        assert await client.pause(f"{SESSION}.none") is None


async def test_a_pause_that_comes_too_late_for_its_entry_gets_another_one(
    store: RedisStateStore,
) -> None:
    pause_id, deadlines = f"{SESSION}:{'1' * 40}", list[int]()

    async def write(before_ms: int) -> Reply:
        deadlines.append(before_ms)
        return Reply(ReplyCode.EXPIRED if len(deadlines) < 3 else ReplyCode.OK, [])

    assert (await open_watched(store, pause_id, write)).word is ReplyCode.OK
    assert deadlines == sorted(set(deadlines))
    (entry,) = [entry for entry in await _watched_entries(store) if pause_of(entry)]
    assert pause_of(entry) == pause_id
    for other in (["pause", "no id"], ["pause", 5], ["task", "s", "t"], "pause", None):
        assert pause_of(other) is None


async def _watched_entries(store: RedisStateStore) -> list[Any]:
    commands, keys = store.transport.commands, store.base.keys
    found = [await commands.zrange(keys.watch(shard), 0, -1) for shard in range(WATCH_SHARDS)]
    return [codec.decode(entry) for entries in found for entry in entries]
