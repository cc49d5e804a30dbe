"""Tasks of servers on the A2A SDK: versioned, with their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    raw,
)
from redis_state.transport.keys import A2ABooks, LogKeys


@dataclass(frozen=True, slots=True)
class A2AVersionKeys:
    """The keys that the scripts of an A2A task share; all in its owner's slot."""

    task_id: str
    task: str
    books: A2ABooks
    events: LogKeys
    lease: str
    configs: str

    @property
    def all(self) -> tuple[str, ...]:
        """The keys in the order of the scripts."""
        books, events = self.books, self.events
        index = (books.index, books.places, books.expiry)
        log = (events.rows, events.ids, events.channel)
        return (self.task, *index, *log, self.lease, self.configs)


class A2AVersionScripts(ScriptRunner):
    """Tasks of servers on the A2A SDK: versioned, with their events."""

    def write_a2a_version(
        self,
        keys: A2AVersionKeys,
        *,
        rule: str,
        write: str,
        row: bytes,
        state: str,
        phase: str,
        place: bytes,
        body: bytes,
        ttl_ms: int,
        max_rows: int,
        owner: str,
        lease_ms: int,
        keep_ms: int,
        epoch: int | None,
        announce: bool = False,
    ) -> PendingReply:
        """OK version at epoch | STALE version at | DENIED state | HELD epoch | MISSING."""
        return self._run(
            "write_a2a_version",
            keys.all,
            (
                rule,
                write,
                raw(keys.task_id),
                row,
                state,
                phase,
                place,
                body,
                ttl_ms,
                max_rows,
                owner,
                lease_ms,
                keep_ms,
                "" if epoch is None else epoch,
                "1" if announce else "",
            ),
        )

    def read_a2a_version(self, keys: A2AVersionKeys) -> PendingReply:
        """OK version at state phase owner epoch left_ms body announce | MISSING."""
        return self._run("read_a2a_version", (keys.task, keys.lease), ())

    def list_a2a_versions(
        self,
        books: A2ABooks,
        tasks: Sequence[str],
        *,
        asked: bytes,
        since: bytes,
        after: bytes,
        size: int,
        settle: bool,
        known: Sequence[bytes],
    ) -> PendingReply:
        """OK total more task... | AGAIN id..."""
        return self._run(
            "list_a2a_versions",
            (books.index, books.places, books.expiry, *tasks),
            (asked, since, after, size, int(settle), *known),
        )

    def drop_a2a_version(self, keys: A2AVersionKeys, *, write: str, ttl_ms: int) -> PendingReply:
        """OK version | MISSING."""
        return self._run("drop_a2a_version", keys.all, (write, raw(keys.task_id), ttl_ms))

    def put_a2a_config(
        self, push: str, task: str, *, name: str, config: bytes, most: int, ttl_ms: int
    ) -> PendingReply:
        """OK number | DENIED count | MISSING."""
        return self._run_once("put_a2a_config", (push, task), (raw(name), config, most, ttl_ms))

    def drop_a2a_configs(self, push: str, *, name: str) -> PendingReply:
        """OK deleted. Without a name all are."""
        return self._run_once("drop_a2a_configs", (push,), (raw(name),))
