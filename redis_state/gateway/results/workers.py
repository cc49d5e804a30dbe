"""Answers about worker processes."""

from __future__ import annotations

from datetime import datetime

from redis_state.gateway.results.base import LinkResult, ResultShape


class WorkerResult(ResultShape):
    """A worker process."""

    name: str
    instance: str
    host: str
    pid: int
    version: str
    queues: list[str]
    handlers: list[str]
    versions: dict[str, list[str]]
    max_tasks: int
    heartbeat: str
    draining: bool
    running: list[LinkResult]
    running_count: int
    counters: dict[str, int]
    started_at: datetime
    last_seen_at: datetime
    last_poll_at: datetime | None
    silent_s: float
    unpolled_s: float | None
    stalled: bool


class WorkersResult(ResultShape):
    """The live worker processes. ``cursor`` continues behind them; it is null at the end."""

    workers: list[WorkerResult]
    cursor: str | None
