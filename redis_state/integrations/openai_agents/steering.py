"""Steering of a running agent: what a person says reaches the model before its next request."""

from __future__ import annotations

from typing import cast

from agents import TResponseInputItem

from redis_state.integrations.openai_agents.terms import AgentRun
from redis_state.models import SteeringEvent, SteeringEventType

_FOR_MODELS = (
    SteeringEventType.USER_MESSAGE,
    SteeringEventType.INJECT_CONTEXT,
    SteeringEventType.REDIRECT,
)


def take_steering(run: AgentRun) -> list[TResponseInputItem]:
    """Take what has arrived, as messages. Call it in a step's work, which records them.

    The inbox gives each event once, so what a failed attempt has taken is returned again: until a
    request with it is recorded, and its caller empties ``run.unrecorded``.
    """
    if run.steers:
        events = run.scope.ctx.inbox.take()
        run.unrecorded += [_message(event) for event in events if event.event_type in _FOR_MODELS]
    return list(run.unrecorded)


def with_steering(
    earlier: list[tuple[int, TResponseInputItem]],
    items: str | list[TResponseInputItem],
    new: list[TResponseInputItem],
) -> str | list[TResponseInputItem]:
    """Return a request's input with what steering has added to ``earlier`` ones, and ``new``."""
    if not earlier and not new:
        return items
    made = [_user(items)] if isinstance(items, str) else list(items)
    for number, (place, item) in enumerate(earlier):
        made.insert(min(place + number, len(made)), item)
    return [*made, *new]


def _message(event: SteeringEvent) -> TResponseInputItem:
    payload = event.payload
    for name in ("text", "message", "content", "instruction"):
        if isinstance(payload.get(name), str):
            return _user(payload[name])
    return _user(event.to_injection())


def _user(text: str) -> TResponseInputItem:
    return cast("TResponseInputItem", {"role": "user", "content": text})
