"""Events of an agent's run in its session's log: what the model writes, and which tools it calls.

Text leaves in rows of some 40 ms, see `TaskContext.text`. A request that is made again writes
another generation of its text, which replaces the first. A tool's call and result are one update
each, with a key that is the same in every run. So a replay publishes nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

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

from redis_state.integrations.agent_runs.scopes import AgentScope, current_scope
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.worker import TaskContext, TextWriter

# Of a tool's result in its update: the whole one is the step's.
MOST_CHARACTERS = 4_096

_KINDS = {TextPart: UpdateType.RESULT, ThinkingPart: UpdateType.THINKING}


async def publish_events(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Publish an agent's events in its session's log, for `TaskClient.watch` and `TextReader`.

    Give it to `RedisStateDurability(event_stream_handler=publish_events)`. Text is a RESULT. What a
    model thinks is THINKING. A tool's call and its result are each a TOOL_CALL with the id of the
    call. Outside of a task it publishes nothing. Errors: TaskCancelled, LeaseLost.
    """
    scope = current_scope()
    async with _Texts(ctx, None if scope is None else scope.ctx) as texts:
        async for event in events:
            if scope is None:
                continue
            match event:
                case PartStartEvent(index=index, part=TextPart() | ThinkingPart() as part):
                    await texts.begin(index, part)
                case PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=text)):
                    texts.write(index, text)
                case PartDeltaEvent(index=index, delta=ThinkingPartDelta(content_delta=str(text))):
                    texts.write(index, text)
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


class _Texts:
    """The texts of one response that are being written, by the number of their part."""

    def __init__(self, ctx: RunContext[Any], task: TaskContext | None) -> None:
        self._task = task
        self._name = ctx.agent.name if ctx.agent is not None and ctx.agent.name else "agent"
        self._open: dict[int, tuple[AsyncExitStack, TextWriter]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for index in list(self._open):
            stack, _ = self._open.pop(index)
            await stack.__aexit__(kind, error, traceback)

    async def begin(self, index: int, part: TextPart | ThinkingPart) -> None:
        """Begin a part's text. A part that begins again takes the place of the first."""
        await self.end(index)
        if self._task is None:
            return
        stack = AsyncExitStack()
        writer = self._task.text(self._name, kind=_KINDS[type(part)])
        self._open[index] = stack, await stack.enter_async_context(writer)
        writer.write(part.content)

    def write(self, index: int, text: str) -> None:
        """Add to a part's text."""
        if index in self._open:
            self._open[index][1].write(text)

    async def end(self, index: int) -> None:
        """End a part's text, if it is one."""
        if index in self._open:
            stack, _ = self._open.pop(index)
            await stack.aclose()


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
        content |= {"result": _shortened(part.model_response_str()), "outcome": part.outcome}
    key = scope.next(str(ctx.run_step), *event_parts(event), kind="event")
    await scope.ctx.emit(UpdateType.TOOL_CALL, content, key=key)


def arguments_of(call: ToolCallPart) -> Any:
    """Return a call's arguments as a model gave them, which may be no JSON."""
    try:
        return codec.plain(call.args_as_dict())
    except ValueError:
        return call.args


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
