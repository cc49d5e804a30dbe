"""The agents, which any application could have: a clerk, and a reviewer that one of its tools asks.

Their model is scripted: it answers at once, offline. Put a real one in its place, and nothing else
changes. What the tools and the model do is written to a file, for the driver to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from agents import Agent, Model, ModelResponse, RunConfig, Runner, function_tool
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.testing import ScriptedModel, assistant_message, function_call

from examples.tickets.notes import SLOWLY, STALLS_S, note
from redis_state.integrations.openai_agents import current_task, openai_handlers
from redis_state.worker import AgentWorker, RetryPolicy

_LEASE_S = 1.0
_WORDS = "Let me look at both orders first."
Items: TypeAlias = list[dict[str, Any]]


class Offline(Model):
    """A model that is a function of its input."""

    def __init__(self, write: Callable[[Items], list[TResponseOutputItem]]) -> None:
        self._write = write

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        """Answer in one piece."""
        return await self._of(options).get_response(*arguments, **options)

    async def stream_response(
        self, *arguments: Any, **options: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Answer event by event, the first time slowly if the customer is patient."""
        async for event in self._of(options).stream_response(*arguments, **options):
            yield event
            first = current_task().attempt == 1 and current_task().input == SLOWLY
            if first and event.type == "response.output_text.delta":
                await asyncio.sleep(STALLS_S)

    def _of(self, options: dict[str, Any]) -> ScriptedModel:
        given = options["input"]
        items = [{"content": given}] if isinstance(given, str) else given
        return ScriptedModel([self._write(items)])


def _clerk(items: Items) -> list[TResponseOutputItem]:
    """Be the model of the clerk: look at both orders, ask for both refunds, and tell of it."""
    outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
    note("request", current_task().task.task_id, len(outputs) // 2)
    if len(outputs) == 4:  # noqa: PLR2004 - both calls of both kinds
        return [assistant_message(f"Done: {'; '.join(outputs[2:])}.")]
    if outputs:
        amounts = {"tea": 20, "cup": 21}
        return [
            function_call("refund", {"order": order, "amount": amount}, call_id=f"refund-{order}")
            for order, amount in amounts.items()
        ]
    looks = [
        function_call("look_up", {"order": order}, call_id=f"look_up-{order}")
        for order in ("tea", "cup")
    ]
    return [assistant_message(_WORDS), *looks]


def _reviewer(items: Items) -> list[TResponseOutputItem]:
    note("review", current_task().task.task_id)
    return [assistant_message(f"{len(items)} complaint")]


# Remove it, and the SDK sends its traces to OpenAI, as it does without a task.
quiet = RunConfig(tracing_disabled=True)
reviewer = Agent(name="reviewer", model=Offline(_reviewer))


@function_tool
async def look_up(order: str) -> str:
    """Look an order up, and have its complaints reviewed."""
    note("look_up", current_task().task.task_id, order)
    review = await Runner.run(reviewer, f"Review {order}", run_config=quiet)
    return f"{order}: {review.final_output}"


@function_tool(needs_approval=True)
async def refund(order: str, amount: int) -> str:
    """Refund an order, which a person has to approve."""
    # A bank takes this key, so that a call that is made again pays nothing more.
    note("refund", current_task().task.task_id, order, amount, current_task().effect_id())
    return f"{order} refunded, {amount}"


clerk: Agent[Any] = Agent(name="clerk", model=Offline(_clerk), tools=[look_up, refund])
handlers = openai_handlers(
    clerk,
    publish=True,
    tools={"look_up": RetryPolicy(attempts=3, on=ConnectionError)},
    pauses={"tags": ["refund"]},
    run_config=quiet,
)

# ``redis-state worker examples.openai_agents.agents:worker``
worker = AgentWorker(handlers, lease_s=_LEASE_S)
