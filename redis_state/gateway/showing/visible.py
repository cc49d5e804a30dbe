"""What a host's filter shows a caller of tasks and pauses: as much as of the updates that say so.

Without a filter everything is shown. A hidden part is None; an error's status stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis_state.gateway.calls import ApiCall
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.gateway.showing.documents import row_document
from redis_state.gateway.showing.known_pauses import KnownPause
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.stores.sessions.session_log import Entry


def shown_content(
    call: ApiCall, session_id: str, task_id: str, kind: UpdateType, content: Any
) -> Any:
    """Return what this caller may see of an update with that content; None if nothing."""
    visible = call.services.visible
    if visible is None or content is None:
        return content
    update = StateUpdate(
        session_id=session_id,
        task_id=task_id,
        update_id=f"{task_id}:end",
        update_type=kind,
        content=content,
    )
    shown: StateUpdate | None = visible(call.principal, update)
    return None if shown is None else shown.content


def shown_error(
    call: ApiCall, session_id: str, task_id: str, status: TaskStatus, error: str | None
) -> str | None:
    """Return what this caller may see of the error with which a task ended."""
    if call.services.visible is None or error is None:
        return error
    content = {"status": status.value, "error": error}
    shown = shown_content(call, session_id, task_id, UpdateType.STATUS_CHANGE, content)
    return cast("dict[str, Any]", shown).get("error") if isinstance(shown, dict) else None


def shown_task(call: ApiCall, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's document, and those of its children in it, as this caller sees them."""
    shown = dict(document)
    if call.services.visible is None:
        return shown
    task = shown["session_id"], shown["task_id"]
    for name, kind in (("result", UpdateType.RESULT), ("progress", UpdateType.PROGRESS)):
        if shown.get(name) is not None:
            shown[name] = shown_content(call, *task, kind, shown[name])
    shown["error"] = shown_error(call, *task, TaskStatus(shown["status"]), shown.get("error"))
    if "children" in shown:
        shown["children"] = [shown_task(call, each) for each in shown["children"]]
    return shown


def shown_pause(call: ApiCall, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pause's document as its caller sees its CHECKPOINT update; else without content."""
    if call.services.visible is None:
        return dict(document)
    names = ("reason", "payload", "tags", "pause_id", "schema")
    content = {"pause": document["name"]} | {name: document.get(name) for name in names}
    task = document["session_id"], document["task_id"]
    shown = shown_content(call, *task, UpdateType.CHECKPOINT, content)
    row = cast("dict[str, Any]", shown) if isinstance(shown, dict) else {}
    return dict(document) | {
        "name": row.get("pause", ""),
        "reason": row.get("reason", ""),
        "payload": row.get("payload"),
        "schema": row.get("schema"),
    }


def shown_name(call: ApiCall, known: KnownPause) -> str | None:
    """Return the name of a pause as its caller sees it; None if its content is hidden."""
    if call.services.visible is None:
        return known.name
    about = call.store.base.payloads.as_object(known.about)
    content = {
        "pause": known.name,
        "reason": about.get("reason", ""),
        "payload": about.get("payload"),
        "tags": known.tags,
        "pause_id": known.pause_id,
        "schema": None,
    }
    task = known.session_id, known.task_id
    shown = shown_content(call, *task, UpdateType.CHECKPOINT, content)
    return str(cast("Any", shown).get("pause", "")) if isinstance(shown, dict) else None


def shown_decision(call: ApiCall, known: KnownPause, decision: Any) -> Any:
    """Return a decision without tokens; without its value if the pause's content is hidden."""
    cut = cut_tokens(known.session_id, decision)
    if isinstance(cut, dict) and shown_name(call, known) is None:
        return {"approved": cast("Any", cut).get("approved")}
    return cast("Any", cut)


def shown_rows(call: ApiCall, entries: Sequence[Entry[StateUpdate]]) -> list[dict[str, Any]]:
    """Return the documents of the updates that this caller sees."""
    visible = call.services.visible
    shown = [
        (entry, entry.value if visible is None else visible(call.principal, entry.value))
        for entry in entries
    ]
    return [row_document(entry, update) for entry, update in shown if update is not None]
