"""The tasks this pool knows. Add yours here: a coroutine that takes a TaskContext."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from redis_state.demo.agents import prepare_order
from redis_state.worker import Handler, TaskContext


async def ask(ctx: TaskContext) -> dict[str, Any]:
    """Ask a person for a decision and return it: the smallest agent there is."""
    await ctx.progress("asking")
    decision = await ctx.approval(str(ctx.input))
    return {"approved": decision.approved, "value": decision.value, "actor": decision.actor}


HANDLERS: dict[str, Handler] = {"ask": ask, "prepare_order": prepare_order}

if find_spec("penguiflow") is not None:
    from workers.flows import FLOWS

    HANDLERS.update(FLOWS)
