"""Find tasks by filters of the URL, or dead letters; change those chosen, or all of them.

A change of many is shown first: what it would do to each. Nothing happens before it is confirmed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from starlette.responses import Response

from redis_state.gateway.answers import HttpProblem, forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import Operation
from redis_state.gateway.console.operations import (
    CANCEL_TASK,
    CHANGE_ALL,
    FIND_TASKS,
    FORK_TASK,
    LIST_DEAD,
    READ_TASK,
    RERUN_TASK,
    RETRY_TASK,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall, PageEndpoint
from redis_state.gateway.console.rendering import write_query
from redis_state.gateway.requests.bodies import MOST_IN_BULK
from redis_state.models import TaskStatus
from redis_state.models.attributes import read_attributes
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker import Archived
from redis_state.worker.tasks.operate.bulk import APPLIES, BulkAction

_PAGE = 50
_AT_ONCE = 50
# A form has the ids of all tasks that it changes. A sign of an id is up to 20 bytes of it.
_FORM_BYTES = MOST_IN_BULK * 8_192
_ENDS = ("ended_after", "ended_before")
_TIMES = ("created_after", "created_before", *_ENDS)
_FILTERS = ("status", "handler", "session_id", "attribute", *_TIMES, "archived")
_CHOICES = {"also": "with archived", "no": "without archived", "only": "archived alone"}
# What changes a task itself, which Redis must have.
_LIVE_ALONE = frozenset({"retry", "cancel"})
# Before the name of the next attribute: a value may have commas too.
_COMMA = re.compile(r",\s*(?=[A-Za-z0-9_.-]{1,64}=)")
_ZONELESS = re.compile(r"(?P<day>\d{4}-\d\d-\d\d)(?:[T ](?P<time>\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?")
_LISTS = frozenset({"status", "attribute"})
_ACTIONS = {
    "retry": RETRY_TASK,
    "rerun": RERUN_TASK,
    "fork": FORK_TASK,
    "cancel": CANCEL_TASK,
}
# Returns what a change of all would do.
_ReadAll: TypeAlias = Callable[[PageCall, str], Awaitable[dict[str, Any]]]


async def show_found(call: PageCall) -> Response:
    """Show the tasks that match."""
    filters, archive = _filters(call), await _has_archive(call)
    query: dict[str, Any] = {**filters, "limit": _PAGE}
    if archive:
        query.setdefault("archived", Archived.ALSO.value)
    if call.param("after"):
        query["after"] = call.param("after")
    problem: HttpProblem | None = None
    found: dict[str, Any] = {"tasks": [], "cursor": None, "incomplete": False}
    try:
        found = await call.perform(FIND_TASKS, query=query)
    except HttpProblem as error:
        problem = error
    return call.page(
        "find.html",
        status=200 if problem is None else problem.status,
        problem=problem,
        found=found,
        filters=filters,
        by_end=any(name in filters for name in _ENDS),
        next=write_query({**filters, "after": found["cursor"]}),
        here=write_query(filters),
        page="/find",
        statuses=[each.value for each in TaskStatus],
        archived=_CHOICES if archive else {},
        actions=_allowed(call),
        write_query=write_query,
        may_all=filters.get("archived") != Archived.ONLY.value
        and call.principal.may(Right.ADMIN, filters.get("session_id", "")),
    )


async def show_dead(call: PageCall) -> Response:
    """Show the dead letters, the last given up first."""
    found = await _dead(call)
    actions = [name for name in _allowed(call) if name != "cancel"]
    return call.page(
        "dead.html",
        page="/dead",
        tasks=found["tasks"],
        by_end=True,
        next=found["cursor"] and write_query({"after": found["cursor"]}),
        actions=actions,
        here=_dead_page(call),
        write_query=write_query,
        may_all=True,
        archived={},
    )


async def change_found(call: PageCall) -> Response:
    """Show what a change of found tasks would do, or do it if it was confirmed."""
    return await _change(call, "/find", _all)


async def change_dead(call: PageCall) -> Response:
    """Show what a change of dead letters would do, or do it if it was confirmed."""
    return await _change(call, "/dead", _all_dead)


async def _change(call: PageCall, page: str, read_all: _ReadAll) -> Response:
    action, allowed = call.given("action"), _allowed(call)
    if not allowed or (action in _ACTIONS and action not in allowed):
        raise forbidden()
    if action not in allowed:
        raise HttpProblem(422, "invalid", "choose what to do")
    confirmed = call.given("confirmed") == "1"
    if call.given("all") == "1" and not confirmed:
        report = await read_all(call, action)
    else:
        report = await _chosen(call, action, call.form.get("chosen", []), confirmed=confirmed)
    # Those that were shown as to be changed are, and none to which it applies since.
    chosen = [_choice(each) for each in report["items"] if each["outcome"] == "would"]
    return call.page(
        "bulk.html",
        page=page,
        report=report,
        action=action,
        confirmed=confirmed,
        chosen=chosen,
        here=_dead_page(call) if page == "/dead" else write_query(_filters(call)),
        key=call.given("form_key"),
        reason=call.given("reason"),
    )


def _shown(change: PageEndpoint) -> PageEndpoint:
    """Make the page of a form that is given back: what it would do, to be confirmed again."""

    async def preview(call: PageCall) -> Response:
        form = {name: texts for name, texts in call.form.items() if name != "confirmed"}
        return await change(replace(call, form=form))

    return preview


async def _has_archive(call: PageCall) -> bool:
    store: RedisStateStore = (await call.backstage.services()).store
    return store.settings.has_archive


def _allowed(call: PageCall) -> list[str]:
    """Return the changes that who looks may make in some session."""
    return [name for name, its in _ACTIONS.items() if call.principal.has_any(its.right)]


async def _all(call: PageCall, action: str) -> dict[str, Any]:
    """Return what a change of all that match would do. Errors: HttpProblem."""
    filters = _filters(call)
    if filters.pop("archived", None) == Archived.ONLY.value:
        raise HttpProblem(422, "invalid", "choose archived tasks one by one")
    attributes = read_attributes("attribute", filters.pop("attribute", ()))
    wanted = filters | {"attributes": attributes} if attributes else filters
    body = {"action": action, "filter": wanted, "dry_run": True}
    found: dict[str, Any] = await call.perform(CHANGE_ALL, body=body)
    return found


async def _all_dead(call: PageCall, action: str) -> dict[str, Any]:
    """Return what a change of the dead letters would do. Errors: HttpProblem."""
    found = await _dead(call)
    chosen = [_choice(each) for each in found["tasks"]]
    report = await _chosen(call, action, chosen, confirmed=False)
    return report | {"more": found["more"]}


async def _dead(call: PageCall) -> dict[str, Any]:
    """Return the page of the URL: as many dead letters as one call changes."""
    query: dict[str, Any] = {"limit": MOST_IN_BULK}
    if call.param("after"):
        query["after"] = call.param("after")
    found: dict[str, Any] = await call.perform(LIST_DEAD, query=query)
    return found


def _dead_page(call: PageCall) -> str:
    """Write the query of the page of dead letters that is shown."""
    return write_query({"after": call.param("after")}) if call.param("after") else ""


async def _chosen(
    call: PageCall, action: str, given: list[str], *, confirmed: bool
) -> dict[str, Any]:
    chosen = [_read_choice(each) for each in given]
    if not 0 < len(chosen) <= MOST_IN_BULK:
        raise HttpProblem(422, "invalid", f"choose 1 to {MOST_IN_BULK} tasks")
    key, gate = _key(call), asyncio.Semaphore(_AT_ONCE)
    change = _do if confirmed else _would

    async def one(path: dict[str, str]) -> dict[str, Any]:
        async with gate:
            return await change(call, action, path, key)

    items = await asyncio.gather(*map(one, chosen))
    counts: dict[str, int] = {}
    for item in items:
        counts[item["outcome"]] = counts.get(item["outcome"], 0) + 1
    return {"items": items, "counts": counts, "more": False, "dry_run": not confirmed}


async def _would(call: PageCall, action: str, path: dict[str, str], key: str) -> dict[str, Any]:
    del key
    item = _item(path)
    try:
        task = await call.perform(READ_TASK, path=path)
    except HttpProblem as problem:
        return item | {"outcome": "refused", "reason": problem.message}
    reason = None
    if not call.principal.may(_ACTIONS[action].right, path["session"]):
        reason = forbidden().message
    elif TaskStatus(task["status"]) not in APPLIES[BulkAction(action)]:
        reason = f"{action} does not apply to it"
    elif task["handler"] is None and action not in _LIVE_ALONE:
        reason = "a host has saved it, with no handler"
    elif task["archived"] and action in _LIVE_ALONE:
        reason = "it is archived: rerun or fork it"
    outcome = "would" if reason is None else "refused"
    return item | {"status": task["status"], "outcome": outcome, "reason": reason}


async def _do(call: PageCall, action: str, path: dict[str, str], key: str) -> dict[str, Any]:
    operation: Operation = _ACTIONS[action]
    body = {"reason": call.given("reason") or None} if action == "cancel" else {}
    # The key of a copy is its id: each task has one of its own, and the form sent twice the same.
    own = codec.fingerprint(action, call.principal.subject, key, *path.values())
    try:
        made = await call.perform(operation, path=path, body=body, key=own)
    except HttpProblem as problem:
        return _item(path) | {"outcome": "refused", "reason": problem.message}
    new = made["task_id"] if made["task_id"] != path["task"] else None
    done = {"outcome": "done", "new_task_id": new, "status": made.get("status", "")}
    return _item(path) | done


def _item(path: dict[str, str]) -> dict[str, Any]:
    return {
        "session_id": path["session"],
        "task_id": path["task"],
        "status": "",
        "new_task_id": None,
        "reason": None,
    }


def _choice(item: dict[str, Any]) -> str:
    """Write a task as what a form chooses."""
    return write_query({"session": item["session_id"], "task": item["task_id"]})


def _read_choice(text: str) -> dict[str, str]:
    try:
        fields = parse_qs(text, keep_blank_values=True, errors="surrogatepass", max_num_fields=4)
        return {"session": fields["session"][0], "task": fields["task"][0]}
    except (KeyError, ValueError):
        raise HttpProblem(422, "invalid", "this is no choice of the page") from None


def _filters(call: PageCall) -> dict[str, Any]:
    """Return the filters of the URL. Times without a zone are UTC."""
    found: dict[str, Any] = {}
    for name in _FILTERS:
        values = [each for each in call.query.get(name, []) if each]
        if name == "attribute":
            values = [part.strip() for each in values for part in _COMMA.split(each)]
        if values:
            found[name] = values if name in _LISTS else values[-1]
    for name in _TIMES:
        plain = _ZONELESS.fullmatch(str(found.get(name, "")).strip())
        if plain is not None:
            found[name] = f"{plain['day']}T{plain['time'] or '00:00'}Z"
    return found


def _key(call: PageCall) -> str:
    key = call.given("form_key")
    if not (0 < len(key) <= 100 and key.isascii() and key.isprintable()):  # noqa: PLR2004
        raise HttpProblem(400, "malformed", "this form is not complete")
    return key


PAGES = (
    ConsolePage("GET", "/find", show_found),
    ConsolePage(
        "POST", "/find/change", change_found, form_bytes=_FORM_BYTES, shown=_shown(change_found)
    ),
    ConsolePage("GET", "/dead", show_dead),
    ConsolePage(
        "POST", "/dead/change", change_dead, form_bytes=_FORM_BYTES, shown=_shown(change_dead)
    ),
)
