"""The agents, which any application could have: a clerk, and a reviewer that one of its tools asks.

Their model is scripted: it answers at once, offline. Put a real one in its place, and nothing else
changes. What the tools and the model do is written to a file, for the driver to count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from examples.tickets.notes import SLOWLY, STALLS_S, note
from redis_state.integrations.pydantic_ai import (
    RedisStateDurability,
    current_task,
    publish_events,
    pydantic_handlers,
)
from redis_state.worker import AgentWorker, RetryPolicy

_LEASE_S = 1.0
_LAST = 2
_WORDS = "Let me look at both orders first."


async def _write(
    messages: list[ModelMessage], _: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Be the model of the clerk: look at both orders, ask for both refunds, and tell of it."""
    number = sum(isinstance(message, ModelResponse) for message in messages)
    note("request", current_task().task.task_id, number)
    if number == _LAST:
        yield f"Done: {'; '.join(_returned(messages))}."
        return
    if number == 0:
        for word in _WORDS.split():
            yield f"{word} "
        if current_task().attempt == 1 and current_task().input == SLOWLY:
            await asyncio.sleep(STALLS_S)
    for index, order in enumerate(("tea", "cup")):
        arguments = {"order": order} if number == 0 else {"order": order, "amount": 20 + index}
        name = "look_up" if number == 0 else "refund"
        yield {index: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"{name}-{order}")}


async def _review(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    note("review", current_task().task.task_id)
    yield f"{len(messages)} complaint"


def _returned(messages: list[ModelMessage]) -> list[str]:
    last: Any = messages[-1]
    return [str(part.content) for part in last.parts if isinstance(part, ToolReturnPart)]


reviewer = Agent(
    FunctionModel(stream_function=_review),
    name="reviewer",
    capabilities=[RedisStateDurability(event_stream_handler=publish_events)],
)

clerk = Agent(
    FunctionModel(stream_function=_write),
    name="clerk",
    capabilities=[
        RedisStateDurability(
            event_stream_handler=publish_events,
            tools={"look_up": RetryPolicy(attempts=3, on=ConnectionError)},
            pauses={"tags": ["refund"]},
        )
    ],
)


@clerk.tool
async def look_up(ctx: RunContext[Any], order: str) -> str:
    """Look an order up, and have its complaints reviewed."""
    note("look_up", current_task().task.task_id, order)
    review = await reviewer.run(f"Review {order}", usage=ctx.usage)
    return f"{order}: {review.output}"


@clerk.tool_plain(requires_approval=True)
async def refund(order: str, amount: int) -> str:
    """Refund an order, which a person has to approve."""
    # A bank takes this key, so that a call that is made again pays nothing more.
    note("refund", current_task().task.task_id, order, amount, current_task().effect_id())
    return f"{order} refunded, {amount}"


# ``redis-state worker examples.pydantic_ai.agents:worker``
worker = AgentWorker(pydantic_handlers(clerk), lease_s=_LEASE_S)
