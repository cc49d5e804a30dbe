"""Errors of a gateway's answers, as the errors that `TaskClient` raises.

An answer says its error in one shape, see `redis_state.gateway.answers`. Another shape is that of a
proxy, or of a wrong address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from redis_state.errors import (
    AlreadyVoted,
    ArchiveUnavailable,
    AuthenticationFailed,
    BackendUnavailable,
    CommandRefused,
    Conflict,
    CorruptState,
    CursorGap,
    DelegationRefused,
    ErasureOutOfReach,
    InvalidDecision,
    InvalidField,
    InvalidTransition,
    KeyReused,
    LimitReached,
    LostRace,
    NotADecider,
    OutcomeUnknown,
    PayloadLost,
    PayloadTooLarge,
    PayloadUnreadable,
    RedisStateError,
    RequestRefused,
    RequestUnanswered,
    RetryRefused,
    SessionRunning,
    SteeringValidationError,
    TaskInProgress,
    TokenResolved,
    VersionConflict,
)
from redis_state.serialization import codec

if TYPE_CHECKING:
    from redis_state.http_client.requests.caller import Ask

_UNAUTHORISED, _NOT_FOUND, _CONFLICT, _TOO_MANY, _UNAVAILABLE = 401, 404, 409, 429, 503
# What a proxy answers when it has no gateway to ask, or has lost it.
_PASSING = frozenset({408, _TOO_MANY, 502, _UNAVAILABLE, 504})
_NOT_BEGUN = frozenset({408, _TOO_MANY})
_FIRST_WRONG, _FIRST_FAILED = 300, 500
_LONGEST_WAIT_S = 60.0
_LONGEST_TEXT = 500
# Arguments that a request names otherwise.
_NAMES = {
    "delay_s": "delay",
    "every_s": "every",
    "grace_s": "grace",
    "wait_s": "wait",
    "at_most_s": "at_most",
    "after_s": "after",
    "type": "event_type",
    "attribute": "attributes",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What a gateway, or a proxy before it, answers instead of a result."""

    status: int
    code: str
    message: str
    facts: Mapping[str, Any] = field(repr=False)
    after_s: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether there is no such thing, or none for this caller."""
        return self.status == _NOT_FOUND and self.code == "not_found"

    @property
    def passing(self) -> bool:
        """Whether it may be over soon."""
        return self.status in _PASSING and not self.of_archive

    @property
    def of_damage(self) -> bool:
        """Whether what is stored is damaged. It stays so until it is repaired."""
        return self.code == "corrupt_state"

    @property
    def of_archive(self) -> bool:
        """Whether only the archive could not be read. The gateway has tried."""
        return self.code == "archive_unavailable"

    def maybe(self, ask: Ask) -> bool:
        """Return whether the call may have happened."""
        not_begun = self.status in _NOT_BEGUN or self.code == "not_known_now"
        if not ask.changes or not_begun or self.of_archive or self.of_damage:
            return False
        return self.code != "unavailable" or not ask.repeatable

    def error(self, address: str, ask: Ask) -> RedisStateError:
        """Make the error."""
        if self.nothing and ask.missing is not None:
            return ask.missing()
        if self.status == _UNAUTHORISED:
            return AuthenticationFailed(address, self.message)
        if self.passing or (self.status >= _FIRST_FAILED and self.maybe(ask)):
            kind = OutcomeUnknown if self.maybe(ask) else BackendUnavailable
            return kind(address, self.message)
        if self.code == "body_too_large":
            size = len(codec.encode(ask.body))
            return PayloadTooLarge("body", size=size, limit=self.facts.get("limit", 0))
        make = _ERRORS.get(self.code)
        if make is not None:
            try:
                return make(self)
            except (LookupError, AttributeError, TypeError, ValueError, OverflowError):
                pass  # a gateway of another version: its text says what is known
        return (Conflict if self.status == _CONFLICT else CommandRefused)(self.message)


def read_problem(status: int, headers: Mapping[str, str], body: bytes) -> Problem | None:
    """Read an answer's error; None if it is none."""
    if status < _FIRST_WRONG:
        return None
    after_s = _seconds(headers.get("retry-after", ""))
    try:
        document: Any = codec.decode(body)
    except codec.DecodeError:
        document = None
    match document:
        case {"error": {"code": str(code), "message": str(message), **facts}}:
            named = cast("Mapping[str, Any]", facts)
            return Problem(status, code, message[:_LONGEST_TEXT], named, after_s)
        case _:
            message = f"no gateway has answered: status {status}"
            return Problem(status, "foreign", message, {}, after_s)


def _seconds(written: str) -> float:
    return min(float(written), _LONGEST_WAIT_S) if written.isascii() and written.isdecimal() else 0


