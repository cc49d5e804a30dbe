"""What an erasure found and removed, by class. No I/O, and no content of what was removed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class ErasureReport:
    """What there was of sessions or a user: what was removed, or would be with a dry run.

    ``redis`` counts by class what Redis had, ``archive`` what the archive had, ``claims`` the
    objects of the store of claims. ``durable_events`` are the audit events that a store with
    `durable_events` had in PostgreSQL. ``kept`` names what stays on purpose, with the reason, and
    ``failed`` what could not be removed: repeat the call. ``cancelled`` tasks were running.
    """

    sessions: list[str] = field(default_factory=list[str])
    dry_run: bool = False
    redis: dict[str, int] = field(default_factory=dict[str, int])
    archive: dict[str, int] = field(default_factory=dict[str, int])
    claims: int = 0
    durable_events: int = 0
    cancelled: int = 0
    kept: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left that could not be removed."""
        return not self.failed

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing."""
        named = any(self.redis.values()) or any(self.archive.values())
        return not (named or self.claims or self.durable_events)

    def count(self, what: str, number: int = 1) -> None:
        """Count what Redis had of a class."""
        if number:
            self.redis[what] = self.redis.get(what, 0) + number

    def merge(self, other: ErasureReport) -> None:
        """Add the report of another session."""
        self.sessions += other.sessions
        for what, number in other.redis.items():
            self.count(what, number)
        for what, number in other.archive.items():
            self.archive[what] = self.archive.get(what, 0) + number
        self.claims += other.claims
        self.durable_events += other.durable_events
        self.cancelled += other.cancelled
        self.kept |= other.kept
        self.failed |= other.failed

    def document(self) -> dict[str, Any]:
        """Write it as plain JSON."""
        return asdict(self) | {"complete": self.is_complete}
