"""A task: what it is, its children, its waterfall, what can be done with it; live."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from starlette.responses import Response

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.console.operations import (
    CANCEL_TASK,
    FORK_TASK,
    RERUN_TASK,
    RETRY_TASK,
    STEER_TASK,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall, problem_page
from redis_state.gateway.console.rendering import render
from redis_state.gateway.console.views.history import (
    ShownRows,
    ShownTree,
    may_be_moves,
)
from redis_state.gateway.console.views.inbox import with_form
from redis_state.gateway.console.views.live import stream_part
from redis_state.gateway.console.views.trees import shortened
from redis_state.gateway.console.views.waterfall import read_waterfall
from redis_state.gateway.streaming.reading import LiveEvent
from redis_state.models import SteeringEventType
from redis_state.serialization import codec

# A page that is sent again and again is of no use to a person, and costs.
_AT_MOST_EVERY_S = 0.25
_TERMINAL = frozenset({"COMPLETE", "FAILED", "CANCELLED"})
_REOPENED = frozenset({"FAILED", "CANCELLED"})
_STEERED_BY = [
    each.value for each in SteeringEventType if each.value not in ("APPROVE", "REJECT", "CANCEL")
]
_STEERED_BY.sort(key=lambda name: name != "USER_MESSAGE")
# What the forms of a task have.
_WRITTEN = ("type", "text", "reason", "hard", "before")


async def show_task(call: PageCall) -> Response:
    """Show a task."""
    written = {name: call.given(name) for name in _WRITTEN}
    found = await _read(call, ShownRows(call), ShownTree(call))
    return call.page("task.html", **found, written=written)


async def stream_task(call: PageCall) -> Response:
    """Stream the part of the page that changes, until the task is terminal."""
    history, tree = ShownRows(call), ShownTree(call)

    async def write(events: list[LiveEvent]) -> str:
        nonlocal history, tree
        await asyncio.sleep(_AT_MOST_EVERY_S)
        if any(each.name == "resync" for each in events):
            # What was read may be of a history that the server has lost.
            history, tree = ShownRows(call), ShownTree(call)
        try:
            found = await _read(call, history, tree, fresh=may_be_moves(events))
        except HttpProblem:
            return ""
        return render("task_part.html", **call.values(), **found)

    return await stream_part(call, {"task": call.param("task")}, write)


async def _read(
    call: PageCall, history: ShownRows, tree_of: ShownTree, *, fresh: bool = True
) -> dict[str, Any]:
    # One after the other: a read that outlived the error of the other one would go on with rows
    # that a later read has too.
    timeline = await history.read(fresh=fresh)
    tree = await tree_of.read(fresh=fresh)
    task, caller, session = timeline["task"], call.principal, call.param("session")
    steer = caller.may(Right.STEER, session)
    copy = caller.may(Right.SUBMIT, session) and caller.may(Right.READ, session)
    over = task["status"] in _TERMINAL
    (shown,), left_out = shortened([tree])
    return {
        "task": task,
        "tree": shown,
        "left_out": left_out,
        "timeline": timeline,
        "rows": history.newest,
        "pauses": [with_form(call, each) for each in timeline["pauses"]],
        "waterfall": read_waterfall(timeline, tree["children"], now=datetime.now(UTC)),
        "cursor": timeline["cursor"],
        "over": over,
        "may_steer": steer and not over,
        "may_retry": steer and task["status"] in _REOPENED and not task["archived"],
        "may_copy": copy,
        "steered_by": _STEERED_BY,
    }


async def steer(call: PageCall) -> Response:
    """Send a steering event."""
    body = {"type": call.given("type"), "payload": _payload(call.given("text"))}
    return await _change(call, STEER_TASK, body, "steered", keyed=True)


async def cancel(call: PageCall) -> Response:
    """Cancel the task."""
    body = {"reason": call.given("reason") or None, "hard": call.given("hard") == "1"}
    return await _change(call, CANCEL_TASK, body, "cancelled")


async def retry(call: PageCall) -> Response:
    """Reopen the task."""
    return await _change(call, RETRY_TASK, {}, "retried", keyed=True)


async def rerun(call: PageCall) -> Response:
    """Submit the task again."""
    return await _change(call, RERUN_TASK, {}, "rerun", keyed=True)


async def fork(call: PageCall) -> Response:
    """Fork the task."""
    body = {"before": call.given("before") or None}
    return await _change(call, FORK_TASK, body, "forked", keyed=True)


async def _change(
    call: PageCall, operation: Any, body: Any, notice: str, *, keyed: bool = False
) -> Response:
    key = call.given("form_key")
    if keyed and not (0 < len(key) <= 100 and key.isascii() and key.isprintable()):  # noqa: PLR2004
        return problem_page(call, HttpProblem(400, "malformed", "this form is not complete"))
    # The forms of a page have one key: a rerun and a fork are two tasks nevertheless.
    own = f"{operation.name}-{key}" if keyed else None
    made = await call.perform(operation, path=call.task, body=body, key=own)
    return call.go("/task", session=made["session_id"], task=made["task_id"], said=notice)


def _payload(text: str) -> dict[str, Any]:
    """Return a payload that was written as an object of JSON, or as text."""
    if text.lstrip().startswith("{"):
        try:
            found: Any = codec.decode(text.encode("utf-8", "surrogatepass"))
        except codec.DecodeError as error:
            raise HttpProblem(422, "invalid", f"the payload is no JSON: {error.reason}") from None
        return cast("dict[str, Any]", found)
    return {"text": text} if text else {}


PAGES = (
    ConsolePage("GET", "/task", show_task),
    ConsolePage("GET", "/task/live", stream_task),
    ConsolePage("POST", "/task/steer", steer, shown=show_task),
    ConsolePage("POST", "/task/cancel", cancel, shown=show_task),
    ConsolePage("POST", "/task/retry", retry, shown=show_task),
    ConsolePage("POST", "/task/rerun", rerun, shown=show_task),
    ConsolePage("POST", "/task/fork", fork, shown=show_task),
)
