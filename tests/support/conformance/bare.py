"""The errand as a plain handler."""

from __future__ import annotations

from typing import Any

from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Handler, TaskContext


def handler(errand: Errand) -> Handler:
    """Make the handler."""

    async def run(ctx: TaskContext) -> Any:
        async def make(effect: str) -> str:
            text: str = await ctx.keyed_step("effect", effect, errand.effect, effect, ctx.input)
            await ctx.progress(text)
            return text

        texts = [await make("look"), await make("draft")]
        decision = await ctx.approval("Send it?", {"draft": texts})
        if not decision.approved:
            return {"texts": texts}
        return {"texts": [*texts, await make("send")], "answer": decision.value}

    return run


HOST = HostUnderTest(name="a handler", handler=handler)
