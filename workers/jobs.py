"""The tasks this pool knows. Add yours here: a coroutine that takes a TaskContext."""

from __future__ import annotations

from typing import Any

from redis_state.demo.tasks import review_document
from redis_state.worker import TaskContext


async def ask(ctx: TaskContext) -> dict[str, Any]:
    """Put a question to a person and answer with what was decided: the smallest agent there is."""
    await ctx.progress("asking")
    decision = await ctx.approval(str(ctx.input))
    return {"approved": decision.approved, "value": decision.value, "by": decision.by}


HANDLERS = {"ask": ask, "review_document": review_document}
