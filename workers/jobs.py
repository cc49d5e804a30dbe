"""The tasks this pool knows. Add yours here: a coroutine that takes a TaskContext."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from redis_state.demo.tasks import review_document
from redis_state.worker import Handler, TaskContext


async def ask(ctx: TaskContext) -> dict[str, Any]:
    """Put a question to a person and answer with what was decided: the smallest agent there is."""
    await ctx.progress("asking")
    decision = await ctx.approval(str(ctx.input))
    return {"approved": decision.approved, "value": decision.value, "by": decision.by}


PENGUIFLOW: dict[str, Handler] = {}

if find_spec("penguiflow") is not None:
    from redis_state.demo import penguin

    # A planner that pauses in one worker and is resumed in whichever; a flow for each task, and one
    # that is kept.
    PENGUIFLOW.update(penguin.HANDLERS)

HANDLERS: dict[str, Handler] = {"ask": ask, "review_document": review_document, **PENGUIFLOW}
