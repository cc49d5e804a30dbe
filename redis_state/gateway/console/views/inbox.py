"""The inbox: open pauses with a form each; approve, reject, delegate; who was faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from starlette.responses import Response

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.console.forms import fields_of, read_value
from redis_state.gateway.console.operations import (
    DECIDE_PAUSE,
    DELEGATE_PAUSE,
    LIST_PAUSES,
    READ_PAUSE,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall, problem_page

_PAGE = 25
_WAYS = {"approve": True, "reject": False}
_TEXTS = ("value", "reason", "to")
_PLACE = ("tag", "mine", "session", "after")


async def show_inbox(call: PageCall) -> Response:
    """Show the open pauses, the oldest first."""
    return call.page("inbox.html", **await _inbox(call))


async def show_inbox_count(call: PageCall) -> Response:
    """Show whether the inbox has changed, for a page that is open."""
    return call.page("inbox_count.html", **await _inbox(call))


async def show_pause(call: PageCall) -> Response:
    """Show one pause: what it asks, or who decided it."""
    return await _pause_page(call, 200)


async def decide(call: PageCall) -> Response:
    """Decide a pause by its form."""
    way, pause_id = call.given("decision"), call.param("pause")
    if way not in _WAYS:
        return await _again(call, HttpProblem(422, "invalid", "choose to approve or to reject"))
    try:
        value = await _filled_in(call, pause_id) if _WAYS[way] else call.given("reason") or None
        await call.perform(
            DECIDE_PAUSE,
            path={"pause": pause_id},
            body={"approved": _WAYS[way], "value": value},
            key=_key(call),
        )
    except HttpProblem as problem:
        return await _again(call, problem)
    return call.go("/inbox", **_here(call), said="approved" if _WAYS[way] else "rejected")


async def delegate(call: PageCall) -> Response:
    """Hand the vote of who looks to another actor."""
    try:
        await call.perform(
            DELEGATE_PAUSE, path={"pause": call.param("pause")}, body={"to": call.given("to")}
        )
    except HttpProblem as problem:
        return await _again(call, problem)
    return call.go("/inbox", **_here(call), said="delegated")


def with_form(call: PageCall, pause: Mapping[str, Any], given: Any = None) -> dict[str, Any]:
    """Return a pause with what its form needs, and whether who looks may decide it."""
    caller = call.principal
    allowed = pause["pause_id"] is not None and caller.may_decide(
        Right.RESOLVE, pause["session_id"], pause["tags"]
    )
    named = [each for each in pause.get("deciders") or () if each["state"] == "open"]
    voter = any(each["name"] == caller.subject for each in named)
    schema = pause.get("schema")
    fields = [] if schema is None else fields_of(schema)
    if given is not None:
        fields = [replace(each, value=given(each.place, each.value)) for each in fields]
    return {
        **pause,
        "fields": fields,
        "written": {name: "" if given is None else given(name) for name in _TEXTS},
        "may_decide": allowed and (voter or not pause.get("deciders")),
        "may_delegate": allowed and voter,
    }


async def _inbox(call: PageCall) -> dict[str, Any]:
    query: dict[str, Any] = {"limit": _PAGE, "mine": call.param("mine") == "1"}
    for name in ("tag", "after"):
        if call.param(name):
            query[name] = call.param(name)
    if "session" in call.query:
        query["session_id"] = call.param("session")
    found = await call.perform(LIST_PAUSES, query=query)
    return {
        "pauses": [with_form(call, each) for each in found["pauses"]],
        "cursor": found["cursor"],
        "tag": call.param("tag"),
        "mine": call.param("mine") == "1",
        "session": call.param("session") if "session" in call.query else None,
        "here": _here(call),
    }


def _here(call: PageCall) -> dict[str, str]:
    """Return the filters and the page of the inbox that the URL names: each link has them."""
    named = {name: call.param(name) for name in _PLACE if name in call.query}
    # An empty text is the id of a session, and no filter else.
    return {name: text for name, text in named.items() if text or name == "session"}


async def _pause_page(call: PageCall, status: int, message: str | None = None) -> Response:
    found = await call.perform(READ_PAUSE, path={"pause": call.param("pause")})
    given = call.given if call.form else None
    pause = with_form(call, found, given)
    return call.page("pause.html", status=status, pause=pause, message=message, here=_here(call))


async def _again(call: PageCall, problem: HttpProblem) -> Response:
    """Show the pause after a form that changed nothing: what is wrong with it, or who decided."""
    try:
        late = problem.code == "already_resolved"
        message = "Too late: this changed nothing." if late else _problem_text(problem)
        return await _pause_page(call, problem.status, message)
    except HttpProblem:
        return problem_page(call, problem)


def _problem_text(problem: HttpProblem) -> str:
    rules = problem.facts.get("errors")
    if not isinstance(rules, list):
        return problem.message
    wrong = cast("list[dict[str, Any]]", rules)
    listed = "; ".join(
        f"{each.get('path') or each.get('field') or 'the value'}: "
        f"{each.get('rule') or each.get('problem')}"
        for each in wrong
    )
    return f"This does not fit: {listed}"


async def _filled_in(call: PageCall, pause_id: str) -> Any:
    found = await call.perform(READ_PAUSE, path={"pause": pause_id})
    schema = found.get("schema")
    if found["state"] != "open" or schema is None:
        return call.given("value") or None
    return read_value(schema, {name: values[-1] for name, values in call.form.items()})


def _key(call: PageCall) -> str | None:
    key = call.given("form_key")
    return key if key and key.isascii() and key.isprintable() else None


PAGES = (
    ConsolePage("GET", "/inbox", show_inbox),
    ConsolePage("GET", "/inbox-count", show_inbox_count),
    ConsolePage("GET", "/pause", show_pause),
    ConsolePage("POST", "/pause/decide", decide, shown=show_pause),
    ConsolePage("POST", "/pause/delegate", delegate, shown=show_pause),
)
