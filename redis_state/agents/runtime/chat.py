"""Chat completions as OpenAI writes them: a turn as a request, an answer as a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis_state.agents.runtime.llm import Tool, Turn
from redis_state.agents.state.ids import derived_id
from redis_state.agents.state.inference import (
    InferenceResponse,
    LlmConfig,
    ResponseData,
    ResponseFormat,
    Usage,
)
from redis_state.agents.state.messages import Message, ToolCall
from redis_state.agents.state.wire.frozen import FrozenMap
from redis_state.serialization import codec


class Malformed(ValueError):
    """An answer that is not what it should be. Names what is wrong, never what stands there."""


def request_of(
    turn: Turn, *, model: str, config: LlmConfig, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a turn as the body of a request."""
    prompt = turn.state.context.system_prompt
    stated = [_message(message) for message in turn.messages]
    body: dict[str, Any] = {
        **options,
        "model": model,
        "messages": [{"role": "system", "content": prompt}, *stated] if prompt else stated,
        "stream": False,
    }
    if turn.tools:
        body["tools"] = [_tool(tool) for tool in turn.tools]
    if config.max_tokens:
        body.setdefault("max_tokens", config.max_tokens)
    form = turn.state.context.response_format
    if form.type:
        body.setdefault("response_format", _format(form))
    return body


def read_answer(data: bytes, turn: Turn) -> InferenceResponse:
    """Read the body of an answer. Errors: Malformed."""
    try:
        answer: Any = codec.decode(data)
    except ValueError:
        raise Malformed("it is not JSON") from None
    choices = _list(_field(answer, "choices"))
    if not choices:
        raise Malformed("it has no choices")
    message = _field(choices[0], "message")
    calls = tuple(
        _call(call, turn, at) for at, call in enumerate(_list(_field(message, "tool_calls")))
    )
    content = _text(_field(message, "content"))
    if not content and not calls:
        content = _text(_field(message, "refusal"))
    return InferenceResponse(
        # As any id that is not the model's own: the same again after a crash.
        id=_text(_field(answer, "id")) or derived_id(turn.step_id, "response"),
        content=content,
        finish_reason=_text(_field(choices[0], "finish_reason")),
        tool_calls=calls,
        reasoning_content=_text(_field(message, "reasoning_content")),
        usage=_usage(_field(answer, "usage")),
        response_data=ResponseData(status_code=200),
    )


def _message(message: Message) -> dict[str, Any]:
    content = message.content if isinstance(message.content, str) else list(message.content)
    written: dict[str, Any] = {"role": message.role, "content": content}
    if message.name:
        written["name"] = message.name
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": codec.encode(dict(call.arguments)).decode(),
                },
            }
            for call in message.tool_calls
        ]
        written["content"] = content or None
    if message.tool_result is not None:
        written["tool_call_id"] = message.tool_result.call_id or ""
    return written


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _format(form: ResponseFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    schema = {
        "name": form.name or "answer",
        "schema": dict(form.schema_),
        "strict": form.strict,
    }
    return {"type": form.type, "json_schema": schema}


def _call(call: Any, turn: Turn, at: int) -> ToolCall:
    function = _field(call, "function")
    name = _text(_field(function, "name"))
    if not name:
        raise Malformed("a tool call names no tool")
    given = _field(function, "arguments")
    try:
        # Some servers write nothing where there are none, or the object itself.
        arguments: Any = codec.decode(given.encode()) if isinstance(given, str) and given else given
    except ValueError:
        raise Malformed(f"the arguments of tool call {at} are not JSON") from None
    if not isinstance(arguments or {}, Mapping):
        raise Malformed(f"the arguments of tool call {at} are no object")
    call_id = _text(_field(call, "id")) or derived_id(turn.step_id, "call", str(at))
    return ToolCall(id=call_id, name=name, arguments=FrozenMap(arguments or {}))


def _usage(usage: Any) -> Usage:
    """Read what was used: of each token once, as a total adds up the kinds."""
    cached = _number(_field(_field(usage, "prompt_tokens_details"), "cached_tokens"))
    thought = _number(_field(_field(usage, "completion_tokens_details"), "reasoning_tokens"))
    requested = _number(_field(usage, "prompt_tokens"))
    answered = _number(_field(usage, "completion_tokens"))
    return Usage(
        input=max(0, requested - cached),
        output=max(0, answered - thought),
        cache_read=cached,
        reasoning=thought,
    )


def _field(value: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None


def _list(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def _number(value: Any) -> int:
    return value if type(value) is int else 0


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "".join(_text(_field(part, "text")) for part in _list(value))
