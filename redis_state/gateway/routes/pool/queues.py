"""Queues: what waits and runs in them; pause, resume and limit one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.responses import Response

from redis_state.documents import queue_document, queue_key_document
from redis_state.gateway.answers import answer
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import KeyLimitsBody, NoBody, QueueLimitsBody
from redis_state.gateway.requests.queries import QueueKeysQuery
from redis_state.gateway.results import QueueKeysResult, QueueResult, QueuesResult
from redis_state.primitives.listed import behind_a_write
from redis_state.worker import Rate


async def list_queues(call: ApiCall) -> Response:
    """List the queues that live workers serve, the default one, and those that have tasks."""
    return answer({"queues": [queue_document(each) for each in await call.client.queues.list()]})


async def read_queue(call: ApiCall) -> Response:
    """Read a queue. An unknown one is empty."""
    return answer(queue_document(await call.client.queues.get(call.path["queue"])))


async def list_keys(call: ApiCall) -> Response:
    """List who waits in a queue and who runs, by key: those with the most waiting tasks first."""
    limit = call.query_as(QueueKeysQuery).limit
    found = await call.client.queues.keys(call.path["queue"], limit=limit)
    return answer({"keys": [queue_key_document(each) for each in found]})


async def pause_queue(call: ApiCall) -> Response:
    """Begin no more tasks of a queue. What runs is not stopped."""
    await call.client.queues.pause(call.path["queue"])
    return await _changed(call)


async def resume_queue(call: ApiCall) -> Response:
    """Begin tasks of a queue again."""
    await call.client.queues.resume(call.path["queue"])
    return await _changed(call)


async def limit_queue(call: ApiCall) -> Response:
    """Set how many tasks of a queue run, how many of one key, and how often those may start."""
    await call.client.queues.limit(call.path["queue"], **_limits(call.given(QueueLimitsBody)))
    return await _changed(call)


async def limit_key(call: ApiCall) -> Response:
    """Set what holds for one key in place of the queue's limits."""
    queue, key = call.path["queue"], call.path["limit_key"]
    await call.client.queues.limit_key(queue, key, **_limits(call.given(KeyLimitsBody)))
    return await _changed(call)


async def _changed(call: ApiCall) -> Response:
    """Read a queue behind a change of it."""
    with behind_a_write(call.store.transport.address):
        return await read_queue(call)


def _limits(given: KeyLimitsBody) -> dict[str, Any]:
    """Return the limits that were given, None among them."""
    found: dict[str, Any] = {name: getattr(given, name) for name in given.model_fields_set}
    if given.rate is not None:
        found["rate"] = Rate(given.rate.limit, timedelta(seconds=given.rate.per_s))
    return found


def _change(name: str, endpoint: Any, summary: str, body: Any = NoBody) -> Operation:
    return Operation(
        "POST",
        f"/v1/queues/{{queue}}/{name}",
        endpoint,
        summary,
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        body=body,
        result=QueueResult,
        answers=(403, 413),
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/queues",
        list_queues,
        "List queues",
        over=Over.EVERYTHING,
        result=QueuesResult,
        answers=(403,),
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}",
        read_queue,
        "Read a queue",
        over=Over.EVERYTHING,
        result=QueueResult,
        answers=(404,),
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/keys",
        list_keys,
        "List the keys of a queue",
        over=Over.EVERYTHING,
        query=QueueKeysQuery,
        result=QueueKeysResult,
        answers=(403,),
    ),
    _change("pause", pause_queue, "Pause a queue"),
    _change("resume", resume_queue, "Resume a queue"),
    _change("limit", limit_queue, "Limit a queue", QueueLimitsBody),
    _change("keys/{limit_key}/limit", limit_key, "Limit a key of a queue", KeyLimitsBody),
)
