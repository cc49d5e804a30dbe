"""Completion of a pause by URL, for people without an account here.

The URL is signed, for one pause, and expires. GET shows a page and changes nothing, because mail
scanners open links. POST decides: the page's form, or JSON of another program. The URL is the right
to decide, so it stands in no log of this process: see `redis_state.gateway.requests.masking`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, StrictUndefined, Template
from starlette.responses import HTMLResponse, Response

from redis_state.errors import (
    AlreadyVoted,
    BackendError,
    CallerError,
    InvalidDecision,
    NotADecider,
    OutcomeUnknown,
    RedisStateError,
    TokenResolved,
)
from redis_state.gateway.answers import HttpProblem, answer, not_found, problem_of
from redis_state.gateway.auth.hook_links import HookLink, HookLinks
from redis_state.gateway.auth.principal import Right, Unauthenticated
from redis_state.gateway.calls import ApiCall, Operation, Over, validated
from redis_state.gateway.requests.bodies import DecisionBody
from redis_state.gateway.requests.limits import address_of, read_body
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.gateway.showing.known_pauses import KnownPause, read_known
from redis_state.serialization import codec
from redis_state.worker import OpenPause

_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_MOST_FIELDS = 20
_WAYS = {"approve": True, "reject": False}
# The pause is decided, or gone: the form is of no use then.
_OVER = (404, 409)


async def show_hook(call: ApiCall) -> Response:
    """Show a page that asks for the decision. Nothing changes."""
    try:
        link, known = await _found(call)
        return await _page_of(call, link, known)
    except HttpProblem as problem:
        return _refused(problem)
    except RedisStateError as error:
        return _refused(problem_of(error))


async def decide_hook(call: ApiCall) -> Response:
    """Decide the pause of a link: by the page's form, or by JSON."""
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _JSON:
        return await _decide_json(call)
    if kind != _FORM:
        raise HttpProblem(415, "unsupported_media_type", "the body is to be a form or JSON")
    try:
        link, known = await _found(call)
    except HttpProblem as problem:
        return _refused(problem)
    except RedisStateError as error:
        return await _unanswered(call, error)
    return await _decide_form(call, link, known)


async def _unanswered(call: ApiCall, error: RedisStateError) -> Response:
    """Show what was written: whether the pause can be decided is not known now."""
    try:
        written = _written(await _read_form(call))
    except HttpProblem as problem:
        return _refused(problem)
    return _refused(problem_of(error), written=written)


async def _decide_form(call: ApiCall, link: HookLink, known: KnownPause) -> Response:
    written = ""
    try:
        fields = await _read_form(call)
        written = _written(fields)
        approved, value = _decision_of(fields, link, await _schema(call, known))
        await _resolve(call, link, known, approved=approved, value=value)
    except (HttpProblem, RedisStateError) as error:
        status, message = _refusal(error)
        return await _again(call, link, known, status=status, message=message, written=written)
    return _page(200, message=f"You have {'approved' if approved else 'rejected'} this.")


def _refusal(error: HttpProblem | RedisStateError) -> tuple[int, str]:
    """Return the status and the text of a decision that was not taken. Who decided is not in it."""
    problem = error if isinstance(error, HttpProblem) else problem_of(error)
    match error:
        case HttpProblem():
            message = error.message
        case TokenResolved():
            message = _resolved_text(error.decision)
        case InvalidDecision():
            rules = "; ".join(f"{path}: {rule}" for path, rule in error.errors)
            message = f"The value does not fit: {rules}"
        case AlreadyVoted():
            message = "You have decided this already, and that stands."
        case NotADecider():
            message = "Others decide this."
        case CallerError():
            message = problem.message
        case OutcomeUnknown():
            message = "This may have worked. Send it again."
        case BackendError():
            message = "This did not work. Try again later."
        case _:
            message = _resolved_text(None)
    return problem.status, message


async def _again(
    call: ApiCall, link: HookLink, known: KnownPause, *, status: int, message: str, written: str
) -> Response:
    """Show what is wrong, and the form with what was written, if the pause can be decided."""
    if status in _OVER:
        return _page(status, message=message)
    try:
        pause = await call.client.pause(known.decides)
    except RedisStateError:
        pause = None
    shown = None if pause is None else _shown(link, known, pause)
    return _page(status, message=message, pause=shown, written=written)


async def _decide_json(call: ApiCall) -> Response:
    link, known = await _found(call)
    body = await read_body(call.request, most=call.services.max_body_bytes)
    try:
        given = codec.decode(body)
    except codec.DecodeError as error:
        raise HttpProblem(400, "malformed", f"the body is no JSON: {error.reason}") from None
    decision = validated(DecisionBody, given)
    approved = decision.approved
    _check_way(link, approved=approved)
    try:
        await _resolve(call, link, known, approved=approved, value=decision.value)
    except TokenResolved as error:
        # Who decided is for those inside.
        facts = {"at": problem_of(error).facts["at"], "approved": _approved(error.decision)}
        text = "the pause was already resolved"
        raise HttpProblem(409, "already_resolved", text, facts=facts) from None
    return answer({"state": "resolved", "approved": approved})


