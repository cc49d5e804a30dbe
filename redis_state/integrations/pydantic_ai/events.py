"""Events of an agent's run in its session's log: what the model writes, and which tools it calls.

Text leaves in rows of some 40 ms, see `TaskContext.text`. A request that is made again writes
another generation of its text, which replaces the first. A tool's call and result are one update
each, with a key that is the same in every run. So a replay publishes nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from pydantic_ai.messages import (
    AgentStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallEvent,
    ToolCallPart,
    ToolResultEvent,
)
from pydantic_ai.tools import RunContext

from redis_state.integrations.agent_runs.outputs import shortened
from redis_state.integrations.agent_runs.scopes import AgentScope, current_scope
from redis_state.integrations.agent_runs.texts import OpenTexts
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.worker import TaskContext

_KINDS = {TextPart: UpdateType.RESULT, ThinkingPart: UpdateType.THINKING}


async def publish_events(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Publish an agent's events in its session's log, for `TaskClient.watch` and `TextReader`.

    Give it to `RedisStateDurability(event_stream_handler=publish_events)`. Text is a RESULT. What a
    model thinks is THINKING. A tool's call and its result are each a TOOL_CALL with the id of the
    call. Outside of a task it publishes nothing. Errors: TaskCancelled, LeaseLost.
    """
    scope = current_scope()
    async with OpenTexts[int]() as texts:
        async for event in events:
            if scope is None:
                continue
            match event:
                case PartStartEvent(index=index, part=TextPart() | ThinkingPart() as part):
                    await _begin(texts, index, part, ctx, scope.ctx)
                case PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=text)):
                    await texts.write(index, text)
                case PartDeltaEvent(index=index, delta=ThinkingPartDelta(content_delta=str(text))):
                    await texts.write(index, text)
                case PartEndEvent(index=index):
                    await texts.end(index)
                case ToolCallEvent() | ToolResultEvent():
                    await _publish_tool(scope, ctx, event)
                case _:
                    pass


publish_events.publishes_itself = True  # type: ignore[attr-defined]


def publishes_itself(handler: object) -> bool:
    """Return whether a handler of events keeps once-only by itself, and needs no step for each."""
    return bool(getattr(handler, "publishes_itself", False))


def event_parts(event: Any) -> tuple[str, ...]:
    """Return what distinguishes an event from others of its run, whatever their order."""
    call = getattr(event, "tool_call_id", None)
    kind = str(getattr(event, "event_kind", type(event).__name__))
    return (kind, call) if isinstance(call, str) and call else (kind,)


async def _begin(
    texts: OpenTexts[int],
    index: int,
    part: TextPart | ThinkingPart,
    ctx: RunContext[Any],
    task: TaskContext,
) -> None:
    """Begin a part's text. A part that begins again takes the place of the first."""
    await texts.end(index)
    name = ctx.agent.name if ctx.agent is not None and ctx.agent.name else "agent"
    await texts.begin(index, task.text(name, kind=_KINDS[type(part)]))
    await texts.write(index, part.content)


async def _publish_tool(
    scope: AgentScope, ctx: RunContext[Any], event: ToolCallEvent | ToolResultEvent
) -> None:
    part = event.part
    content: dict[str, Any] = {"tool": part.tool_name, "tool_call_id": part.tool_call_id}
    if ctx.agent is not None:
        content["agent"] = ctx.agent.name
    if isinstance(part, ToolCallPart):
        content["arguments"] = arguments_of(part)
    else:
        content |= {"result": shortened(part.model_response_str()), "outcome": part.outcome}
    key = scope.next(str(ctx.run_step), *event_parts(event), kind="event")
    await scope.ctx.emit(UpdateType.TOOL_CALL, content, key=key)


def arguments_of(call: ToolCallPart) -> Any:
    """Return a call's arguments as a model gave them, which may be no JSON."""
    try:
        return codec.plain(call.args_as_dict())
    except ValueError:
        return call.args
