"""Pauses: list and read them; decide one by its public id, never by a token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from redis_state.errors import TokenResolved
from redis_state.gateway.answers import already_resolved, answer, forbidden, not_found
from redis_state.gateway.auth.principal import Principal, Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import DecisionBody, DelegateBody
from redis_state.gateway.requests.queries import PausesQuery
from redis_state.gateway.results import DecidedResult, DelegatedResult, PauseResult, PausesResult
from redis_state.gateway.showing.documents import pause_document
from redis_state.gateway.showing.known_pauses import KnownPause, read_known
from redis_state.gateway.showing.visible import shown_decision, shown_name, shown_pause
from redis_state.worker import OpenPause
from redis_state.worker.tasks.waitpoints.pause_pages import list_pause_page

_PAUSE = "/v1/pauses/{pause}"
_OWN_RIGHTS = (Right.READ, Right.RESOLVE)


async def list_pauses(call: ApiCall) -> Response:
    """List the open pauses that the caller sees, the oldest first. A page may be short, or empty,
    and still have a cursor. 403: the caller may see no pause at all, or none of the session.
    """
    query, caller = call.query_as(PausesQuery), call.principal
    if not caller.has_any(*_OWN_RIGHTS):
        raise forbidden("the caller may see no pause")
    # Who has a tag may see pauses of any session.
    if query.session_id is not None and not (
        caller.named("tag", *_OWN_RIGHTS) or caller.sees_pause(query.session_id, ())
    ):
        raise forbidden("the caller may see no pause of this session")
    page = await list_pause_page(
        call.store,
        _sessions(caller, query),
        listing=["pauses", query.tag, query.session_id, query.mine],
        limit=query.limit,
        after=query.after,
        wanted=lambda pause: (
            caller.sees_pause(pause.session_id, pause.tags)
            and (query.tag is None or query.tag in pause.tags)
            and (not query.mine or _may_decide(caller, pause))
        ),
        opened_until=None
        if query.older_than is None
        else datetime.now(UTC) - timedelta(seconds=query.older_than),
    )
    pauses = [shown_pause(call, pause_document(each)) for each in page.pauses]
    return answer({"pauses": pauses, "cursor": page.cursor})


async def read_pause(call: ApiCall) -> Response:
    """Read a pause: an open one with what it asks, a resolved one with who decided it."""
    known = await _seen(call, call.path["pause"])
    pause = await call.client.pause(known.pause_id) if known.is_open else None
    if pause is not None:
        return answer(shown_pause(call, pause_document(pause)))
    if known.is_open:
        # It is over since it was read: decided, which is no secret, or gone.
        known = await _seen(call, known.pause_id)
    if known.is_open:
        raise not_found()
    document = {
        "state": "resolved",
        "session_id": known.session_id,
        "task_id": known.task_id,
        "pause_id": known.pause_id,
        "name": shown_name(call, known) or "",
        "tags": known.tags,
        "by": known.actor,
        "at": None if known.at is None else known.at.isoformat(),
        "decision": shown_decision(call, known, known.decision),
    }
    return answer(document)


async def decide_pause(call: ApiCall) -> Response:
    """Decide a pause, once. Every later caller gets 409, with who decided it, when and how."""
    body = call.given(DecisionBody)
    known = await decidable_pause(call, call.path["pause"])
    return await decide(
        call,
        known,
        approved=body.approved,
        value=body.value,
        actor=call.principal.subject,
        claim=call.own_key(known.pause_id),
    )


async def decide(
    call: ApiCall, known: KnownPause, *, approved: bool, value: Any, actor: str, claim: str | None
) -> Response:
    """Decide a pause that the caller may decide."""
    try:
        state = await call.client.resolve(
            known.decides, approved=approved, value=value, actor=actor, idempotency_key=claim
        )
    except TokenResolved as error:
        # A value is the decider's own text: it may hold a token, as every other.
        decision = shown_decision(call, known, error.decision)
        raise already_resolved(error.actor, error.at_ms, decision) from None
    task = None
    if state is not None and call.principal.may(Right.READ, known.session_id):
        task = {
            "session_id": state.session_id,
            "task_id": state.task_id,
            "status": state.status.value,
        }
    return answer({"pause_id": known.pause_id, "by": actor, "approved": approved, "task": task})


async def delegate_pause(call: ApiCall) -> Response:
    """Hand the caller's vote on a pause to another actor."""
    body, actor = call.given(DelegateBody), call.principal.subject
    known = await decidable_pause(call, call.path["pause"])
    if not known.is_open and known.actor is not None and known.at is not None:
        decision = shown_decision(call, known, known.decision)
        raise already_resolved(known.actor, round(known.at.timestamp() * 1000), decision)
    try:
        await call.client.delegate(known.decides, body.to, actor=actor)
    except TokenResolved as error:
        # It was decided meanwhile.
        decision = shown_decision(call, known, error.decision)
        raise already_resolved(error.actor, error.at_ms, decision) from None
    return answer({"pause_id": known.pause_id, "by": actor, "to": body.to})


async def decidable_pause(call: ApiCall, pause_id: str) -> KnownPause:
    """Return a pause that the caller may decide. Errors: HttpProblem, 403 or 404."""
    if not call.principal.has_any(Right.RESOLVE):
        raise forbidden()
    known = await _seen(call, pause_id)
    if not call.principal.may_decide(Right.RESOLVE, known.session_id, known.tags):
        raise forbidden()
    return known


def _sessions(caller: Principal, query: PausesQuery) -> list[str] | None:
    """Return whose pauses are to be read; None for those of all sessions."""
    if query.session_id is not None:
        return [query.session_id]
    if caller.named("tag", *_OWN_RIGHTS) or any(map(caller.everywhere, _OWN_RIGHTS)):
        return None
    return [*caller.named("session", *_OWN_RIGHTS)]


def _may_decide(caller: Principal, pause: OpenPause) -> bool:
    return caller.may_decide(Right.RESOLVE, pause.session_id, pause.tags) and pause.may_decide(
        caller.subject
    )


async def _seen(call: ApiCall, pause_id: str) -> KnownPause:
    """Return a pause that the caller sees. One that is not there, and one that is not for the
    caller to see, are alike.
    """
    if not call.principal.has_any(*_OWN_RIGHTS):
        raise not_found()
    known = await read_known(call.store, pause_id)
    if known is None or not call.principal.sees_pause(known.session_id, known.tags):
        raise not_found()
    return known


OPERATIONS = (
    Operation(
        "GET",
        "/v1/pauses",
        list_pauses,
        "List open pauses",
        over=Over.OWN,
        query=PausesQuery,
        result=PausesResult,
        answers=(400, 403),
    ),
    Operation(
        "GET", _PAUSE, read_pause, "Read a pause", over=Over.OWN, result=PauseResult, answers=(404,)
    ),
    Operation(
        "POST",
        f"{_PAUSE}/decision",
        decide_pause,
        "Decide a pause",
        right=Right.RESOLVE,
        over=Over.OWN,
        body=DecisionBody,
        result=DecidedResult,
        answers=(403, 404, 409, 413),
        key="A repeated call of this caller with the same decision gets the same answer.",
    ),
    Operation(
        "POST",
        f"{_PAUSE}/delegate",
        delegate_pause,
        "Hand a vote to another actor",
        right=Right.RESOLVE,
        over=Over.OWN,
        body=DelegateBody,
        result=DelegatedResult,
        answers=(403, 404, 409, 413),
    ),
)
