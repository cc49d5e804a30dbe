"""Keys that a script takes together: those of one log, one task, one queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from redis_state.transport.key_text import escape


class LogKeys(NamedTuple):
    """The keys of one log, both in one slot. The channel is no key."""

    rows: str
    ids: str
    channel: str

    @property
    def spare(self) -> str:
        """Return the key of a copy that is there for the length of a call."""
        return f"{self.rows}:spare"


@lru_cache(maxsize=1024)
def log_keys(rows: str, database: int) -> LogKeys:
    """Return the keys of the log with these rows."""
    return LogKeys(rows, f"{rows}:ids", live_channel(rows, database))


def live_channel(key: str, database: int) -> str:
    """Return the channel on which changes of a key are published, in the key's slot."""
    return f"{key}:live" if database == 0 else f"{key}:live:{database}"


class StreamKeys(NamedTuple):
    """The keys of one durable stream, both in one slot. The channel is no key."""

    info: str
    channel: str

    @property
    def rows(self) -> str:
        """Return the key of its rows."""
        return f"{self.info}:rows"


@dataclass(frozen=True, slots=True)
class BlobKeys:
    """The keys of one scope's blobs, all in one slot: the blobs themselves and the books."""

    blobs: str

    @property
    def expiry(self) -> str:
        """Return the key of the index by expiry."""
        return f"{self.blobs}:expiry"

    @property
    def use(self) -> str:
        """Return the key of the index by last use or arrival."""
        return f"{self.blobs}:use"

    @property
    def about(self) -> str:
        """Return the key of the sizes and totals."""
        return f"{self.blobs}:about"

    def blob(self, blob_id: str) -> str:
        """Return the key of one blob."""
        return f"{self.blobs}:blob:{escape('artifact_id', blob_id)}"

    def reference(self, blob_id: str) -> str:
        """Return the key of a blob's reference, which outlives the blob."""
        return f"{self.blobs}:reference:{escape('artifact_id', blob_id)}"

    @property
    def references(self) -> str:
        """Return the key of the index of references."""
        return f"{self.blobs}:references"

    def victim_blobs(self, victims: Sequence[str]) -> list[str]:
        """Return the keys of blobs that may be evicted."""
        return [self.blob(victim) for victim in victims]

    def upload(self, name: str) -> str:
        """Return the key of an upload."""
        return f"{self.blobs}:upload:{name}"


@dataclass(frozen=True, slots=True)
class A2ABooks:
    """The lists of one scope's A2A tasks, all in one slot."""

    index: str

    @property
    def places(self) -> str:
        """Return the key of the places of tasks in the list."""
        return f"{self.index}:places"

    @property
    def expiry(self) -> str:
        """Return the key of the index by expiry."""
        return f"{self.index}:expiry"


@dataclass(frozen=True, slots=True)
class TaskIndexKeys:
    """The keys of one shard of the index of tasks, in the slot of that shard of the watch list."""

    watch: str
    index: str

    @property
    def clock(self) -> str:
        """Return the key of the time at which the watch list was last written."""
        return f"{self.watch}:clock"

    @property
    def about(self) -> str:
        """Return the key of what is known of each task."""
        return f"{self.index}:about"

    @property
    def expiry(self) -> str:
        """Return the key of the times at which tasks are forgotten."""
        return f"{self.index}:expiry"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys that the scripts of one job share; all jobs are in one slot."""

    job: str
    jobs: str
    jobs_of: str
    due: str


class ScheduleKeys(NamedTuple):
    """The keys that the script of one schedule has; all schedules are in one slot."""

    schedule: str
    schedules: str
    due: str

    @property
    def clock(self) -> str:
        """Return the key of the time at which the list of what is due was last written."""
        return f"{self.due}:clock"


@dataclass(frozen=True, slots=True)
class A2AKeys:
    """The keys of one A2A task; all tasks of a scope are in one slot."""

    task_id: str
    task: str
    books: A2ABooks
    events: LogKeys
    lease: str
    configs: str
    history: str
    artifacts: str


class QueueKeys(NamedTuple):
    """The keys of one queue, all in the slot of its namespace's queues. The channel is no key."""

    queue: str
    claims: str
    flow: str
    owners: str
    keyed: str
    heads: str
    turns: str
    holders: str
    waits: str
    rates: str
    channel: str
