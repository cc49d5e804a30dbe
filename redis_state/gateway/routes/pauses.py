"""Pauses: list and read them; decide one by its public id, never by a token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from starlette.responses import Response

from redis_state.errors import InvalidField, TokenResolved
from redis_state.gateway.answers import already_resolved, answer, forbidden, not_found
from redis_state.gateway.auth.principal import Principal, Right
from redis_state.gateway.bodies import DecisionBody, DelegateBody, PausesQuery
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.cutting import cut_tokens
from redis_state.gateway.documents import pause_document
from redis_state.gateway.known_pauses import KnownPause, read_known
from redis_state.gateway.results import DecidedResult, DelegatedResult, PauseResult, PausesResult
from redis_state.serialization import codec
from redis_state.worker import OpenPause
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor

_PAUSE = "/v1/pauses/{pause}"
_OWN_RIGHTS = (Right.READ, Right.RESOLVE)


async def list_pauses(call: ApiCall) -> Response:
    """List the open pauses that the caller sees, the oldest first."""
    query, caller = call.asked(PausesQuery), call.principal
    if not caller.has_any(*_OWN_RIGHTS):
        raise forbidden("the caller may see no pause")
    listing = ["pauses", query.tag, query.session_id, query.mine]
    place = None if query.after is None else _place(read_cursor(listing, query.after))
    found = [
        each
        for each in await _listed(call, query)
        if caller.sees_pause(each.session_id, each.tags) and (not place or _order(each) > place)
    ]
    if query.mine:
        found = [each for each in found if _may_decide(caller, each)]
    if query.older_than is not None:
        before = datetime.now(UTC) - timedelta(seconds=query.older_than)
        found = [each for each in found if each.opened_at <= before]
    page, rest = found[: query.limit], found[query.limit :]
    cursor = write_cursor(listing, codec.encode(_order(page[-1]))) if rest else None
    return answer({"pauses": [pause_document(each) for each in page], "cursor": cursor})


async def read_pause(call: ApiCall) -> Response:
    """Read a pause: an open one with what it asks, a resolved one with who decided it."""
    known = await _seen(call, call.path["pause"])
    pause = await call.client.pause(known.pause_id) if known.is_open else None
    if pause is not None:
        return answer(pause_document(pause))
    if known.is_open:
        raise not_found()
    document = {
        "state": "resolved",
        "session_id": known.session_id,
        "task_id": known.task_id,
        "pause_id": known.pause_id,
        "name": known.name,
        "tags": known.tags,
        "by": known.actor,
        "at": None if known.at is None else known.at.isoformat(),
        "decision": cut_tokens(known.session_id, known.decision),
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
        decision = cut_tokens(known.session_id, error.decision)
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
        decision = cut_tokens(known.session_id, known.decision)
        raise already_resolved(known.actor, round(known.at.timestamp() * 1000), decision)
    await call.client.delegate(known.decides, body.to, actor=actor)
    return answer({"pause_id": known.pause_id, "by": actor, "to": body.to})


async def decidable_pause(call: ApiCall, pause_id: str) -> KnownPause:
    """Return a pause that the caller may decide. Errors: HttpProblem, 403 or 404."""
    if not call.principal.has_any(Right.RESOLVE):
        raise forbidden()
    known = await _seen(call, pause_id)
    if not call.principal.may_decide(Right.RESOLVE, known.session_id, known.tags):
        raise forbidden()
    return known


async def _listed(call: ApiCall, query: PausesQuery) -> list[OpenPause]:
    caller = call.principal
    if query.session_id is not None:
        return await call.client.pauses(query.session_id, tag=query.tag)
    tags = caller.named("tag", *_OWN_RIGHTS)
    if tags or any(caller.everywhere(right) for right in _OWN_RIGHTS):
        return await call.client.pauses(tag=query.tag)
    found: list[OpenPause] = []
    for session_id in caller.named("session", *_OWN_RIGHTS):
        found += await call.client.pauses(session_id, tag=query.tag)
    return sorted(found, key=_order)


def _may_decide(caller: Principal, pause: OpenPause) -> bool:
    return caller.may_decide(Right.RESOLVE, pause.session_id, pause.tags) and pause.may_decide(
        caller.subject
    )


def _order(pause: OpenPause) -> list[str]:
    at = f"{pause.opened_at.timestamp():020.6f}"
    return [at, pause.task_id, pause.name, pause.session_id]


def _place(written: bytes) -> list[str]:
    wrong = InvalidField("after", "is no cursor of this listing")
    try:
        place: Any = codec.decode(written)
    except codec.DecodeError:
        raise wrong from None
    if not isinstance(place, list) or not all(isinstance(each, str) for each in cast("Any", place)):
        raise wrong
    return cast("list[str]", place)


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
