"""Answers about queues and their limits."""

from __future__ import annotations

from redis_state.gateway.results.base import ResultShape


class RateResult(ResultShape):
    """So many in so many seconds."""

    limit: int
    per_s: float


class KeyLimitsResult(ResultShape):
    """The limits of one key."""

    running: int | None
    rate: RateResult | None


class QueueResult(ResultShape):
    """A queue."""

    name: str
    waiting: int
    later: int
    running: int
    oldest_s: float
    workers: int
    paused: bool
    limit: int | None
    per_key: int | None
    rate: RateResult | None
    keys: dict[str, KeyLimitsResult]


class QueuesResult(ResultShape):
    """The queues that workers serve, and those that have tasks."""

    queues: list[QueueResult]
