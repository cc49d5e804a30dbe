"""A worker process that is killed, stopped or cut off, and writes down what it did outside."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import BackendUnavailable, LeaseLost
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.worker import AgentWorker, Handler, TaskContext
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.pause_model import PauseOptions, PauseRequest
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.chaos.support.notes import note
from tests.support.tasks.runs import record_step

STEPS = 3


def work(folder: Path, step_s: float) -> Handler:
    """Make a handler whose steps each have an effect outside, under its key."""

    async def effect(ctx: TaskContext, number: int, key: str) -> str:
        await asyncio.sleep(step_s / 2)
        note(folder, "effects", ctx.task.task_id, number, key)
        # Between the effect and its note in the journal: who dies here has it done again.
        await asyncio.sleep(step_s / 2)
        return uuid4().hex

    async def handler(ctx: TaskContext) -> list[str]:
        made: list[str] = []
        for number in range(STEPS):
            key = ctx.effect_id("effect")
            made.append(await ctx.step("effect", effect, ctx, number, key))
            # What this run takes for the step's result: it has to be the same in every run.
            note(folder, "results", ctx.task.task_id, number, made[-1])
        return made

    return handler


def zombie(folder: Path) -> Handler:
    """Make a handler that, once refused, tries every kind of write of a run that is over."""

    async def handler(ctx: TaskContext) -> str:
        if ctx.attempt > 1:
            return ctx.worker
        while not await _is_refused(_report, ctx):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        refused = 0
        for write in _WRITES:
            refused += await _is_refused(write, ctx)
        # The refusal that ended the loop is one too.
        note(folder, "zombies", ctx.task.task_id, len(_WRITES) + 1, refused + 1)
        return "a zombie's"

    return handler


async def _is_refused(write: Callable[[TaskContext], Awaitable[None]], ctx: TaskContext) -> bool:
    """Write, and insist on an answer."""
    while True:
        # The heartbeat may find out first, and cancel: that must not spare us the refusal. And a
        # call that was under way when the process was stopped may be overdue when it wakes up.
        with suppress(asyncio.CancelledError, BackendUnavailable):
            try:
                await write(ctx)
            except LeaseLost:
                return True
            return False


async def _report(ctx: TaskContext) -> None:
    update = StateUpdate(
        session_id=ctx.task.session_id,
        task_id=ctx.task.task_id,
        trace_id=None,
        update_type=UpdateType.PROGRESS,
        content={"epoch": ctx.epoch},
    )
    # Below the context, which is polite: it would stop at a checkpoint.
    await ctx.store.updates.save(update, fence=ctx._started.held.fence)


async def _step(ctx: TaskContext) -> None:
    await record_step(ctx.store, ctx._started, "step:zombie#1", "a zombie's")


async def _pause(ctx: TaskContext) -> None:
    question = PauseRequest.read(
        ctx.store.settings, "why", None, PauseOptions(name="z"), reveal=True
    )
    await TaskPauses(ctx.store).open(ctx._started, "pause:z#1", question)


async def _wait(ctx: TaskContext) -> None:
    await TaskPauses(ctx.store).wait(ctx._started, "pause:z#1")


async def _prioritize(ctx: TaskContext) -> None:
    await TaskChanges(ctx.store).set_priority(ctx._started, 9)


async def _hand_over(ctx: TaskContext) -> None:
    await TaskTransitions(ctx.store).finish_run(ctx._started, TaskStatus.PENDING)


async def _fail(ctx: TaskContext) -> None:
    await TaskTransitions(ctx.store).finish_run(ctx._started, TaskStatus.FAILED, error="a zombie's")


async def _complete(ctx: TaskContext) -> None:
    await TaskTransitions(ctx.store).finish_run(
        ctx._started, TaskStatus.COMPLETE, result="a zombie's"
    )


_WRITES: tuple[Callable[[TaskContext], Awaitable[None]], ...] = (
    _report,
    _step,
    _pause,
    _wait,
    _prioritize,
    _hand_over,
    _fail,
    _complete,
)


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM, or until death."""
    logging.basicConfig(level=logging.ERROR)
    folder = Path(argument["folder"])
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    worker = AgentWorker(
        {"work": work(folder, argument.get("step_s", 0.3)), "zombie": zombie(folder)},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        max_tasks=argument.get("max_tasks", 10),
        # These workers die of what is done to them, not of their tasks.
        max_crashes=1_000_000,
        grace_s=0.2,
        name=argument["name"],
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
