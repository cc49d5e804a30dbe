"""A caller dies at each write of a retry: the same call again completes it, with the children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.wire.resp import PreparedScript
from redis_state.worker import Handler, TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION, becomes, client_of, pool
from tests.support.tasks.crash_states import make_due, sweeper_of
from tests.support.tasks.work import Work

_WRITES = {"watch_entry", "retry_task", "queue_job"}
_DYING: ContextVar[bool] = ContextVar("dying", default=False)


class Death:
    """Let nothing more be written from the n-th write on, as if the caller were dead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for name in ("send", "run", "ask"):
            monkeypatch.setattr(CallSender, name, self._watched(getattr(CallSender, name)))

    def _watched(self, call: Callable[..., asyncio.Future[Any]]) -> Callable[..., Any]:
        def watching(
            sender: CallSender, what: Any, *more: Any, **options: Any
        ) -> asyncio.Future[Any]:
            if _DYING.get() and isinstance(what, PreparedScript) and what.script.name in _WRITES:
                self.left -= 1
                if self.left < 0:
                    raise asyncio.CancelledError
            return call(sender, what, *more, **options)

        return watching

    async def survives(self, client: TaskClient, task: str, at: int) -> bool:
        """Retry a task, and die at a write; return whether there were fewer."""
        self.left, was = at, _DYING.set(True)
        try:
            await client.retry(SESSION, task, idempotency_key="k")
        except asyncio.CancelledError:
            return False
        finally:
            _DYING.reset(was)
        return True


class Family:
    """A task with a child that has a child, which fails, or waits until it is cancelled."""

    def __init__(self) -> None:
        self.work = Work()

    @property
    def handlers(self) -> dict[str, Handler]:
        """What a pool serves."""
        return {"parent": self.parent, "child": self.child, "last": self.last, "ask": self.ask}

    async def parent(self, ctx: TaskContext) -> Any:
        """Wait for the child."""
        return await ctx.join(await ctx.spawn("child", ctx.input))

    async def child(self, ctx: TaskContext) -> Any:
        """Wait for a child of its own."""
        return await ctx.join(await ctx.spawn(ctx.input))

    async def last(self, _: TaskContext) -> str:
        """Fail until it is mended."""
        return self.work.step("b")

    async def ask(self, ctx: TaskContext) -> str:
        """Wait for an answer."""
        return str((await ctx.approval("go?")).approved)


async def answer(client: TaskClient, task: str) -> None:
    """Answer what a task asks."""

    async def asked() -> str | None:
        found = [each.token for each in await client.pauses(SESSION) if each.task_id == task]
        return found[0] if found else None

    token = await eventually(asked, "it asks")
    assert token is not None
    await client.approve(token)


async def members(client: TaskClient, task: str) -> list[str]:
    """List a task, its child and the child's child."""
    named = [task]
    while children := await client.children(SESSION, named[-1]):
        named.append(children[0].task_id)
    return named


async def begun(client: TaskClient, last: str, stands: TaskStatus) -> list[str]:
    """Have a family stand there, the last of it first."""
    task = await client.submit("parent", last, session_id=SESSION)
    await becomes(client, task, stands)

    async def whole() -> list[str] | None:
        names = await members(client, task)
        return names if len(names) == 3 else None

    return await eventually(whole, "the last child is there") or []


async def sweep_all(store: RedisStateStore, tasks: Sequence[str]) -> None:
    for task in tasks:
        await make_due(store, watch_entry(SESSION, task))
    await sweeper_of(store, limit=500).run_once()


async def ended_families(store: RedisStateStore, family: Family, last: str) -> list[list[str]]:
    """Make families that have failed, or were cancelled."""
    first, stands = TaskStatus.FAILED, TaskStatus.FAILED
    if last == "ask":
        first, stands = TaskStatus.PAUSED, TaskStatus.CANCELLED
    async with pool(store, family.handlers) as client:
        families = [await begun(client, last, first) for _ in range(12)]
        for names in families:
            if last == "ask":
                await becomes(client, names[-1], TaskStatus.PAUSED)
                await client.cancel(SESSION, names[0])
            for name in names:
                await becomes(client, name, stands)
    return families


async def pending(client: TaskClient, tasks: Sequence[str]) -> list[str]:
    found = {name: await client.get(SESSION, name) for name in tasks}
    return [name for name, state in found.items() if state and state.status is TaskStatus.PENDING]


@pytest.mark.parametrize("last", ["last", "ask"])
async def test_a_retry_whose_caller_dies_is_completed_by_the_same_call(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    family, death = Family(), Death(monkeypatch)
    families = await ended_families(store, family, last)
    family.work.bad = ""
    reopened: list[int] = []
    survived = False
    async with client_of(store) as client:
        for at, names in enumerate(families):
            survived = await death.survives(client, names[0], at)
            # A sweeper finds what is reopened. The cancel of before does not hold for it.
            found = await pending(client, names[1:])
            await sweep_all(store, found)
            assert await pending(client, names[1:]) == found
            reopened.append(len(found))
            again = await client.retry(SESSION, names[0], idempotency_key="k")
            assert again.status is TaskStatus.PENDING
            if survived:
                break
    assert survived
    assert set(reopened) == {0, 1, 2}, "callers died between all of them"
    done = families[: len(reopened)]
    await sweep_all(store, [name for names in done for name in names])
    async with pool(store, family.handlers) as client:
        for names in done:
            if last == "ask":
                await answer(client, names[-1])
            await client.result(SESSION, names[0])
            views = [await client.inspect(SESSION, name) for name in names]
            assert [(view.state.status, view.retries) for view in views if view] == [
                (TaskStatus.COMPLETE, 1)
            ] * 3


async def test_children_of_a_retry_that_was_never_completed_run(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, death = Family(), Death(monkeypatch)
    async with pool(store, family.handlers) as client:
        names = await begun(client, "ask", TaskStatus.PAUSED)
        await becomes(client, names[-1], TaskStatus.PAUSED)
        await client.cancel(SESSION, names[0])
        for name in names:
            await becomes(client, name, TaskStatus.CANCELLED)
        at = 0
        while not await pending(client, names[1:2]):
            assert not await death.survives(client, names[0], at)
            at += 1
        await sweep_all(store, names)
        await answer(client, names[-1])
        await becomes(client, names[1], TaskStatus.COMPLETE)
        assert (await becomes(client, names[0], TaskStatus.CANCELLED)).status.is_terminal
        await client.retry(SESSION, names[0])
        assert await client.result(SESSION, names[0]) == "True"


async def test_a_cancel_behind_a_retry_is_the_childrens_again(store: RedisStateStore) -> None:
    async with pool(store, Family().handlers) as client:
        names = await begun(client, "ask", TaskStatus.PAUSED)
        for _ in range(2):
            await becomes(client, names[-1], TaskStatus.PAUSED)
            await client.cancel(SESSION, names[0])
            for name in names:
                await becomes(client, name, TaskStatus.CANCELLED)
            await client.retry(SESSION, names[0])
        await answer(client, names[-1])
        assert await client.result(SESSION, names[0]) == "True"
