"""Health of the process and of the store, metrics, and the description of all operations."""

from __future__ import annotations

from starlette.responses import Response

from redis_state.errors import BackendError
from redis_state.gateway.answers import HttpProblem, answer, not_found
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.results import HealthResult
from redis_state.timeouts import timeout

_PATIENCE_S = 2.0


async def healthz(call: ApiCall) -> Response:
    """Return that this process serves."""
    del call
    return answer({"status": "ok"})


async def readyz(call: ApiCall) -> Response:
    """Return whether the store answers. It names no address."""
    try:
        async with timeout(_PATIENCE_S):
            await call.store.transport.commands.time()
    except (TimeoutError, BackendError):
        wait = {"retry-after": "2"}
        raise HttpProblem(
            503, "unavailable", "the state store cannot answer now", headers=wait
        ) from None
    return answer({"status": "ok"})


async def metrics(call: ApiCall) -> Response:
    """Return the metrics of this process, as Prometheus reads them."""
    written = call.services.metrics()
    if written is None:
        raise not_found()
    body, media_type = written
    return Response(body, headers={"cache-control": "no-store", "content-type": media_type})


async def openapi(call: ApiCall) -> Response:
    """Return this description."""
    return Response(call.services.openapi(), media_type="application/json")


OPERATIONS = (
    Operation(
        "GET", "/healthz", healthz, "Is the process there?", over=Over.NOTHING, result=HealthResult
    ),
    Operation(
        "GET",
        "/readyz",
        readyz,
        "Does the store answer?",
        over=Over.NOTHING,
        result=HealthResult,
    ),
    Operation(
        "GET",
        "/metrics",
        metrics,
        "Read the metrics of this process",
        over=Over.EVERYTHING,
        media_type="text/plain",
        answers=(403, 404),
    ),
    Operation("GET", "/v1/openapi.json", openapi, "Read this description", over=Over.NOTHING),
)
