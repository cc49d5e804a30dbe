"""Scripted models of the OpenAI Agents SDK: what they write depends on the input alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agents import Agent, Model, ModelResponse, RunConfig, Usage
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

Turn: TypeAlias = str | Sequence[TResponseOutputItem]
Items: TypeAlias = list[dict[str, Any]]

# The SDK must not send traces out of a test.
QUIET = RunConfig(tracing_disabled=True)


def call(tool: str, arguments: Any = None, call_id: str | None = None) -> TResponseOutputItem:
    """Make a model's call of a tool; its id is the tool's name by default."""
    return function_call(tool, arguments or {}, call_id=call_id or tool)


class Scripted(Model):
    """A model that takes its turns in order: the first whose calls are not in the input.

    ``seen`` gets the number of each request, ``inputs`` what it was made with. ``before`` is called
    with the number before the response is written, ``failing`` makes so many requests fail first.
    """

    def __init__(
        self,
        *turns: Turn | Callable[[Items], Turn],
        before: Callable[[int], Awaitable[None]] | None = None,
        after: Callable[[int], None] | None = None,
        failing: int = 0,
        error: Exception | None = None,
    ) -> None:
        self.turns = turns
        self.seen: list[int] = []
        self.inputs: list[Items] = []
        self.failing = failing
        self._error = error or ConnectionError("the model is away")
        self._before = before
        self._after = after

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        """Take the turn that the input is at."""
        number, model = await self._turn(arguments, options)
        response = await model.get_response(*arguments, **options)
        self._ended(number)
        return response

    async def stream_response(
        self, *arguments: Any, **options: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Take the turn that the input is at, event by event."""
        number, model = await self._turn(arguments, options)
        async for event in model.stream_response(*arguments, **options):
            yield event
        self._ended(number)

    async def _turn(
        self, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[int, ScriptedModel]:
        given = options["input"] if "input" in options else arguments[1]
        items: Items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        made = {item.get("call_id") for item in items if item.get("type") == "function_call"}

        def is_next(turn: Turn | Callable[[Items], Turn]) -> bool:
            if callable(turn) or isinstance(turn, str):
                return True
            return any(getattr(item, "call_id", None) not in made for item in turn)

        number, turn = next(each for each in enumerate(self.turns) if is_next(each[1]))
        self.seen.append(number)
        self.inputs.append([dict(item) for item in items])
        if self._before is not None:
            await self._before(number)
        if self.failing:
            self.failing -= 1
            raise self._error
        taken = turn(items) if callable(turn) else turn
        output = [assistant_message(taken)] if isinstance(taken, str) else list(taken)
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return number, ScriptedModel([ModelStep(output, usage=usage)])

    def _ended(self, number: int) -> None:
        if self._after is not None:
            self._after(number)


def scripted(*turns: Turn | Callable[[Items], Turn], **options: Any) -> Scripted:
    """Make a model that takes its turns in order."""
    return Scripted(*turns, **options)


def agent_of(model: Model, name: str = "clerk", **options: Any) -> Agent[Any]:
    """Make an agent."""
    return Agent(name=name, model=model, **options)


def outputs(items: Sequence[Any]) -> dict[str, Any]:
    """Return what the tools gave back, by the ids of their calls."""
    return {
        item["call_id"]: item["output"]
        for item in items
        if item.get("type") == "function_call_output"
    }
