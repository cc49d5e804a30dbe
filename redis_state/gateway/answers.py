"""Answers: JSON, and one shape for every error.

    {"error": {"code": "invalid_field", "message": "limit must be >= 1", "field": "limit"}}

The status follows the branch of `redis_state.errors`. A wrong call is 400 or 422, a conflict 409.
What does not exist is 404, trouble with the server 503, and damaged data 500.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redis_state.errors import (
    AlreadyVoted,
    ArchiveUnavailable,
    BackendError,
    CallerError,
    Conflict,
    CorruptState,
    CursorGap,
    InvalidDecision,
    InvalidField,
    NotFound,
    OutcomeUnknown,
    PayloadLost,
    PayloadTooLarge,
    PayloadUnreadable,
    RedisStateError,
    RequestFailed,
    SteeringValidationError,
    TokenResolved,
)
from redis_state.serialization import codec

log: logging.Logger = logging.getLogger(__name__)

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RETRY_AFTER_S = 2
_NAMED = (
    *("field", "session_id", "task_id", "status", "current", "wanted", "expected", "actual"),
    *("limit", "size", "what", "key", "reason", "missed", "cursor", "resume_after"),
    *("actor", "approved", "to", "delegated_to", "running", "reasons"),
)
# Errors of this server's own set-up, which no caller can correct.
_OURS = frozenset({"ConfigError", "MissingCapability", "HandlerChanged"})


class HttpProblem(Exception):
    """A request that ends here, with this status."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers: dict[str, str] = dict(headers or {})
        self.facts: dict[str, Any] = dict(facts or {})

    def document(self) -> dict[str, Any]:
        """Write it as the ``error`` of an answer."""
        return {"code": self.code, "message": self.message, **self.facts}


def answer(
    document: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Write an answer. Nobody keeps it: it is for this caller alone."""
    own = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(
        codec.encode(document),
        status,
        headers=own | dict(headers or {}),
        media_type="application/json",
    )


def problem_answer(problem: HttpProblem) -> Response:
    """Write an error."""
    return answer({"error": problem.document()}, problem.status, headers=problem.headers)


async def refuse(problem: HttpProblem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request or a WebSocket that is not accepted."""
    is_socket = scope["type"] == "websocket"
    if is_socket and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        return
    await problem_answer(problem)(scope, receive, send)


def forbidden(message: str = "the caller may not do this") -> HttpProblem:
    """Make the error of a caller without the right to act."""
    return HttpProblem(403, "forbidden", message)


def not_known_now(reason: str) -> HttpProblem:
    """Make the error of a caller whose credentials cannot be judged at the moment."""
    headers = {"retry-after": str(_RETRY_AFTER_S)}
    return HttpProblem(503, "not_known_now", reason, headers=headers)


def not_found() -> HttpProblem:
    """Make the error of what is not there, or is not for the caller to see: both are alike."""
    return HttpProblem(404, "not_found", "there is no such thing")


def problem_of(error: RedisStateError) -> HttpProblem:
    """Make the HTTP error of one of the library's."""
    code = _WORDS.sub("_", type(error).__name__).lower()
    match error:
        case BackendError():
            return _trouble(error)
        case TokenResolved():
            return already_resolved(error.actor, error.at_ms, error.decision)
        case NotFound():
            return not_found()
        case CallerError():
            return _mistake(error, code)
        case CursorGap():
            return HttpProblem(410, code, str(error), facts=_facts(error))
        case _:
            return HttpProblem(409, code, str(error), facts=_facts(error))


def already_resolved(actor: str, at_ms: int, decision: Any) -> HttpProblem:
    """Make the error of everybody who decides a pause after the first: by whom, when and how."""
    message = f"the pause was already resolved by {actor!r}"
    facts = {"by": actor, "at": _time(at_ms), "decision": decision}
    return HttpProblem(409, "already_resolved", message, facts=facts)


def _trouble(error: BackendError) -> HttpProblem:
    """Leave out addresses, keys and what the server says: they are the operator's."""
    headers = {"retry-after": str(_RETRY_AFTER_S)}
    if isinstance(error, OutcomeUnknown):
        message = "the call may have happened: repeat it under its Idempotency-Key"
        return HttpProblem(503, "outcome_unknown", message, headers=headers)
    if isinstance(error, PayloadLost):
        message = f"{error.field} of {error.of} is gone from the store of large payloads"
        facts = {"of": error.of, "field": error.field}
        return HttpProblem(410, "payload_lost", message, facts=facts)
    if isinstance(error, PayloadUnreadable):
        message = f"{error.field} of {error.of} cannot be read by this gateway: it lacks the key"
        facts = {"of": error.of, "field": error.field}
        return HttpProblem(409, "payload_unreadable", message, facts=facts)
    if isinstance(error, ArchiveUnavailable):
        message = "the archive cannot answer now"
        return HttpProblem(503, "archive_unavailable", message, headers=headers)
    if isinstance(error, CorruptState):
        # It stays so until an operator repairs the key: no caller is to ask again soon.
        log.error("what is stored is damaged: %s", error)
        message = "what is stored of this is damaged: the gateway's log names the key"
        return HttpProblem(500, "corrupt_state", message)
    return HttpProblem(503, "unavailable", "the state store cannot answer now", headers=headers)


def _mistake(error: CallerError, code: str) -> HttpProblem:
    if type(error).__name__ in _OURS:
        # The caller cannot correct it, so the answer does not have the text: the log has.
        log.error("the gateway is not set up for a call: %s: %s", type(error).__name__, error)
        return HttpProblem(500, code, "this gateway is not set up for the call")
    status = 413 if isinstance(error, PayloadTooLarge) else 422
    if isinstance(error, InvalidField) and error.field == "after":
        # A cursor is no value of the caller's own: it was cut, or belongs to another listing.
        status = 400
    return HttpProblem(status, code, str(error), facts=_facts(error))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def _facts(error: RedisStateError) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    match error:
        case InvalidDecision():
            facts["errors"] = [{"path": path, "rule": rule} for path, rule in error.errors]
        case InvalidField() | Conflict() | CursorGap():
            facts |= {name: getattr(error, name) for name in _NAMED if hasattr(error, name)}
            if isinstance(error, AlreadyVoted):
                facts["at"] = _time(error.at_ms)
        case RequestFailed():
            names = ("task_id", "name", "status", "reason")
            facts |= {name: getattr(error, name) for name in names if hasattr(error, name)}
        case SteeringValidationError():
            facts["errors"] = error.errors
        case _:
            pass
    return facts
