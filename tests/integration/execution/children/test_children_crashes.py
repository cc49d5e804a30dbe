"""A process dies before or after each thing it says to the server; the family comes out right.

Not at random: the first thing, the second, and so on, until a whole act has gone by without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import BackendUnavailable, RedisStateStore, Settings
from redis_state.models import SteeringEvent, SteeringEventType, TaskState, TaskStatus
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import SESSION
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import make_due, sweeper_of
from tests.support.tasks.runs import TASK, make, run_once

When = Literal["before", "after"]
Act = Callable[[RedisStateStore], Awaitable[object]]

# A worker asks a server that is away again, for the length of a lease. A dead one does not.
_DOOMED_S = 0.9

# The full size dies at every call.
EVERY = sizes(3, 1)

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


class Doomed:
    """A process that dies: from one of its calls on, nothing it says is heard, nor answered."""

    def __init__(self, store: RedisStateStore, at: int, when: When) -> None:
        self._sender = store.transport.sender
        send, run, ask = self._sender.send, self._sender.run, self._sender.ask
        self._at = at
        self._when = when
        self.calls = 0
        self._sender.send = self._dying(send)  # type: ignore[method-assign]
        self._sender.run = self._dying(run)  # type: ignore[method-assign]
        self._sender.ask = self._dying(ask)  # type: ignore[method-assign]

    @property
    def died(self) -> bool:
        """Whether it came to that."""
        return self.calls >= self._at

    def _dying(self, call: Callable[..., asyncio.Future[Any]]) -> Any:
        def dying(*what: Any, **options: Any) -> asyncio.Future[Any]:
            self.calls += 1
            if self.calls < self._at:
                return call(*what, **options)
            if self.calls == self._at and self._when == "after":
                heard = call(*what, **options)
                unanswered = asyncio.ensure_future(self._unanswered(heard))
                unanswered.add_done_callback(lambda task: task.cancelled() or task.exception())
                return unanswered
            gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            gone.add_done_callback(lambda future: future.exception())
            gone.set_exception(BackendUnavailable("test", "this process is dead"))
            return gone

        return dying

    async def _unanswered(self, heard: asyncio.Future[Any]) -> Any:
        await heard
        raise BackendUnavailable("test", "this process is dead")


async def handler(ctx: TaskContext) -> Any:
    """Be a parent that waits for its child; or be a child."""
    if ctx.input is not None:
        return await ctx.step("work", lambda: f"done by a {ctx.input}")
    child = await ctx.spawn("h", "child")
    await ctx.spawn("h", "loner", isolate=True)
    return await ctx.join(child)


async def states_of(store: RedisStateStore) -> dict[str, TaskState]:
    """List the tasks by what they are."""
    names = ["parent", "child", "loner"]
    return dict(zip(names, await store.list_tasks(SESSION), strict=False))


async def recover(store: RedisStateStore) -> dict[str, TaskState]:
    """Do what other processes do, until nothing is left to be done."""
    for _ in range(20):
        states = await states_of(store)
        for state in states.values():
            lease = store.base.keys.lease(SESSION, state.task_id)
            if await store.transport.sender.send("EXISTS", lease, repeatable=True):
                await store.transport.sender.send("HSET", lease, "expires", 0, repeatable=True)
            await make_due(store, watch_entry(SESSION, state.task_id))
        await sweeper_of(store).run_once()
        for state in (await states_of(store)).values():
            if state.status in (TaskStatus.PENDING, TaskStatus.RUNNING):
                await run_once(store, handler, task_id=state.task_id)
        states = await states_of(store)
        if all(state.status.is_terminal for state in states.values()):
            return states
    raise AssertionError(f"not over: {await states_of(store)}")


async def until_it_lives(
    settings: Settings, act: Act, when: When, every: int
) -> AsyncIterator[int]:
    """Let an act die at one of its first calls, and at every nth one after it, until it lives."""
    # The other calls in each form of a test.
    at = 0 if when == "before" else -(every // 2)
    died = True
    while died:
        at += every
        async with RedisStateStore(settings) as doomed:
            fault = Doomed(doomed, at, when)
            with suppress(BackendUnavailable):
                await act(doomed)
            died = fault.died
        if died:
            yield at


async def forget(store: RedisStateStore) -> None:
    """Begin anew: an earlier family's tasks are no concern of the next one."""
    for state in await store.list_tasks(SESSION):
        for key in (
            store.base.keys.task(SESSION, state.task_id),
            store.base.keys.children(SESSION, state.task_id),
        ):
            await store.transport.sender.send("DEL", key, repeatable=True)
    await store.transport.sender.send("DEL", store.base.keys.tasks(SESSION), repeatable=True)


