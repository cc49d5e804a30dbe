"""A worker of a soak: runs tasks of every kind, and writes down outside what it did."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis_state.worker import AgentWorker, RetryPolicy, TaskContext, retried
from tests.chaos.support.notes import note
from tests.chaos.support.soak import SOAK_LEASE_S, SOAK_STEPS, soak_settings

_STEP_S = 0.05
_AGAIN = RetryPolicy(
    attempts=3, on=ConnectionError, wait_initial_s=0.02, wait_max_s=0.05, wait_jitter_s=0
)


class Runs:
    """The runs of this process. Each notes its begin and end, its steps' effects and results."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        # Steps whose first attempt has failed.
        self._failed: set[str] = set()

    async def handle(self, ctx: TaskContext) -> list[str]:
        """Do the steps of a task, the second of which fails first, and ask if it is to ask."""
        task = f"{ctx.task.session_id} {ctx.task.task_id}"
        run = uuid4().hex
        note(self._folder, "runs", task, run, "begin", self._name, time.monotonic())
        try:
            made: list[str] = []
            for number in range(SOAK_STEPS):
                key = ctx.effect_id("effect")
                work = retried(self._effect, _AGAIN)
                made.append(await ctx.step("effect", work, task, number, key))
                note(self._folder, "results", task, number, made[-1])
                await ctx.progress(f"{number}")
            if ctx.input and ctx.input.get("asks"):
                decision = await ctx.pause("ask")
                made.append(decision.value)
            return made
        finally:
            note(self._folder, "runs", task, run, "end", self._name, time.monotonic())

    async def _effect(self, task: str, number: int, key: str) -> str:
        if number == 1 and key not in self._failed:
            self._failed.add(key)
            raise ConnectionError("the first attempt fails")
        self._failed.discard(key)
        await asyncio.sleep(_STEP_S / 2)
        note(self._folder, "effects", task, number, key)
        # Between the effect and its record: a worker that dies here has it done again.
        await asyncio.sleep(_STEP_S / 2)
        return uuid4().hex


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM, or until death."""
    logging.basicConfig(level=logging.ERROR)
    runs = Runs(Path(argument["folder"]), argument["name"])
    note(Path(argument["folder"]), "workers", argument["name"], os.getpid())
    worker = AgentWorker(
        {"work": runs.handle},
        settings=soak_settings(argument["url"], argument["namespace"]),
        queue=argument["queue"],
        lease_s=SOAK_LEASE_S,
        max_tasks=argument["max_tasks"],
        # These workers die of what is done to them, not of their tasks.
        max_crashes=1_000_000,
        name=argument["name"],
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
