"""A memory as a document: PenguiFlow's, version 1, so that either reads what the other wrote.

Beside PenguiFlow's fields stand ours, which it passes over: each turn's ``id``, ``known`` and
``folds``. PenguiFlow writes none of them; then a turn is named by its content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis_state.errors import InvalidField
from redis_state.memory.state import REMEMBERED_IDS, State, Turn
from redis_state.memory.types import MemoryHealth, ShortTermMemoryConfig
from redis_state.serialization import codec

VERSION = 1
_DIGEST = ("tools_invoked", "observations_summary", "reasoning_summary", "artifacts_refs")


def turn_of(given: Any, turn_id: str) -> Turn:
    """Take a turn as it is stored; nothing is shared with the host's.

    Errors: InvalidField, also for what could not be read back: the memory could not be either.
    """
    try:
        digest = given.trajectory_digest
        turn = {
            "user_message": given.user_message,
            "assistant_response": given.assistant_response,
            "trajectory_digest": digest and {name: getattr(digest, name) for name in _DIGEST},
            "artifacts_shown": given.artifacts_shown,
            "artifacts_hidden_refs": given.artifacts_hidden_refs,
            "ts": given.ts,
        }
    except AttributeError as error:
        raise InvalidField("turn", f"has no {error.name}") from None
    return _turn("turn", {**codec.plain(turn), "id": turn_id}, Counter())


def document_of(state: State, config: ShortTermMemoryConfig) -> dict[str, Any]:
    """Write a state."""
    return {
        "version": VERSION,
        "health": state.health.value,
        "summary": state.summary,
        "turns": [{**turn} for turn in state.turns],
        "pending": [{**turn} for turn in state.pending],
        "backlog": [{**turn} for turn in state.backlog],
        "config_snapshot": _snapshot(config),
        "known": [*state.known],
        "folds": state.folds,
    }


def state_of(document: Mapping[str, Any]) -> State:
    """Read a state. Errors: InvalidField says what is wrong with it."""
    if document.get("version") != VERSION:
        raise InvalidField("version", f"only {VERSION} of a memory state is known")
    try:
        health = MemoryHealth(document.get("health"))
    except ValueError:
        raise InvalidField("health", "no health of a memory") from None
    seen: Counter[str] = Counter()
    known = document.get("known")
    folds = document.get("folds")
    return State(
        health=health,
        summary=str(document.get("summary") or ""),
        # In their original order, so that equal ones are numbered in the same way again.
        backlog=_turns("backlog", document, seen),
        pending=_turns("pending", document, seen),
        turns=_turns("turns", document, seen),
        known=_texts(known)[-REMEMBERED_IDS:],
        folds=folds if isinstance(folds, int) else 0,
    )


def _turns(field: str, document: Mapping[str, Any], seen: Counter[str]) -> list[Turn]:
    given: Any = document.get(field) or ()
    if not isinstance(given, list | tuple):
        raise InvalidField(field, "a list of turns is needed")
    return [_turn(field, turn, seen) for turn in cast("Sequence[Any]", given)]


def _turn(field: str, given: Any, seen: Counter[str]) -> Turn:
    if not isinstance(given, Mapping):
        raise InvalidField(field, "a turn is an object")
    fields = cast("Mapping[str, Any]", given)
    try:
        turn: Turn = {
            "user_message": str(fields.get("user_message") or ""),
            "assistant_response": str(fields.get("assistant_response") or ""),
            "trajectory_digest": _digest(field, fields.get("trajectory_digest")),
            "artifacts_shown": dict(fields.get("artifacts_shown") or {}),
            "artifacts_hidden_refs": list(fields.get("artifacts_hidden_refs") or []),
            "ts": float(fields.get("ts") or 0.0),
        }
    except (TypeError, ValueError, OverflowError):
        raise InvalidField(field, "a turn with a field of a wrong type") from None
    turn_id = fields.get("id")
    if not isinstance(turn_id, str):
        named = codec.fingerprint(turn)
        seen[named] += 1
        turn_id = f"{named}#{seen[named]}"
    return {**turn, "id": turn_id}


def _digest(field: str, given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidField(field, "a trajectory_digest is an object")
    fields = cast("Mapping[str, Any]", given)
    reasoning = fields.get("reasoning_summary")
    return {
        "tools_invoked": list(fields.get("tools_invoked") or []),
        "observations_summary": str(fields.get("observations_summary") or ""),
        "reasoning_summary": None if reasoning is None else str(reasoning),
        "artifacts_refs": list(fields.get("artifacts_refs") or []),
    }


def _texts(given: Any) -> list[str]:
    if not isinstance(given, list):
        return []
    return [item for item in cast("Sequence[Any]", given) if isinstance(item, str)]


def _snapshot(config: ShortTermMemoryConfig) -> dict[str, Any]:
    """Record the configuration in the document, for readers of it."""
    budget, isolation = config.budget, config.isolation
    return {
        "strategy": config.strategy,
        "budget": {
            "full_zone_turns": budget.full_zone_turns,
            "summary_max_tokens": budget.summary_max_tokens,
            "total_max_tokens": budget.total_max_tokens,
            "overflow_policy": budget.overflow_policy,
        },
        "isolation": {
            "tenant_key": isolation.tenant_key,
            "user_key": isolation.user_key,
            "session_key": isolation.session_key,
            "require_explicit_key": isolation.require_explicit_key,
        },
        "summarizer_model": config.summarizer_model,
        "include_trajectory_digest": config.include_trajectory_digest,
        "recovery_backlog_limit": config.recovery_backlog_limit,
        "retry_attempts": config.retry_attempts,
    }
