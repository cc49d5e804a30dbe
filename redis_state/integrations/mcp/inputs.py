"""What a tool on a worker asks its client: a pause that the client's answer decides.

The task is `input_required` until all its questions are answered, and its worker is free. Other
pauses of a task, such as an approval by an operator, are not shown to the client.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from mcp.server.elicitation import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
    render_elicitation_schema,
)
from mcp_types import (
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputResponse,
    ListRootsRequest,
    ListRootsResult,
)
from pydantic import BaseModel, TypeAdapter

from redis_state.worker import OpenPause, Pause, TaskContext

ModelT = TypeVar("ModelT", bound=BaseModel)

_REASON = "mcp_input"
_REQUEST: TypeAdapter[InputRequest] = TypeAdapter(InputRequest)
_RESPONSES: dict[str, TypeAdapter[Any]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


async def open_input(ctx: TaskContext, request: InputRequest, **options: Any) -> Pause:
    """Ask the client without waiting: several questions can be open at once.

    ``options`` are those of `TaskContext.open_pause`, such as ``name``, ``key`` or ``timeout``. The
    client's answer to an elicitation must fit its schema, or it is refused.
    """
    payload = request.model_dump(by_alias=True, mode="json", exclude_none=True)
    if isinstance(request, ElicitRequest) and isinstance(request.params, ElicitRequestFormParams):
        options.setdefault("schema", _form(request.params.requested_schema))
    return await ctx.open_pause(_REASON, payload, **options)


async def input_of(ctx: TaskContext, pause: Pause, request: InputRequest) -> InputResponse:
    """Wait for the client's answer. Errors: those of `TaskContext.wait_for`."""
    decision = await ctx.wait_for(pause)
    response: InputResponse = _RESPONSES[request.method].validate_python(decision.value)
    return response


async def ask_client(ctx: TaskContext, request: InputRequest, **options: Any) -> InputResponse:
    """Ask the client for input and wait: an `ElicitRequest`, `CreateMessageRequest` or
    `ListRootsRequest`. See `open_input`.
    """
    return await input_of(ctx, await open_input(ctx, request, **options), request)


async def elicit(
    ctx: TaskContext, message: str, schema: type[ModelT], **options: Any
) -> AcceptedElicitation[ModelT] | DeclinedElicitation | CancelledElicitation:
    """Ask the client's user to fill in a form, and wait. See `open_input`."""
    response = await ask_client(ctx, form_request(message, schema), **options)
    return read_form(response, schema)


def form_request(message: str, schema: type[BaseModel]) -> ElicitRequest:
    """Return the request for a form. Errors: TypeError for a model that no form can show."""
    rendered = render_elicitation_schema(schema)
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=rendered))


def read_form(
    response: InputResponse, schema: type[ModelT]
) -> AcceptedElicitation[ModelT] | DeclinedElicitation | CancelledElicitation:
    """Read the answer to a form."""
    answer = cast("ElicitResult", response)
    if answer.action == "accept":
        return AcceptedElicitation(data=schema.model_validate(answer.content or {}))
    return DeclinedElicitation() if answer.action == "decline" else CancelledElicitation()


def request_of(pause: OpenPause) -> dict[str, Any] | None:
    """Return what a pause asks the client; None for a pause that is for others."""
    if pause.reason != _REASON or pause.pause_id is None:
        return None
    payload: Any = pause.payload
    return cast("dict[str, Any]", payload) if isinstance(payload, dict) else None


def response_of(request: dict[str, Any], response: object) -> dict[str, Any]:
    """Check the form of a client's answer. Errors: ValidationError."""
    read = _RESPONSES[_REQUEST.validate_python(request).method].validate_python(response)
    found: dict[str, Any] = read.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


def _form(requested: Any) -> dict[str, Any]:
    """Return the schema of an answer: the form is needed only if the user accepts."""
    content = cast("dict[str, Any]", dict(requested))
    return {
        "type": "object",
        "properties": {"action": {"enum": ["accept", "decline", "cancel"]}},
        "required": ["action"],
        "if": {"properties": {"action": {"const": "accept"}}},
        "then": {"properties": {"content": content}, "required": ["content"]},
    }


__all__ = [
    "CreateMessageRequest",
    "ListRootsRequest",
    "ask_client",
    "elicit",
    "form_request",
    "input_of",
    "open_input",
    "read_form",
    "request_of",
    "response_of",
]
