"""A step whose failure the handler has handled fails in every later run, and is not done again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.worker import RetryPolicy, StepPolicy, TaskContext, retried
from tests.support.processes.pools import SESSION, becomes, open_token, pool
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_to_the_end


class Declined(Exception):
    """An error with an attribute that its text makes."""

    def __init__(self, card: str) -> None:
        super().__init__(card)
        self.card = card


class Bank:
    """An outside world with two cards, of which one may be declined."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.calls: list[str] = []
        self.charged: list[str] = []
        self.declined: list[str] = []

    def charge(self, card: str) -> str:
        """Charge a card."""
        self.calls.append(card)
        if card in self.bad:
            raise Declined(card)
        self.charged.append(card)
        return card

    async def pay(self, ctx: TaskContext) -> str:
        """Charge the first card, or else the second one."""
        try:
            return await ctx.step("charge A", self.charge, "A")
        except Declined as declined:
            self.declined.append(declined.card)
            return await ctx.step("charge B", self.charge, "B")


async def test_a_later_run_takes_the_path_of_the_failure(store: RedisStateStore) -> None:
    bank = Bank("A")

    async def handler(ctx: TaskContext) -> str:
        paid = await bank.pay(ctx)
        if ctx.attempt < 3:
            begin_again()
        return paid

    await make(store)
    await run_once(store, handler)
    bank.bad.clear()
    await run_once(store, handler)
    assert (await run_once(store, handler)).result == "B"
    assert (bank.calls, bank.declined) == (["A", "B"], ["A"] * 3)


async def test_a_failure_that_the_handler_has_not_handled_yet_is_tried_again(
    store: RedisStateStore,
) -> None:
    bank = Bank("A")

    async def handler(ctx: TaskContext) -> str:
        try:
            return await ctx.step("charge A", bank.charge, "A")
        except Declined:
            begin_again()

    await make(store)
    await run_once(store, handler)
    bank.bad.clear()
    assert (await run_once(store, handler)).result == "A"


async def test_a_step_in_the_work_of_a_step_is_tried_again_with_it(store: RedisStateStore) -> None:
    bank = Bank("A")

    async def outer(ctx: TaskContext) -> str:
        paid = await bank.pay(ctx)
        if ctx.attempt == 1:
            begin_again()
        return paid

    async def handler(ctx: TaskContext) -> str:
        once = RetryPolicy(attempts=1)
        return await ctx.step("outer", retried(outer, once), ctx)

    await make(store)
    await run_once(store, handler)
    bank.bad.clear()
    assert (await run_once(store, handler)).result == "A"


async def test_what_was_done_after_a_failure_is_undone_when_the_task_is_cancelled(
    store: RedisStateStore,
) -> None:
    bank = Bank("A")

    async def handler(ctx: TaskContext) -> None:
        ctx.on_failure(bank.charged.remove, await bank.pay(ctx), on_cancel=True)
        await ctx.pause()

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        assert bank.charged == ["B"]
        await client.cancel(SESSION, task)
        ended = await client.wait(SESSION, task, timeout_s=60)
    assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "cancelled; undone: remove#1")
    assert bank.charged == []


@pytest.mark.parametrize("wrap", [None, RuntimeError])
async def test_a_retry_keeps_a_failure_behind_which_steps_are_recorded(
    store: RedisStateStore, wrap: type[Exception] | None
) -> None:
    # As texts of errors are: a short one of another class may be anyone's.
    last = "C, the card of the company"
    bank = Bank("A", last)

    async def handler(ctx: TaskContext) -> list[str]:
        paid = await bank.pay(ctx)
        try:
            return [paid, await ctx.step("charge C", bank.charge, last)]
        except Declined as declined:
            # This checkpoint has the failure recorded, but the handler does not go on.
            await ctx.progress("no")
            await ctx.step("mail", str)
            raise (wrap(f"Error running tool: {declined}") if wrap else declined) from None

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        bank.bad.clear()
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task) == ["B", last]
    assert bank.calls == ["A", "B", last, last]


async def test_a_retry_does_no_handled_step_again_for_an_error_without_a_text(
    store: RedisStateStore,
) -> None:
    charged: list[str] = []
    fails = [True]

    def charge(card: str) -> str:
        if card == "A" and fails:
            raise TimeoutError
        charged.append(card)
        return card

    async def handler(ctx: TaskContext) -> str:
        try:
            paid = await ctx.step("charge A", charge, "A")
        except TimeoutError:
            paid = await ctx.step("charge B", charge, "B")
        if fails:
            raise ValueError
        return str(paid)

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        fails.clear()
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task) == "B"
    assert charged == ["B"]


