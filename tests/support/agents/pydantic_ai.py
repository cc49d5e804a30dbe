"""Scripted models of pydantic-ai: what they write depends on the messages alone, as in a replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from redis_state.integrations.pydantic_ai import RedisStateDurability

Turn: TypeAlias = str | Sequence[ToolCallPart]


def call(tool: str, arguments: Any = None, call_id: str | None = None) -> ToolCallPart:
    """Make a model's call of a tool; its id is the tool's name by default."""
    return ToolCallPart(tool, arguments or {}, tool_call_id=call_id or tool)


def scripted(
    *turns: Turn | Callable[[list[ModelMessage]], Turn], seen: list[int] | None = None
) -> FunctionModel:
    """Make a model that takes its turns in order; ``seen`` gets the number of each request."""

    def turn_of(messages: list[ModelMessage]) -> Turn:
        begins = max(
            number
            for number, message in enumerate(messages)
            if isinstance(message, ModelRequest)
            and any(part.part_kind == "user-prompt" for part in message.parts)
        )
        number = sum(isinstance(message, ModelResponse) for message in messages[begins:])
        if seen is not None:
            seen.append(number)
        turn = turns[number]
        return turn(messages) if callable(turn) else turn

    def write(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = turn_of(messages)
        return ModelResponse(parts=[TextPart(turn)] if isinstance(turn, str) else list(turn))

    async def stream(
        messages: list[ModelMessage], _: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        turn = turn_of(messages)
        if isinstance(turn, str):
            for word in turn.split(" "):
                yield f"{word} "
            return
        for index, each in enumerate(turn):
            yield {
                index: DeltaToolCall(
                    name=each.tool_name,
                    json_args=each.args_as_json_str(),
                    tool_call_id=each.tool_call_id,
                )
            }

    return FunctionModel(write, stream_function=stream)


def says(word: str, calls: list[int] | None = None) -> Callable[[], str]:
    """Make a tool that says a word, and counts its calls."""

    def tool() -> str:
        if calls is not None:
            calls.append(1)
        return word

    return tool


def returns(messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """Return what the tools gave back, by the ids of their calls."""
    return {
        part.tool_call_id: part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }


def durable_agent(
    model: FunctionModel,
    name: str = "clerk",
    *,
    durability: Mapping[str, Any] | None = None,
    **options: Any,
) -> Agent[Any, Any]:
    """Make an agent with our durability."""
    capabilities = [*options.pop("capabilities", ()), RedisStateDurability(**(durability or {}))]
    return Agent(model, name=name, capabilities=capabilities, **options)
