"""A handler whose second step fails until it is told not to."""

from __future__ import annotations

from collections import Counter

from redis_state.worker import TaskContext


class Bad(Exception):
    """What fails a task, as long as it is to fail."""


class Work:
    """A handler of some steps, one of which fails until it is mended."""

    def __init__(self, bad: str = "b") -> None:
        self.bad = bad
        self.done: Counter[str] = Counter()

    def step(self, name: str) -> str:
        """Count a call, and fail in the bad step."""
        self.done[name] += 1
        if name == self.bad:
            raise Bad(name)
        return f"{name}{self.done[name]}"

    async def __call__(self, ctx: TaskContext) -> list[str]:
        """Do the steps a, b and c."""
        await ctx.progress("begun")
        return [await ctx.step(name, self.step, name) for name in ("a", "b", "c")]