def moment_ms(written: Any) -> int:
    """Read a moment as a number of ms."""
    return round(datetime.fromisoformat(written).timestamp() * 1000)


def gap_of(facts: Mapping[str, Any], *, cursor: str) -> CursorGap:
    """Make the error of rows that are missing after a cursor. Errors: KeyError."""
    return CursorGap(
        cursor,
        reason=facts["reason"],
        missed=facts["missed"],
        resume_after=facts["resume_after"],
    )


def _invalid_field(problem: Problem) -> RedisStateError:
    given = str(problem.facts["field"])
    text = problem.message.removeprefix(given).removeprefix(":").strip()
    return InvalidField(_NAMES.get(given, given), text)


def _invalid(problem: Problem) -> RedisStateError:
    first = problem.facts["errors"][0]
    given = first["field"].removeprefix("filter.")
    # The rest is which kind of a value was tried, or which of several.
    name, _, rest = given.partition(".")
    name = _NAMES.get(name, name)
    return InvalidField(f"{name}.{rest}" if rest else name or "body", first["problem"])


def _decision(problem: Problem) -> RedisStateError:
    return InvalidDecision([(each["path"], each["rule"]) for each in problem.facts["errors"]])


def _resolved(problem: Problem) -> RedisStateError:
    facts = problem.facts
    return TokenResolved(
        actor=facts["by"], at_ms=moment_ms(facts["at"]), decision=facts["decision"]
    )


def _voted(problem: Problem) -> RedisStateError:
    facts = problem.facts
    return AlreadyVoted(facts["actor"], at_ms=moment_ms(facts["at"]), approved=facts["approved"])


def _limit(problem: Problem) -> RedisStateError:
    code = problem.message.partition(":")[0]
    return LimitReached(problem.facts["what"], limit=problem.facts["limit"], code=code)


def _too_large(problem: Problem) -> RedisStateError:
    facts = problem.facts
    return PayloadTooLarge(facts["field"], size=facts["size"], limit=facts["limit"])


def _lost(problem: Problem) -> RedisStateError:
    facts = problem.facts
    return PayloadLost(facts["of"], facts["field"], "at the gateway's store", "is gone")


def _unreadable(problem: Problem) -> RedisStateError:
    facts = problem.facts
    return PayloadUnreadable(facts["of"], facts["field"], "the gateway lacks its key, or its store")


def _conflict(problem: Problem) -> RedisStateError:
    facts = problem.facts
    what = problem.message.partition(" is at version ")[0]
    return VersionConflict(what, expected=facts["expected"], actual=facts["actual"])


def _picked(kind: Callable[..., RedisStateError], *names: str, **named: str) -> Any:
    """Make an error from facts: first those by place, then those by name."""

    def make(problem: Problem) -> RedisStateError:
        places = [problem.facts[name] for name in names]
        return kind(*places, **{name: problem.facts[fact] for name, fact in named.items()})

    return make


_ERRORS: Final[Mapping[str, Callable[[Problem], RedisStateError]]] = {
    "already_resolved": _resolved,
    "already_voted": _voted,
    "archive_unavailable": lambda _: ArchiveUnavailable("read", "the gateway could not read it"),
    "corrupt_state": lambda problem: CorruptState("in the gateway's store", problem.message),
    "delegation_refused": _picked(DelegationRefused, "actor", "to", reason="reason"),
    "erasure_out_of_reach": _picked(ErasureOutOfReach, "reasons"),
    "invalid": _invalid,
    "invalid_decision": _decision,
    "invalid_field": _invalid_field,
    "invalid_transition": _picked(InvalidTransition, "task_id", current="current", wanted="wanted"),
    # An earlier gateway names no key.
    "key_reused": lambda problem: KeyReused(problem.facts["what"], key=problem.facts.get("key")),
    "limit_reached": _limit,
    "lost_race": lambda problem: LostRace(problem.message),
    "not_a_decider": _picked(NotADecider, "actor", delegated_to="delegated_to"),
    "payload_lost": _lost,
    "payload_too_large": _too_large,
    "payload_unreadable": _unreadable,
    "request_refused": _picked(RequestRefused, "task_id", "name", "reason", request_id="name"),
    "request_unanswered": _picked(
        RequestUnanswered, "task_id", "name", "status", request_id="name"
    ),
    "retry_refused": _picked(RetryRefused, "task_id", "reason"),
    "session_running": _picked(SessionRunning, "session_id", "running"),
    "steering_validation_error": lambda problem: SteeringValidationError(problem.facts["errors"]),
    "task_in_progress": _picked(TaskInProgress, "session_id", "task_id", status="status"),
    "version_conflict": _conflict,
}
