"""Queues: what waits and runs in them; pause and resume one."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from redis_state.documents import queue_document
from redis_state.gateway.answers import answer
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import NoBody
from redis_state.gateway.results import QueueResult, QueuesResult


async def list_queues(call: ApiCall) -> Response:
    """List the queues that live workers serve, the default one, and those that have tasks."""
    return answer({"queues": [queue_document(each) for each in await call.client.queues.list()]})


async def read_queue(call: ApiCall) -> Response:
    """Read a queue. An unknown one is empty."""
    return answer(queue_document(await call.client.queues.get(call.path["queue"])))


async def pause_queue(call: ApiCall) -> Response:
    """Begin no more tasks of a queue. What runs is not stopped."""
    await call.client.queues.pause(call.path["queue"])
    return await read_queue(call)


async def resume_queue(call: ApiCall) -> Response:
    """Begin tasks of a queue again."""
    await call.client.queues.resume(call.path["queue"])
    return await read_queue(call)


def _change(name: str, endpoint: Any, summary: str) -> Operation:
    return Operation(
        "POST",
        f"/v1/queues/{{queue}}/{name}",
        endpoint,
        summary,
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        body=NoBody,
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
    _change("pause", pause_queue, "Pause a queue"),
    _change("resume", resume_queue, "Resume a queue"),
)
