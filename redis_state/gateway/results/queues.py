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


class QueueKeyResult(ResultShape):
    """A key of a queue: how many of its tasks wait and run.

    ``limit_key`` or ``in_turn``, the session of tasks that run in turn; the other is null. Tasks
    with both wait under their session, and run under both.
    """

    limit_key: str | None
    in_turn: str | None
    waiting: int
    running: int
    oldest_s: float


class QueueKeysResult(ResultShape):
    """Who waits in a queue and who runs."""

    keys: list[QueueKeyResult]


class NamedRateResult(RateResult):
    """A rate that was set."""

    name: str


class RateUseResult(NamedRateResult):
    """A rate that is used now, and what it was last taken by.

    ``taken`` is more than the limit if some wait; ``wait_s`` is how long the next one would.
    """

    taken: int
    wait_s: float


class RatesResult(ResultShape):
    """The rates that were set in place of those that handlers give, and those that are used now."""

    rates: list[NamedRateResult]
    in_use: list[RateUseResult]


class QueuesResult(ResultShape):
    """The queues that workers serve, and those that have tasks."""

    queues: list[QueueResult]
