"""Pauses as a handler and whoever decides see them: opened, waited for, decided, by many."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    InvalidTransition,
    TokenResolved,
    TokenUnknown,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.primitives.lease import new_owner
from redis_state.primitives.watchlist import WatchList
from redis_state.testing import eventually
from redis_state.worker import Pause, TaskClient, TaskContext
from redis_state.worker.tasks.moves import watch_entry
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions
from redis_state.worker.tasks.waitpoints.open_pauses import list_open_pauses
from redis_state.worker.tasks.waitpoints.pause_model import PauseRequest, decision_of, pause_token
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    serving,
    statuses,
    updates_of,
)
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import run_processes
from tests.support.servers.nodes import ask_beside, keys_like

NAMES = [f"p{number}" for number in range(10)]

# How long a call waits for the queue's server.
SHORT = {"connect_timeout_s": 0.5, "call_timeout_s": 1.0}


async def ten(ctx: TaskContext) -> list[Any]:
    """Open ten pauses at once, then wait for one after the other."""
    pauses = await asyncio.gather(*(ctx.open_pause("which?", name=name) for name in NAMES))
    found = [await ctx.wait_for(pause) for pause in pauses]
    return [[decision.approved, decision.value, decision.actor] for decision in found]


async def ask(ctx: TaskContext) -> list[Any]:
    decision = await ctx.approval("May I?")
    return [decision.approved, decision.value, decision.actor]


async def tokens_of(store: RedisStateStore, task: str, count: int) -> dict[str, str]:
    """Wait until a task has told of so many pauses; return their tokens by name."""

    async def found() -> dict[str, str] | None:
        open_now = await list_open_pauses(store, SESSION)
        tokens = {one.name: one.token for one in open_now if one.task_id == task and one.token}
        return tokens if len(tokens) == count else None

    tokens = await eventually(found, f"{count} pauses are open")
    assert tokens is not None
    return tokens


async def task_of(store: RedisStateStore, task_id: str) -> StartedRun:
    """Start a task that has just been submitted or handed over, as a worker does."""
    found = await TaskTransitions(store).start(
        SESSION, task_id, owner=new_owner(), lease_ms=60_000, worker="w"
    )
    assert isinstance(found, StartedRun), found
    return found


def question(store: RedisStateStore) -> PauseRequest:
    return PauseRequest.read(store.settings, "why", None, {"name": "x"}, reveal=True)


@pytest.mark.slow
async def test_ten_open_pauses_are_decided_in_any_order_by_several_processes(
    store: RedisStateStore, settings: Settings
) -> None:
    async with pool(store, {"ten": ten}) as client:
        task = await client.submit("ten", session_id=SESSION)
        tokens = await tokens_of(store, task, len(NAMES))
        argument = {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "tokens": list(tokens.values()),
        }
        arguments = [argument | {"name": f"process {number}"} for number in range(4)]
        found = await run_processes("decide_pauses", arguments)
        model: dict[str, Any] = {}
        wins: Counter[str] = Counter()
        for one in found:
            model |= one["won"]
            wins.update(one["won"].keys())
        assert wins == Counter(dict.fromkeys(tokens.values(), 1))
        assert all(
            model[token] == reported for one in found for token, reported in one["lost"].items()
        )
        assert sum(len(one["lost"]) for one in found) == 30
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [model[tokens[name]] for name in NAMES]
        assert await client.pauses() == []


async def test_pauses_opened_in_one_turn_are_decided_last_first(store: RedisStateStore) -> None:
    async def both(ctx: TaskContext) -> list[Any]:
        found = await asyncio.gather(ctx.pause(name="a"), ctx.pause(name="b"), ctx.pause(name="c"))
        return [decision.value for decision in found]

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        tokens = await tokens_of(store, task, 3)
        for name in "cba":
            await client.approve(tokens[name], f"for {name}")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["for a", "for b", "for c"]


async def test_pauses_of_one_name_in_one_turn_are_numbered_as_written(
    store: RedisStateStore,
) -> None:
    async def both(ctx: TaskContext) -> list[Any]:
        found = await asyncio.gather(ctx.pause("x", 1), ctx.pause("x", 2), ctx.approval("sure?"))
        return [decision.value for decision in found]

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        tokens = {repr(pause.payload): pause.token for pause in await client.pauses(SESSION)}
        assert len(tokens) == 3
        for payload, token in tokens.items():
            assert token is not None
            await client.approve(token, payload)
        ended = await client.wait(SESSION, task, timeout_s=60)
        requested = repr({"question": "sure?", "details": None})
        assert ended.result == ["1", "2", requested]


@pytest.mark.parametrize("apart", ["by nothing", "by a name", "by a key", "by a branch"])
async def test_an_approval_never_reaches_the_question_of_another_asyncio_task(
    store: RedisStateStore, apart: str
) -> None:
    recorded = asyncio.Event()
    paid: list[str] = []

    async def pay(ctx: TaskContext, who: str) -> bool:
        if who == "Ann":
            # In the first run she comes after the end, in the second one first.
            await ctx.step("prepare", asyncio.sleep, 0.1)
            recorded.set()
        elif recorded.is_set():
            await asyncio.sleep(0.1)
        options: dict[str, Any] = {"by a name": {"name": who}, "by a key": {"key": who}}
        inner = ctx.branch(who) if apart == "by a branch" else ctx
        decision = await inner.approval(who, **options.get(apart, {}))
        if decision.approved:
            paid.append(who)
        return decision.approved

    async def both(ctx: TaskContext) -> dict[str, bool]:
        ann, bob = await asyncio.gather(pay(ctx, "Ann"), pay(ctx, "Bob"))
        return {"Ann": ann, "Bob": bob}

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        decided: set[str] = set()

        async def is_over() -> bool:
            for pause in await client.pauses(SESSION):
                who = pause.payload["question"]
                if recorded.is_set() and pause.token is not None and who not in decided:
                    decided.add(who)
                    await client.resolve(pause.token, approved=who == "Bob")
            state = await client.get(SESSION, task)
            return state is not None and state.status.is_terminal

        await eventually(is_over, "the task is over")
        ended = await client.wait(SESSION, task)
        assert "Ann" not in paid
        if apart == "by nothing":
            assert ended.error is not None
            assert ended.error.startswith("InvalidField: name: 'pause:await_approval#1' was ano")
        else:
            assert ended.result == {"Ann": False, "Bob": True}


async def test_two_asyncio_tasks_that_come_to_one_name_in_one_run_are_refused(
    store: RedisStateStore,
) -> None:
    async def part(ctx: TaskContext) -> Pause:
        return await ctx.open_pause("x")

    async def both(ctx: TaskContext) -> None:
        await asyncio.gather(part(ctx), part(ctx))

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error is not None
        assert ended.error.startswith("InvalidField: name: 'x' is used by two asyncio tasks")


async def test_what_a_pause_asks_may_change_in_the_handlers_own_asyncio_task(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> int:
        await ctx.pause("x", {"attempt": ctx.attempt})
        return ctx.attempt

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.approve(await open_token(store, task))
        assert await client.result(SESSION, task, timeout_s=60) == 2


async def test_what_is_decided_before_it_is_waited_for_does_not_end_the_run(
    store: RedisStateStore,
) -> None:
    go = asyncio.Event()

    async def busy(ctx: TaskContext) -> list[Any]:
        pause = await ctx.open_pause("review", name="review")
        await go.wait()
        decision = await ctx.wait_for(pause.token)
        again = await ctx.wait_for(pause)
        return [decision.approved, decision.value, again == decision, ctx.attempt]

    async with pool(store, {"busy": busy}) as client:
        task = await client.submit("busy", session_id=SESSION)
        token = (await tokens_of(store, task, 1))["review"]
        state = await client.reject(token, "too long", actor="ann")
        assert state is not None
        assert state.status is TaskStatus.RUNNING
        go.set()
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [False, "too long", True, 1]
        assert await statuses(store, task) == ["PENDING", "RUNNING", "COMPLETE"]
        reported = [update.content for update in await updates_of(store, task)]
        assert {"pause": "review", "approved": False, "actor": "ann"} in reported


async def test_a_pause_is_found_again_by_its_key_and_else_by_its_order(
    store: RedisStateStore,
) -> None:
    async def keyed(ctx: TaskContext) -> list[Any]:
        one = await ctx.open_pause("a", key="order-1")
        same = await ctx.open_pause("b", key="order-1")
        other = await ctx.open_pause("a", key="order-2")
        plain = [await ctx.open_pause("order-1"), await ctx.open_pause("order-1")]
        tokens = {pause.token for pause in (one, same, other, *plain)}
        return [one.token == same.token, len(tokens)]

    async with pool(store, {"keyed": keyed}) as client:
        task = await client.submit("keyed", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [True, 4]


async def test_a_token_that_this_task_has_not_opened_is_not_waited_for(
    store: RedisStateStore,
) -> None:
    async def wrong(ctx: TaskContext) -> list[str]:
        refused: list[str] = []
        for pause in ("s.never", "", str(ctx.input), Pause("x", str(ctx.input))):
            try:
                await ctx.wait_for(pause)
            except TokenUnknown as error:
                refused.append(str(error))
        return refused

    async with pool(store, {"wrong": wrong, "ask": ask}) as client:
        token = await open_token(store, await client.submit("ask", session_id=SESSION))
        task = await client.submit("wrong", token, session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["no such token"] * 4
        await client.approve(token)


async def test_a_paused_task_that_gets_another_priority_lives_as_long_as_before(
    store: RedisStateStore,
) -> None:
    async def life_ms() -> int:
        key = store.base.keys.task(SESSION, task)
        return int(await store.transport.sender.send("PTTL", key, repeatable=True))

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        before = await life_ms()
        await client.steer(SESSION, task, SteeringEventType.PRIORITIZE, {"priority": 3})
        assert await life_ms() > 0.99 * before
        state = await client.get(SESSION, task)
        assert state is not None
        assert state.priority == 3


# Crashes


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "undecided"])
async def test_after_a_crash_between_opening_and_waiting_the_pause_is_the_same(
    store: RedisStateStore, *, decided: bool
) -> None:
    pausing, entry = TaskPauses(store), "pause:x#1"
    async with client_of(store) as client:
        task = await client.submit("ask", session_id=SESSION)
        run = await task_of(store, task)
        await pausing.open(run, entry, question(store))
        # Its worker is gone, and so is what it would have put on the list after the step.
        index = store.base.keys.open_pauses()
        await store.transport.sender.send("DEL", index, repeatable=True)
        await store.transport.sender.send("HSET", run.held.key, "expires", 0, repeatable=True)
        if decided:
            await client.approve(pause_token(run, entry), 7, actor="ann")
        again = await task_of(store, task)
        assert again.attempts == 2
        assert pause_token(again, entry) == pause_token(run, entry)
        note = await pausing.open(again, entry, question(store))
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert reported.count("CHECKPOINT") == 1
        if decided:
            assert (note["state"], note["value"], note["actor"]) == ("decided", 7, "ann")
            found = await pausing.wait(again, entry)
            assert found is not None
            assert decision_of(entry, found) == decision_of(entry, note)
            assert await client.pauses() == []
        else:
            assert note["state"] == "open"
            assert [one.token for one in await client.pauses()] == [pause_token(run, entry)]
            assert await pausing.wait(again, entry) is None
            await client.approve(pause_token(run, entry), 7, actor="ann")
        await client.cancel(SESSION, task, hard=True)
        await client.drop_queue()


async def test_a_task_that_is_being_paused_or_resumed_is_looked_at_soon(
    store: RedisStateStore,
) -> None:
    pausing, entry = TaskPauses(store), "pause:x#1"
    watch = WatchList(store.base.scripts, store.base.keys)

    async def due_in_ms() -> int:
        looked: list[int] = []
        for shard in range(16):
            key = store.base.keys.watch(shard)
            member = watch_entry(SESSION, task)
            found = await store.transport.sender.send("ZSCORE", key, member, repeatable=True)
            looked += [] if found is None else [int(found)]
        assert len(looked) == 1
        return looked[0] - await clock_ms(store.base.scripts)

    async with client_of(store) as client:
        task = await client.submit("ask", session_id=SESSION)
        await pausing.open(run := await task_of(store, task), entry, question(store))
        for move in ("pause", "resume"):
            # As a sweeper puts it off, that thinks it is well.
            await watch.put(watch_entry(SESSION, task), delay_ms=3_600_000, sooner=True)
            if move == "pause":
                assert await pausing.wait(run, entry) is None
            else:
                await client.approve(pause_token(run, entry))
            assert await due_in_ms() <= 2_000
        await client.cancel(SESSION, task)
        await client.drop_queue()


async def test_with_the_queue_away_a_decision_is_kept_and_its_claim_queues_it_later(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0")
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        other = RedisStateStore(settings.model_copy(update={"queue_url": away, **SHORT}))
        async with other, TaskClient(other, queue=queue_of(settings)) as cut_off:
            with pytest.raises(BackendUnavailable):
                await cut_off.approve(token, 5, actor="ann", idempotency_key="c")
        await becomes(client, task, TaskStatus.PENDING)
        await client.approve(token, 5, actor="ann again", idempotency_key="c")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [True, 5, "ann"]


# Races


async def test_a_claim_is_bound_to_its_decision(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        before = await clock_ms(store.base.scripts)
        await client.approve(token, {"b": 1, "a": 2}, actor="ann", idempotency_key="c")
        after = await clock_ms(store.base.scripts)
        await client.approve(token, {"a": 2, "b": 1}, actor="ann", idempotency_key="c")
        event = {"resume_token": token, "decision": "no"}
        calls = [
            client.reject(token, {"a": 2, "b": 1}, actor="bob", idempotency_key="c"),
            client.approve(token, {"a": 3}, actor="bob", idempotency_key="c"),
            client.steer(SESSION, task, SteeringEventType.REJECT, event, event_id="c"),
        ]
        for call in calls:
            with pytest.raises(TokenResolved) as caught:
                await call
            assert caught.value.actor == "ann"
            assert before <= caught.value.at_ms <= after
            assert caught.value.decision == {"approved": True, "value": {"a": 2, "b": 1}}
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [True, {"a": 2, "b": 1}, "ann"]


async def test_deciding_against_cancelling_and_finishing_leaves_one_end(
    store: RedisStateStore,
) -> None:
    life, pausing, entry = TaskTransitions(store), TaskPauses(store), "pause:x#1"
    decisions = PauseDecisions(store)
    found: Counter[str] = Counter()
    waiting: set[str] = set()
    async with client_of(store) as client:
        for number in range(48):
            task = await client.submit("ask", session_id=SESSION)
            run = await task_of(store, task)
            await pausing.open(run, entry, question(store))
            if waits := number % 2 == 0:
                await pausing.wait(run, entry)
                waiting.add(task)

            async def end(turns: int, run: StartedRun = run) -> None:
                # Deciding asks twice before it decides: so the end comes before, or after.
                for _ in range(turns):
                    await clock_ms(store.base.scripts)
                if run.state.task_id in waiting:
                    assert await life.cancel(run.state, None)
                else:
                    await life.finish_run(run, TaskStatus.COMPLETE)

            token = pause_token(run, entry)
            decide = decisions.decide(token, approved=True, value=1, actor="ann")
            ends = await asyncio.gather(end(number // 2 % 8), decide, return_exceptions=True)
            denied = [one for one in ends if isinstance(one, BaseException)]
            assert all(isinstance(one, InvalidTransition) for one in denied), denied
            last = (await statuses(store, task))[-1]
            assert last == ("CANCELLED" if waits else "COMPLETE")
            journal = await store.transport.sender.send(
                "HGET", store.base.keys.journal(SESSION, task), entry, repeatable=True
            )
            assert (b"decided" in journal) == (not denied)
            found[f"{last}, {'denied' if denied else 'decided'}"] += 1
            assert isinstance(
                await life.start(SESSION, task, owner="x", lease_ms=1, worker="x"), NotStarted
            )
        await client.drop_queue()
    assert len(found) == 4, found


# What is kept and shown


async def everything(store: RedisStateStore) -> bytes:
    """Read every key and value, on every server."""
    sender = store.transport.sender
    readers = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"list": ("LRANGE", 0, -1),
        b"zset": ("ZRANGE", 0, -1),
        b"stream": ("XRANGE", "-", "+"),
        b"set": ("SMEMBERS",),
    }
    found: list[bytes] = []
    for key in await keys_like(store.transport, "*"):
        kind: bytes = await ask_beside(store.transport, "TYPE", key)
        if kind == b"none":
            continue
        command, *rest = readers[kind]
        value = await sender.send(command, key, *rest, repeatable=True)
        found.append(repr([key, value]).encode())
    return b"\n".join(found)


@pytest.mark.parametrize("reveal", [True, False])
async def test_no_text_of_a_token_is_on_the_server(store: RedisStateStore, *, reveal: bool) -> None:
    tokens: list[str] = []

    async def quiet(ctx: TaskContext) -> Any:
        pause = await ctx.open_pause("review", reveal=reveal)
        tokens.append(pause.token)
        return (await ctx.wait_for(pause)).value

    async with pool(store, {"quiet": quiet}) as client:
        task = await client.submit("quiet", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        secret = tokens[0].rpartition(".")[2]
        assert len(secret) == 32
        kept = await everything(store)
        assert b"quiet" in kept
        assert secret.encode() not in kept
        assert [one.token for one in await client.pauses()] == [tokens[0] if reveal else None]
        await client.approve(tokens[0], "yes")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "yes"
        assert secret.encode() not in await everything(store)
        assert set(tokens) == {tokens[0]}


async def test_tokens_of_two_tasks_of_one_id_differ(
    store: RedisStateStore, settings: Settings
) -> None:
    short = settings.model_copy(update={"finished_task_ttl": timedelta(milliseconds=200)})
    async with RedisStateStore(short) as own, pool(own, {"ask": ask}) as client:
        found: list[str] = []
        for number in range(2):
            await client.submit("ask", session_id=SESSION, task_id="again")
            await becomes(client, "again", TaskStatus.PAUSED)
            (one,) = await client.pauses(SESSION)
            assert one.token is not None
            found.append(one.token)
            if number == 0:
                await client.cancel(SESSION, "again")

                async def gone() -> bool:
                    return await client.get(SESSION, "again") is None

                await eventually(gone, "the record has expired")
        assert found[0] != found[1]
        with pytest.raises(TokenUnknown):
            await client.approve(found[0])
        await becomes(client, "again", TaskStatus.PAUSED)
        await client.approve(found[1])
        assert (await client.wait(SESSION, "again", timeout_s=60)).status is TaskStatus.COMPLETE


async def test_a_steering_event_that_decides_is_kept_without_the_token(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        payload = {"resume_token": token, "decision": "yes"}
        reported = await client.steer(
            SESSION, task, SteeringEventType.APPROVE, payload, source="ann"
        )
        assert reported.payload == payload
        (kept,) = await store.list_steering(SESSION)
        assert kept.event_id == reported.event_id
        assert kept.payload == {"resume_token": token.rpartition(":")[2], "decision": "yes"}
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [True, "yes", "ann"]


async def test_a_worker_that_dies_with_pauses_open_loses_none(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client:
        task = await client.submit("ten", session_id=SESSION)
        async with serving(agent(settings, {"ten": ten})):
            tokens = await tokens_of(store, task, len(NAMES))
            await becomes(client, task, TaskStatus.PAUSED)
        # Nobody runs: all are decided, the one that is waited for last.
        for name in reversed(NAMES):
            await client.approve(tokens[name], name, actor="ann")
        async with serving(agent(settings, {"ten": ten})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [[True, name, "ann"] for name in NAMES]
        assert (await statuses(store, task)).count("PAUSED") == 1


async def test_no_repr_shows_a_token_or_a_secret(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        run = await task_of(store, await client.submit("ask", session_id=SESSION))
        requested = PauseRequest.read(store.settings, "why", "s3cret", {}, reveal=True)
        await TaskPauses(store).open(run, "pause:why#1", requested)
        token = pause_token(run, "pause:why#1")
        shown = repr([run, requested, Pause("why", token), await client.pauses()])
        for hidden in (token, run.secret, "s3cret"):
            assert hidden not in shown
        await client.drop_queue()
        with suppress(InvalidTransition):
            await TaskTransitions(store).finish_run(run, TaskStatus.COMPLETE)
