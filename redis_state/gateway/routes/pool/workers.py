"""Workers: the live processes, and what they run."""

from __future__ import annotations

from starlette.responses import Response

from redis_state.documents import worker_document
from redis_state.gateway.answers import answer
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.queries import PartQuery
from redis_state.gateway.results import WorkersResult
from redis_state.worker import WorkerRegistry

_LISTING = "workers"


async def list_workers(call: ApiCall) -> Response:
    """List the live worker processes, by name: all, or a page of them."""
    query = call.query_as(PartQuery)
    found, last = await WorkerRegistry(call.store).page(
        limit=query.limit, after=query.place(_LISTING)
    )
    workers = [worker_document(each) for each in found]
    return answer({"workers": workers, "cursor": query.cursor(_LISTING, last)})


OPERATIONS = (
    Operation(
        "GET",
        "/v1/workers",
        list_workers,
        "List workers",
        over=Over.EVERYTHING,
        query=PartQuery,
        result=WorkersResult,
        answers=(400, 403),
    ),
)
