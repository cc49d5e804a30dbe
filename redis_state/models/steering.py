"""Steering: control events from outside, their limits and their rules."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel, Field, ValidationError

from redis_state.errors import InvalidField, SteeringValidationError
from redis_state.models.tasks import new_id, utc_now
from redis_state.serialization.codec import canonical, plain, text_of
from redis_state.serialization.lossy import MAX_INTEGER_BITS

MAX_STEERING_PAYLOAD_BYTES: Final = 16_384
MAX_STEERING_DEPTH: Final = 6
MAX_STEERING_KEYS: Final = 64
MAX_STEERING_LIST_ITEMS: Final = 50
MAX_STEERING_STRING: Final = 4_096

_MAX_KEY: Final = 64
_CUT: Final = "<truncated>"


class SteeringEventType(str, Enum):  # noqa: UP042 - str() of a member must stay as upstream has it
    """What a steering event asks for."""

    INJECT_CONTEXT = "INJECT_CONTEXT"
    REDIRECT = "REDIRECT"
    CANCEL = "CANCEL"
    PRIORITIZE = "PRIORITIZE"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    APPROVE = "APPROVE"
    REJECT = "REJECT"
    USER_MESSAGE = "USER_MESSAGE"


class SteeringEvent(BaseModel):
    """A request to a running task. ``event_id`` makes saving it again harmless."""

    session_id: str
    task_id: str
    event_id: str = Field(default_factory=new_id)
    event_type: SteeringEventType
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    trace_id: str | None = None
    source: str = "user"
    created_at: datetime = Field(default_factory=utc_now)

    def to_injection(self) -> str:
        """Return the event as JSON text for a prompt."""
        injection = {
            "event_id": self.event_id,
            "task_id": self.task_id,
            "event_type": self.event_type.value,
            "payload": plain(self.payload),
            "created_at": self.created_at.isoformat(),
        }
        return json.dumps({"steering": injection}, ensure_ascii=False)


def steering_event(**fields: Any) -> SteeringEvent:
    """Make a steering event of what a caller gave, and check its payload.

    Errors: InvalidField for a type of event that there is not, or a field of another kind, without
    its value; SteeringValidationError as `validate_steering_event`.
    """
    try:
        event = SteeringEvent(**fields)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        raise InvalidField(str(wrong["loc"][0]), wrong["msg"]) from None
    validate_steering_event(event)
    return event


def sanitize_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Cut an untrusted payload down to plain JSON within the limits.

    One that is still too large becomes ``{"truncated": True, "summary": <start of its JSON>}``.
    Sanitising twice changes nothing more.
    """
    limited = _Limiter().limit(payload, depth=MAX_STEERING_DEPTH)
    result = cast("dict[str, Any]", limited) if isinstance(limited, dict) else {"value": limited}
    text = json.dumps(result, ensure_ascii=False)
    return result if _size(text) <= MAX_STEERING_PAYLOAD_BYTES else _summary(text)


def sanitize_steering_event(event: SteeringEvent) -> SteeringEvent:
    """Return a copy with the payload sanitised. The given event stays as it is."""
    payload = cast("Any", event.payload)  # model_construct lets anything in
    return event.model_copy(
        update={"payload": sanitize_payload({} if payload is None else payload)}
    )


def validate_steering_event(event: SteeringEvent) -> None:
    """Check the payload against the rules of the event's type.

    Raises ``SteeringValidationError`` with every violation.
    """
    payload = cast("Any", event.payload)
    if not isinstance(payload, dict):
        raise SteeringValidationError(["payload must be an object"])
    kind = SteeringEventType(event.event_type)
    errors = _RULES[kind](cast("dict[str, Any]", payload))
    if errors:
        raise SteeringValidationError([f"{kind.value}: {error}" for error in errors])


