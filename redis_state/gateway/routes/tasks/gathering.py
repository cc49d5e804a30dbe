"""Gather bursts into one task: inputs of which the last counts, and lists of items."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.responses import Response

from redis_state.gateway.answers import answer, forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import BatchBody, DebounceBody
from redis_state.gateway.requests.fields import seconds
from redis_state.gateway.results import GatheredResult


async def debounce_task(call: ApiCall) -> Response:
    """Submit a task that begins once no input has come for a time, with the last input."""
    body = call.given(DebounceBody)
    task_id = await call.client.debounce(
        body.handler,
        body.input,
        wait=timedelta(seconds=body.wait_s),
        at_most=seconds(body.at_most_s),
        **_options(call, body),
    )
    return answer({"session_id": body.session_id, "task_id": task_id})


async def batch_item(call: ApiCall) -> Response:
    """Add an item to the list that a task gets: once for each key of a caller."""
    body = call.given(BatchBody)
    task_id = await call.client.batch(
        body.handler,
        body.item,
        after=timedelta(seconds=body.after_s),
        most=body.most,
        item_id=call.own_key("batch", body.session_id, body.handler, body.group),
        **_options(call, body),
    )
    return answer({"session_id": body.session_id, "task_id": task_id})


def _options(call: ApiCall, body: DebounceBody | BatchBody) -> dict[str, Any]:
    if not call.principal.may(Right.SUBMIT, body.session_id):
        raise forbidden()
    names = ("session_id", "group", "queue", "priority", "description", "limit_key", "in_turn")
    return {name: getattr(body, name) for name in names} | {"attributes": body.attributes}


def _gather(name: str, endpoint: Any, summary: str, body: Any, **more: Any) -> Operation:
    return Operation(
        "POST",
        f"/v1/tasks/{name}",
        endpoint,
        summary,
        right=Right.SUBMIT,
        over=Over.OWN,
        body=body,
        result=GatheredResult,
        answers=(403, 409, 413),
        **more,
    )


OPERATIONS = (
    _gather("debounce", debounce_task, "Submit the last of several inputs", DebounceBody),
    _gather(
        "batch",
        batch_item,
        "Add an item to a batch",
        BatchBody,
        key="A repeated call of this caller adds one item.",
    ),
)
