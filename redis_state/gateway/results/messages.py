"""Answers about the messages and the values of a task."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from redis_state.gateway.results.base import ResultShape


class SignalledResult(ResultShape):
    """A signal that was sent."""

    session_id: str
    task_id: str
    name: str
    message_id: str


class RepliedResult(ResultShape):
    """The reply to a request, or none yet.

    ``received`` if the handler has called for requests of the name.
    """

    answered: bool
    received: bool
    reply: Any = None


class ValueResult(ResultShape):
    """A value that a task has published. ``run`` is the epoch of the run.

    One that is ``unreadable`` is sealed, and the gateway has no key for it.
    """

    key: str
    value: Any
    at: datetime
    run: int
    unreadable: bool


class FoundValueResult(ResultShape):
    """The value of a key."""

    key: str
    value: Any


class ValuesResult(ResultShape):
    """The values of a task."""

    values: list[ValueResult]