class _Limiter:
    """Cuts one payload. Every item costs two bytes or more, so their number is bounded too."""

    def __init__(self) -> None:
        self._items_left = MAX_STEERING_PAYLOAD_BYTES

    def limit(self, value: Any, *, depth: int) -> Any:
        self._items_left -= 1
        if depth <= 0 or self._items_left < 0:
            return _CUT
        kind = cast("type[object]", type(value))
        if issubclass(kind, Mapping):
            return self._object(value, depth=depth - 1)
        if issubclass(kind, AbstractSet):
            return self._array(sorted(value, key=canonical), depth=depth - 1)
        if issubclass(kind, list | tuple):
            return self._array(list(value), depth=depth - 1)
        if value is None or issubclass(kind, str | int | float):
            value = plain(value)
        return value if _is_number(value) else text_of(value)[:MAX_STEERING_STRING]

    def _object(self, value: Mapping[Any, Any], *, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in itertools.islice(value.items(), MAX_STEERING_KEYS):
            name = str.__str__(key) if isinstance(key, str) else text_of(key)
            result[name[:_MAX_KEY]] = self.limit(item, depth=depth)
        if len(value) > MAX_STEERING_KEYS:
            result["__truncated_keys__"] = True
        return result

    def _array(self, items: list[Any], *, depth: int) -> list[Any]:
        result = [self.limit(item, depth=depth) for item in items[:MAX_STEERING_LIST_ITEMS]]
        if len(items) > MAX_STEERING_LIST_ITEMS:
            result.append(_CUT)
        return result


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _summary(text: str) -> dict[str, Any]:
    """Keep as much of the start as fits: quoting it again may make it longer than allowed."""
    kept = MAX_STEERING_STRING
    while True:
        summary = {"truncated": True, "summary": text[:kept]}
        excess = _size(json.dumps(summary, ensure_ascii=False)) - MAX_STEERING_PAYLOAD_BYTES
        if excess <= 0:
            return summary
        kept -= max(1, excess // 6)  # no character takes more than six bytes


def _needs_text(payload: dict[str, Any], *names: str, blank: bool = False) -> list[str]:
    """Judge the first of ``names`` that holds anything; ``blank`` lets pure white space pass."""
    value = next((payload[name] for name in names if payload.get(name)), None)
    if isinstance(value, str) and (blank or value.strip()):
        return []
    return [f"needs a non-empty {' or '.join(names)}"]


def _optional(payload: dict[str, Any], name: str, kind: type, described: str) -> list[str]:
    value = payload.get(name)
    return [] if value is None or isinstance(value, kind) else [f"{name} must be {described}"]


def _choice(payload: dict[str, Any], name: str, *allowed: str) -> list[str]:
    value = payload.get(name)
    return [] if value is None or value in allowed else [f"{name} must be {' or '.join(allowed)}"]


def _inject_context(payload: dict[str, Any]) -> list[str]:
    return [
        *_needs_text(payload, "text"),
        *_choice(payload, "scope", "foreground", "task_only"),
        *_choice(payload, "severity", "note", "correction"),
    ]


def _redirect(payload: dict[str, Any]) -> list[str]:
    return [
        *_needs_text(payload, "instruction", "goal", "query"),
        *_optional(payload, "constraints", dict, "an object"),
    ]


def _cancel(payload: dict[str, Any]) -> list[str]:
    return [
        *_optional(payload, "reason", str, "text"),
        *_optional(payload, "hard", bool, "a boolean"),
    ]


def _prioritize(payload: dict[str, Any]) -> list[str]:
    priority = payload.get("priority")
    if not isinstance(priority, int) or isinstance(priority, bool):
        return ["needs an integer priority"]
    if priority.bit_length() > MAX_INTEGER_BITS:
        return [f"an integer priority has up to {MAX_INTEGER_BITS} bits"]
    return []


def _pause_or_resume(payload: dict[str, Any]) -> list[str]:
    return _optional(payload, "reason", str, "text")


def _decide(payload: dict[str, Any]) -> list[str]:
    return [
        *_needs_text(payload, "resume_token", "patch_id", "event_id", blank=True),
        *_optional(payload, "decision", str, "text"),
    ]


def _user_message(payload: dict[str, Any]) -> list[str]:
    return [
        *_needs_text(payload, "text"),
        *_optional(payload, "active_tasks", list, "a list"),
    ]


_RULES: Final[dict[SteeringEventType, Callable[[dict[str, Any]], list[str]]]] = {
    SteeringEventType.INJECT_CONTEXT: _inject_context,
    SteeringEventType.REDIRECT: _redirect,
    SteeringEventType.CANCEL: _cancel,
    SteeringEventType.PRIORITIZE: _prioritize,
    SteeringEventType.PAUSE: _pause_or_resume,
    SteeringEventType.RESUME: _pause_or_resume,
    SteeringEventType.APPROVE: _decide,
    SteeringEventType.REJECT: _decide,
    SteeringEventType.USER_MESSAGE: _user_message,
}
