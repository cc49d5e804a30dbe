"""Workers: the live processes, and what they run."""

from __future__ import annotations

from starlette.responses import Response

from redis_state.documents import worker_document
from redis_state.gateway.answers import answer
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.results import WorkersResult


async def list_workers(call: ApiCall) -> Response:
    """List the live worker processes."""
    return answer({"workers": [worker_document(each) for each in await call.client.workers()]})


OPERATIONS = (
    Operation(
        "GET",
        "/v1/workers",
        list_workers,
        "List workers",
        over=Over.EVERYTHING,
        result=WorkersResult,
        answers=(403,),
    ),
)