async def prepared(store: RedisStateStore, runs: str) -> None:
    """Bring a new family to where an act begins, by the runs that come before it."""
    await forget(store)
    await make(store)
    for name in runs.split():
        await run_once(store, handler, task_id=(await states_of(store))[name].task_id)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("before", "runs"), [("", "parent"), ("parent", "child"), ("parent child", "parent")]
)
async def test_a_worker_that_dies_anywhere_changes_nothing_about_the_outcome(
    store: RedisStateStore,
    settings: Settings,
    *,
    when: When,
    before: str,
    runs: str,
    every: int,
) -> None:
    deaths = 0

    async def act(doomed: RedisStateStore) -> None:
        await prepared(store, before)
        task = (await states_of(store))[runs].task_id
        await run_once(doomed, handler, task_id=task, lease_s=_DOOMED_S)

    async for _ in until_it_lives(settings, act, when, every):
        deaths += 1
        states = await recover(store)
        assert {name: (state.status, state.result) for name, state in states.items()} == {
            "parent": (TaskStatus.COMPLETE, "done by a child"),
            "child": (TaskStatus.COMPLETE, "done by a child"),
            "loner": (TaskStatus.COMPLETE, "done by a loner"),
        }
        assert len(await store.list_tasks(SESSION)) == 3
    print(f"{runs} after {before or 'nothing'}: {deaths} deaths {when} a call")  # noqa: T201
    assert deaths >= 10 // every


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_dies_anywhere_in_a_cancel_leaves_no_child_of_a_cancelled_parent(
    store: RedisStateStore, settings: Settings, when: When, every: int
) -> None:
    outcomes: list[tuple[str, str]] = []

    async def act(doomed: RedisStateStore) -> None:
        await prepared(store, "parent")
        async with TaskClient(doomed) as client:
            await client.cancel(SESSION, TASK, reason="enough")

    async for _ in until_it_lives(settings, act, when, every):
        cancelled = (await states_of(store))["parent"].status is TaskStatus.CANCELLED
        states = await recover(store)
        assert states["loner"].status is TaskStatus.COMPLETE
        if cancelled:
            assert states["child"].status is TaskStatus.CANCELLED
        outcomes.append((states["parent"].status.value, states["child"].status.value))
    print(f"cancel: {len(outcomes)} deaths {when} a call: {sorted(set(outcomes))}")  # noqa: T201
    # Too early to be heard, heard by the parent's next run, and done by a sweeper.
    assert set(outcomes) == {
        ("COMPLETE", "COMPLETE"),
        ("CANCELLED", "COMPLETE"),
        ("CANCELLED", "CANCELLED"),
    }
    assert TASK in {state.task_id for state in await store.list_tasks(SESSION)}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_anywhere_while_its_task_is_cancelled_leaves_no_child_behind(
    store: RedisStateStore, settings: Settings, when: When, every: int
) -> None:
    deaths = 0

    async def told_to_cancel(ctx: TaskContext) -> None:
        for name in ("child", "loner"):
            await ctx.spawn("h", name, isolate=name == "loner")
        event = SteeringEvent(
            session_id=SESSION, task_id=TASK, event_type=SteeringEventType.CANCEL, event_id="e"
        )
        await store.save_steering(event)
        await ctx.inbox.catch_up()
        await ctx.checkpoint()

    async def act(doomed: RedisStateStore) -> None:
        await forget(store)
        await store.steering.clear(SESSION)
        await make(store)
        await run_once(doomed, told_to_cancel, lease_s=_DOOMED_S)

    async for _ in until_it_lives(settings, act, when, every):
        deaths += 1
        reported = bool(await store.list_steering(SESSION, task_id=TASK))
        cancelled = (await states_of(store))["parent"].status is TaskStatus.CANCELLED
        states = await recover(store)
        if reported:
            assert states["parent"].status is TaskStatus.CANCELLED
            assert states["loner"].status is TaskStatus.COMPLETE
        if cancelled:
            assert states["child"].status is TaskStatus.CANCELLED
    print(f"cancelled while it runs: {deaths} deaths {when} a call")  # noqa: T201
    assert deaths >= 10 // every
