"""A workflow of LlamaIndex that waits for a number, keeps a state and ends with it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

workflows: Any = import_module("workflows")
events: Any = import_module("workflows.events")


class Answered(events.HumanResponseEvent):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """What a person answers."""

    number: int


async def begin(ctx: Any, ev: Any) -> Any:
    """Ask for a number."""
    del ev
    await ctx.store.set("seen", 1)
    return events.InputRequiredEvent(prefix="a number?")


async def end(ctx: Any, ev: Any) -> Any:
    """Add the number to what was seen before."""
    seen = await ctx.store.get("seen")
    return events.StopEvent(result=seen + ev.number)


# LlamaIndex reads them. No checker of types has its package.
begin.__annotations__ = {
    "ctx": workflows.Context,
    "ev": events.StartEvent,
    "return": events.InputRequiredEvent,
}
end.__annotations__ = {"ctx": workflows.Context, "ev": Answered, "return": events.StopEvent}


class Counting(workflows.Workflow):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Waits for an answer, and adds it to its state."""


for each in (begin, end):
    workflows.step(workflow=Counting)(each)
