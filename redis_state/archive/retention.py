"""Retention: until when an archive keeps each class of data, and what was removed of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from redis_state.errors import ConfigError
from redis_state.settings import Settings


@dataclass(slots=True)
class RetentionReport:
    """What has expired, by class: with a dry run what would be removed, else what was.

    ``rows`` includes those of whole ``partitions``. ``left`` names what could not be removed, with
    the reason. ``more`` says that the call stopped at its limit: repeat it.
    """

    rows: dict[str, int] = field(default_factory=dict[str, int])
    partitions: dict[str, int] = field(default_factory=dict[str, int])
    left: dict[str, str] = field(default_factory=dict[str, str])
    more: bool = False

    def add(self, what: str, rows: int, *, partitions: int = 0) -> None:
        """Count what has expired of a class."""
        self.rows[what] = self.rows.get(what, 0) + rows
        self.partitions[what] = self.partitions.get(what, 0) + partitions

    def merge(self, other: RetentionReport) -> None:
        """Add what a later call removed. What is left is as that call found it."""
        for what, rows in other.rows.items():
            self.add(what, rows, partitions=other.partitions.get(what, 0))
        self.left, self.more = dict(other.left), other.more


def moments_of(keep: Mapping[str, timedelta], now: datetime) -> dict[str, datetime]:
    """Return for each class the moment before which it has expired."""
    return {what: now - lifetime for what, lifetime in keep.items()}


def outliving(settings: Settings) -> list[str]:
    """Return the classes that are kept for longer than the tasks which say whose they are.

    Of these an erasure of a user finds nothing once the tasks have gone.
    """
    keep = settings.archive_retention
    if not settings.has_archive or "tasks" not in keep:
        return []
    tasks = keep["tasks"]
    chosen = ["updates", *sorted(settings.archive_classes)]
    return [what for what in chosen if what not in keep or keep[what] > tasks]


def check_classes(
    named: Iterable[str], known: tuple[str, ...], *, setting: str = "archive_retention"
) -> None:
    """Refuse a class that an archive does not have. Errors: ConfigError names the setting."""
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise ConfigError(f"{setting}: unknown class {unknown[0]!r}: known are {', '.join(known)}")