@pytest.mark.parametrize("beside", [False, True])
async def test_a_retry_does_keyed_steps_again_whose_failure_has_other_words(
    store: RedisStateStore, *, beside: bool
) -> None:
    asked: list[bool] = []
    fails = [True]

    def ask() -> str:
        asked.append(bool(fails))
        if fails:
            raise Refused(503, None)
        return "answer"

    async def handler(ctx: TaskContext) -> Any:
        began = asyncio.Event()

        async def tool() -> str:
            try:
                return str(await ctx.keyed_step("model", "k", ask))
            except Refused:
                await ctx.checkpoint()
                await began.wait()
                raise RuntimeError("the tool gave up") from None

        async def other() -> None:
            await ctx.step("other", str)
            await ctx.step("and another", str)
            began.set()

        if beside:
            return (await asyncio.gather(ctx.step("tool", tool), other()))[0]
        try:
            return await ctx.keyed_step("model", "k", ask)
        except Refused:
            await ctx.step("notify", str)
            raise RuntimeError("the agent is away") from None

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        fails.clear()
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task) == "answer"
    assert asked == [True, False]


@pytest.mark.parametrize("before", [None, "charge B"])
async def test_a_fork_takes_the_failures_before_it_along(
    store: RedisStateStore, before: str | None
) -> None:
    bank = Bank("A")

    async def handler(ctx: TaskContext) -> Any:
        paid = await bank.pay(ctx)
        await ctx.pause()
        return paid

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await becomes(client, TASK, TaskStatus.PAUSED)
        bank.bad.clear()
        forked = await client.fork(SESSION, TASK, before=before)
        await client.approve(await open_token(store, forked))
        assert await client.result(SESSION, forked, timeout_s=60) == "B"
    assert bank.calls == ["A", "B"] + ["B"] * bool(before)


class Refused(Exception):
    """An error that its text does not make, with an attribute that is no JSON."""

    def __init__(self, code: int, about: object) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.about = about


class _Alias(Refused):
    """A class that calls itself as another one, as pydantic-ai's HTTP errors do."""


_Alias.__qualname__ = _Alias.__name__ = "Refused"


@pytest.mark.parametrize("kind", [Refused, _Alias])
async def test_a_keyed_step_fails_again_with_its_attributes(
    store: RedisStateStore, kind: type[Refused]
) -> None:
    asked: list[str] = []
    failed: list[tuple[Any, ...]] = []

    def ask(model: str) -> str:
        asked.append(model)
        if asked == ["A"]:
            raise kind(503, object())
        return model

    async def handler(ctx: TaskContext) -> Any:
        try:
            found = await ctx.keyed_step("ask", "A", ask, "A")
        except Refused as refused:
            failed.append((type(refused), str(refused), refused.code, refused.about is None))
            found = await ctx.keyed_step("ask", "B", ask, "B")
        if ctx.attempt < 3:
            begin_again()
        return found

    assert (await run_to_the_end(store, handler)).result == "B"
    assert asked == ["A", "B"]
    same = (kind, "refused with 503", 503)
    assert failed == [(*same, False), (*same, True), (*same, True)]


@pytest.mark.parametrize("key", [None, "key"])
async def test_what_a_failed_step_had_recorded_in_it_is_no_change_of_the_handler(
    store: RedisStateStore, key: str | None
) -> None:
    async def handler(ctx: TaskContext) -> str:
        async def outer() -> None:
            await ctx.step("inner", int)
            raise Refused(503, None)

        failing = ctx.step("outer", outer) if key is None else ctx.keyed_step("outer", key, outer)
        with pytest.raises(Refused):
            await failing
        await ctx.step("next", int)
        if ctx.attempt == 1:
            begin_again()
        return "done"

    ended = await run_to_the_end(store, handler, steps=StepPolicy(on_changed="fail"))
    assert ended.result == "done", ended.error


async def test_a_fork_before_a_step_takes_no_failure_of_its_work_along(
    store: RedisStateStore,
) -> None:
    asked: list[str] = []

    def ask(model: str) -> str:
        asked.append(model)
        if asked == ["A"]:
            raise Refused(503, None)
        return model

    async def handler(ctx: TaskContext) -> Any:
        async def outer() -> Any:
            try:
                return await ctx.keyed_step("ask", "A", ask, "A")
            except Refused:
                return await ctx.keyed_step("ask", "B", ask, "B")

        await ctx.step("before", int)
        found = await ctx.step("outer", outer)
        await ctx.pause()
        return found

    async with pool(store, {"h": handler}) as client:
        await client.submit("h", session_id=SESSION, task_id=TASK)
        await client.approve(await open_token(store, TASK))
        assert await client.result(SESSION, TASK, timeout_s=60) == "B"
        forked = await client.fork(SESSION, TASK, before="outer")
        await client.approve(await open_token(store, forked))
        assert await client.result(SESSION, forked, timeout_s=60) == "A"
    assert asked == ["A", "B", "A"]
