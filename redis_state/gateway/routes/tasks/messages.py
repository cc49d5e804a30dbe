"""Talk to a running task: send it signals and requests, and read the values that it published."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from redis_state.documents import value_document
from redis_state.errors import NoReceiver, RequestTimeout
from redis_state.gateway.answers import answer, not_found
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation
from redis_state.gateway.requests.bodies import RequestBody, SignalBody
from redis_state.gateway.results import (
    FoundValueResult,
    RepliedResult,
    SignalledResult,
    ValuesResult,
)
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.models import StateUpdate, UpdateType

_TASK = "/v1/sessions/{session}/tasks/{task}"
_NOTHING: Any = object()


async def signal_task(call: ApiCall) -> Response:
    """Send a signal to a task that runs or waits: once for each key of a caller."""
    body, (session_id, task_id) = call.given(SignalBody), call.task
    sent = await call.client.signal(
        session_id,
        task_id,
        body.name,
        body.payload,
        idempotency_key=call.own_key("signal", session_id, task_id, body.name),
        sender=call.principal.subject,
    )
    document = {"session_id": session_id, "task_id": task_id, "name": body.name}
    return answer({**document, "message_id": sent}, 202)


async def request_task(call: ApiCall) -> Response:
    """Send a request to a task, and wait for its reply: one request for each key of a caller.

    Without a reply in time, the status is 202. Repeat the call under its key to wait on.
    """
    body, (session_id, task_id) = call.given(RequestBody), call.task
    try:
        reply = await call.client.request(
            session_id,
            task_id,
            body.name,
            body.payload,
            timeout_s=body.wait_s,
            idempotency_key=call.own_key("request", session_id, task_id, body.name),
            sender=call.principal.subject,
        )
    except RequestTimeout as late:
        return answer({"answered": False, "received": not isinstance(late, NoReceiver)}, 202)
    replied = {"answered": True, "received": True, "reply": reply}
    return answer(cut_tokens(session_id, replied))


async def list_values(call: ApiCall) -> Response:
    """List the values that a task has published, by key."""
    listed = await call.client.values(*call.task)
    shown = [_shown(call, each.key, each.value) for each in listed]
    documents = [
        value_document(each) | {"value": value}
        for each, value in zip(listed, shown, strict=True)
        if value is not _NOTHING
    ]
    return answer({"values": cut_tokens(call.path["session"], documents)})


async def read_value(call: ApiCall) -> Response:
    """Read the value that a task has published under a key."""
    key = call.path["key"]
    value = await call.client.value(*call.task, key, default=_NOTHING)
    value = value if value is _NOTHING else _shown(call, key, value)
    if value is _NOTHING:
        raise not_found()
    return answer(cut_tokens(call.path["session"], {"key": key, "value": value}))


def _shown(call: ApiCall, key: str, value: Any) -> Any:
    """Return what of a value this caller may see, as in its update."""
    visible, (session_id, task_id) = call.services.visible, call.task
    if visible is None:
        return value
    content = {"notice": "value", "key": key, "value": value}
    update = StateUpdate(
        session_id=session_id,
        task_id=task_id,
        update_type=UpdateType.NOTIFICATION,
        content=content,
    )
    shown: StateUpdate | None = visible(call.principal, update)
    match None if shown is None else shown.content:
        case {"key": name, "value": seen} if name == key:
            return seen
        case _:
            return _NOTHING


OPERATIONS = (
    Operation(
        "POST",
        f"{_TASK}/signal",
        signal_task,
        "Send a signal to a task",
        right=Right.STEER,
        body=SignalBody,
        result=SignalledResult,
        status=202,
        answers=(403, 404, 409, 413),
        key="A repeated call of this caller sends one signal.",
    ),
    Operation(
        "POST",
        f"{_TASK}/request",
        request_task,
        "Send a request to a task",
        right=Right.STEER,
        body=RequestBody,
        result=RepliedResult,
        answers=(202, 403, 404, 409, 413),
        key="A repeated call of this caller waits for the same reply.",
    ),
    Operation(
        "GET",
        f"{_TASK}/values",
        list_values,
        "List the values of a task",
        result=ValuesResult,
        answers=(404,),
    ),
    Operation(
        "GET",
        f"{_TASK}/values/{{key}}",
        read_value,
        "Read a value of a task",
        result=FoundValueResult,
        answers=(404, 409),
    ),
)
