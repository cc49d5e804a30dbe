"""The updates that a context patch publishes: their types and contents."""

from __future__ import annotations

from typing import Any

from redis_state.models.session_context import ContextPatch
from redis_state.models.tasks import UpdateType

UpdateContent = dict[str, Any]


def requested(patch_id: str, patch: ContextPatch) -> tuple[UpdateType, UpdateContent]:
    """Return the question whether a patch is to be applied."""
    return UpdateType.CHECKPOINT, {
        "kind": "context_patch",
        "patch_id": patch_id,
        "task_id": patch.task_id,
        "digest": patch.digest,
        "diverged": patch.context_diverged,
        "prompt": "Apply background results to the conversation?",
        "options": ["approve", "reject"],
    }


def _notice(severity: str, title: str, body: str) -> tuple[UpdateType, UpdateContent]:
    return UpdateType.NOTIFICATION, {"severity": severity, "title": title, "body": body}


def changed() -> tuple[UpdateType, UpdateContent]:
    """Return the warning that the results are of an older context."""
    return _notice(
        "warning", "Context changed", "Background results were produced from an older context."
    )


def applied() -> tuple[UpdateType, UpdateContent]:
    """Return the notice that a patch was applied."""
    return _notice("info", "Context updated", "Background results applied to the conversation.")


def rejected() -> tuple[UpdateType, UpdateContent]:
    """Return the notice that a patch was not applied."""
    return _notice("warning", "Context patch rejected", "Background results were not applied.")
