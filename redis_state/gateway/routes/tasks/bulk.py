"""One thing done to all tasks that match: at most 500 a call, each with an outcome of its own."""

from __future__ import annotations

from starlette.responses import Response

from redis_state.gateway.answers import answer, forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import BulkBody
from redis_state.gateway.requests.fields import utc
from redis_state.gateway.results import BulkResult
from redis_state.gateway.showing.documents import item_document


async def change_all(call: ApiCall) -> Response:
    """Retry, rerun, fork or cancel all tasks that match, the oldest first."""
    body = call.given(BulkBody)
    given = body.filter
    allowed = call.principal.everywhere(Right.ADMIN)
    if given.session_id is not None:
        allowed = call.principal.may(Right.ADMIN, given.session_id)
    if not allowed:
        raise forbidden()
    report = await call.client.bulk(
        body.action,
        dry_run=body.dry_run,
        limit=body.limit,
        idempotency_key=call.own_key(),
        before=body.before,
        reason=body.reason,
        status=given.status,
        handler=given.handler,
        session_id=given.session_id,
        attributes=given.attributes,
        created_after=utc(given.created_after),
        created_before=utc(given.created_before),
        ended_after=utc(given.ended_after),
        ended_before=utc(given.ended_before),
    )
    document = {
        "items": [item_document(each) for each in report.items],
        "counts": {outcome.value: count for outcome, count in report.counts.items()},
        "more": report.more,
        "dry_run": body.dry_run,
    }
    return answer(document)


OPERATIONS = (
    Operation(
        "POST",
        "/v1/bulk",
        change_all,
        "Change all tasks that match",
        right=Right.ADMIN,
        over=Over.OWN,
        body=BulkBody,
        result=BulkResult,
        answers=(403, 409, 413),
        key="A call repeated by this caller retries no task twice, and copies none twice.",
    ),
)
