"""Random handlers, disturbed at random: the stream is that of an undisturbed run."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskState, TaskStatus
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.execution.exits import TaskPaused
from tests.support.processes.pools import SESSION
from tests.support.tasks.replays import emitted, say, texts
from tests.support.tasks.runs import begin_again, make, run_once

# More of them under make fuzz. A number makes one program: all processes collect the same tests.
PROGRAMS = int(os.environ.get("REDIS_STATE_EXAMPLES", "40"))


class Disturbed(Exception):
    """This run ends here, as it would with its worker."""


class Program:
    """A random handler: steps, updates, pauses, steering, branches, and parts that run at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.body = self._block(2)
        # What happens only once, whichever run comes there first.
        self.happened: set[int] = set()
        self.emitted: list[tuple[str, str]] = []

    def _block(self, depth: int) -> list[tuple[Any, ...]]:
        kinds = ["emit"] * 4 + ["step", "keyed", "take", "take", "say", "disturb", "pause", "stall"]
        kinds += ["parallel", "branches"] * (depth > 0)
        made: list[tuple[Any, ...]] = []
        for _ in range(self.random.randint(3, 8)):
            kind = self.random.choice(kinds)
            number = self.random.getrandbits(40)
            several = kind in ("parallel", "branches")
            made.append((kind, number, [self._part(depth) for _ in range(2 * several)]))
        return made

    def _part(self, depth: int) -> list[tuple[Any, ...]]:
        # A part is steered, paused and disturbed by what is around it.
        allowed = {"emit", "step", "keyed", "disturb"}
        return [
            (f"{kind}", number, []) for kind, number, _ in self._block(depth - 1) if kind in allowed
        ]

    async def run(self, ctx: TaskContext) -> str:
        self.emitted = []
        return await self._play(ctx, self.body, "none", "")

    async def _play(  # noqa: C901, PLR0912 - one case for each kind of deed
        self, ctx: TaskContext, block: list[tuple[Any, ...]], topic: str, place: str
    ) -> str:
        for position, (kind, number, parts) in enumerate(block):
            here = f"{place}/{position}"
            first = number not in self.happened
            match kind:
                case "emit":
                    noise = uuid.uuid4().hex if number % 3 else None
                    self.emitted.append((here, topic))
                    await ctx.progress(topic, place=here, noise=noise)
                case "step":
                    topic = await ctx.step(f"step {here}", "{}{}".format, topic, number % 7)
                case "keyed":
                    await ctx.keyed_step("keyed", here, int)
                case "take":
                    for text in texts(ctx.inbox.take()):
                        topic = text
                case "say":
                    if first:
                        self.happened.add(number)
                        await say(ctx.store, ctx, f"said {number % 1000}")
                case "disturb" | "stall":
                    if first and number % 2:
                        self.happened.add(number)
                        raise Disturbed(kind)
                case "pause":
                    if number % 3 == 0:
                        await ctx.pause(f"pause {here}")
                case "parallel":
                    await self._at_once([(ctx, part) for part in parts], topic, here, number)
                case _:
                    at_once = [(ctx.branch(f"b{n}"), part) for n, part in enumerate(parts)]
                    await self._at_once(at_once, topic, here, number)
        return topic

    async def _at_once(
        self, parts: list[tuple[TaskContext, Any]], topic: str, place: str, number: int
    ) -> None:
        async def part(n: int, ctx: TaskContext, block: Any) -> None:
            # In another order in each run.
            for _ in range(random.Random(f"{number} {n} {ctx.attempt}").randint(0, 20)):
                await asyncio.sleep(0)
            await self._play(ctx, block, topic, f"{place}.{n}")

        results = await asyncio.gather(
            *(part(n, *given) for n, given in enumerate(parts)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def disturbed(store: RedisStateStore, client: TaskClient, program: Program) -> TaskState:
    """Run a program to its end, however often that is disturbed."""

    async def handler(ctx: TaskContext) -> str:
        try:
            return await program.run(ctx)
        except Disturbed as how:
            if str(how) == "stall":
                # Its worker stalls past its lease: another takes the task over.
                key = ctx.fence.lease
                await store.transport.sender.send("HSET", key, "expires", 0, repeatable=True)
                with suppress(Exception):
                    await run_once(store, handler)
                with suppress(Exception, TaskPaused):
                    await ctx.progress("a zombie's")
            begin_again()

    await make(store)
    for _ in range(60):
        state = await run_once(store, handler)
        if state.status.is_terminal:
            return state
        for pause in await client.pauses(SESSION):
            assert pause.token is not None
            await client.approve(pause.token)
    raise AssertionError("it is never over")


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(PROGRAMS))
async def test_the_stream_of_a_disturbed_run_is_that_of_an_undisturbed_one(
    store: RedisStateStore, client: TaskClient, seed: int
) -> None:
    program = Program(seed)
    state = await disturbed(store, client, program)
    assert (state.status, state.error) == (TaskStatus.COMPLETE, None)
    published = [row for row in await emitted(store) if "place" in row]
    rows = [(row["place"], row["message"]) for row in published]
    # The last run went from the start to the end, with the same steering at the same places: what
    # it came by is what an undisturbed run publishes.
    assert Counter(rows) == Counter(program.emitted)
    for lane in {place.rpartition("/")[0] for place, _ in rows}:
        mine = [row for row in rows if row[0].rpartition("/")[0] == lane]
        assert mine == [row for row in program.emitted if row[0].rpartition("/")[0] == lane]