async def _found(call: ApiCall) -> tuple[HookLink, KnownPause]:
    """Return a link and its pause. What is wrong with a link is nobody's to know."""
    links: HookLinks | None = call.services.hooks
    if links is None:
        raise not_found()
    try:
        link = await links.read(call.path["link"])
    except Unauthenticated:
        call.services.usage.take(f"no link of {address_of(call.request)}")
        raise not_found() from None
    # By the link: behind a proxy all people may have one address.
    call.services.usage.take(f"link {link.link_id}")
    known = await read_known(call.store, link.pause_id, hidden=True)
    if known is None:
        raise not_found()
    return link, known


async def _resolve(
    call: ApiCall, link: HookLink, known: KnownPause, *, approved: bool, value: Any
) -> None:
    await call.client.resolve(
        known.decides,
        approved=approved,
        value=value,
        actor=link.actor,
        idempotency_key=codec.fingerprint("hook", link.link_id),
    )


async def _read_form(call: ApiCall) -> dict[str, list[str]]:
    body = await read_body(call.request, most=call.services.max_body_bytes)
    try:
        text = body.decode("utf-8", "replace")
        return parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HttpProblem(400, "malformed", "The form has too many fields.") from None


def _written(fields: Mapping[str, list[str]]) -> str:
    return fields.get("value", [""])[0]


def _decision_of(
    fields: Mapping[str, list[str]], link: HookLink, schema: dict[str, Any] | None
) -> tuple[bool, Any]:
    way = fields.get("decision", [""])[0]
    if way not in _WAYS:
        raise HttpProblem(422, "invalid", "Choose to approve or to reject.")
    approved, text = _WAYS[way], _written(fields).strip()
    _check_way(link, approved=approved)
    if not (approved and schema is not None):
        return approved, text or None
    try:
        return approved, codec.decode(text.encode())
    except codec.DecodeError:
        raise HttpProblem(422, "invalid", "The value is to be JSON.") from None


def _check_way(link: HookLink, *, approved: bool) -> None:
    if link.decision is not None and _WAYS[link.decision] is not approved:
        raise HttpProblem(403, "forbidden", "this link decides in the other way only")


async def _schema(call: ApiCall, known: KnownPause) -> dict[str, Any] | None:
    pause = await call.client.pause(known.decides)
    return None if pause is None else pause.schema


async def _page_of(call: ApiCall, link: HookLink, known: KnownPause) -> Response:
    pause = await call.client.pause(known.decides) if known.is_open else None
    if pause is None:
        return _page(409, message=_resolved_text(known.decision))
    return _page(200, pause=_shown(link, known, pause))


def _shown(link: HookLink, known: KnownPause, pause: OpenPause) -> dict[str, Any]:
    return {
        "reason": cut_tokens(known.session_id, pause.reason),
        "payload": _json(cut_tokens(known.session_id, pause.payload)),
        "schema": _json(pause.schema),
        "until": f"{pause.expires_at:%Y-%m-%d %H:%M} UTC",
        "actor": link.actor,
        "ways": [way for way in _WAYS if link.decision in (None, way)],
    }


def _json(value: Any) -> str | None:
    """Write a value for people, in their own letters."""
    return None if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def _resolved_text(decision: Any) -> str:
    approved = _approved(decision)
    if approved is None:
        return "This is closed, and cannot be decided any more."
    return f"This was {'approved' if approved else 'rejected'} already."


def _approved(decision: Any) -> bool | None:
    match decision:
        case {"approved": bool(approved)}:
            return approved
        case _:
            return None


def _refused(problem: HttpProblem, *, written: str = "") -> Response:
    expired = problem.code == "not_found"
    message = "This link is not valid, or has expired." if expired else "Try again later."
    response = _page(problem.status, message=message, written=written)
    response.headers.update(problem.headers)
    return response


def _page(
    status: int, *, message: str | None = None, pause: Any = None, written: str = ""
) -> Response:
    template, style, digest = _template()
    policy = f"default-src 'none'; style-src '{digest}'; form-action 'self'"
    page = template.render(message=message, pause=pause, written=written, style=style)
    return HTMLResponse(
        # Half of a surrogate pair is shown by a sign of replacement.
        page.encode("utf-8", "replace"),
        status,
        headers={
            "cache-control": "no-store",
            "content-security-policy": f"{policy}; base-uri 'none'; frame-ancestors 'none'",
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
            "x-robots-tag": "noindex",
        },
    )


@cache
def _template() -> tuple[Template, str, str]:
    """Return the page, its style, and the digest that allows this style."""
    folder = files("redis_state.gateway").joinpath("pages")
    style = folder.joinpath("hook.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    source = folder.joinpath("hook.html").read_text(encoding="utf-8")
    return environment.from_string(source), style, f"sha256-{digest}"


OPERATIONS = (
    Operation(
        "GET",
        "/v1/hooks/{link}",
        show_hook,
        "Show the page of a link",
        right=Right.RESOLVE,
        over=Over.NOTHING,
        media_type="text/html",
        answers=(404, 409),
    ),
    Operation(
        "POST",
        "/v1/hooks/{link}",
        decide_hook,
        "Decide the pause of a link",
        right=Right.RESOLVE,
        over=Over.NOTHING,
        answers=(400, 403, 404, 409, 413, 415),
    ),
)
