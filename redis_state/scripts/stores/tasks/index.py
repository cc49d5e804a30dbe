"""The index of tasks: by status, session, handler and attributes, in order of creation.

Those that have ended are listed in the order of their ends too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.key_groups import TaskIndexKeys


class IndexedTask(NamedTuple):
    """What the index knows of a task. ``entry`` is its entry of the watch list.

    A status is a letter. For a move all behind ``ttl_ms`` is left out but ``ended``: when a
    terminal task ended, in us.
    """

    entry: bytes
    status: str
    version: int
    write: str
    ttl_ms: int
    created: int = 0
    session: str = ""
    task: str = ""
    handler: str = ""
    attributes: Sequence[bytes] = ()
    ended: int | None = None

    @property
    def stamp(self) -> str:
        """Return what distinguishes this state of the task from another, as the index has it."""
        ended = "" if self.ended is None else f" {self.ended}"
        return f"{self.version} {self.write} {self.status}{ended}"


class IndexScripts(ScriptRunner):
    """The index of tasks."""

    @script
    def index_task(
        self,
        keys: TaskIndexKeys,
        task: IndexedTask,
        *,
        rule: str,
        delay_ms: int | None = None,
        stands: str = "",
    ) -> PendingReply:
        """OK when | STALE when stamp | MISSING when."""

    @script
    def begin_index_task(
        self,
        keys: TaskIndexKeys,
        task: IndexedTask,
        *,
        rule: str,
        delay_ms: int | None = None,
        stands: str = "",
    ) -> asyncio.Future[Any]:
        """Like `index_task`, without waiting for the reply."""

    @script
    def begin_unindex_task(
        self, keys: TaskIndexKeys, *, entry: bytes, stamp: str
    ) -> asyncio.Future[Any]:
        """OK | STALE stamp."""

    @script
    def unindex_task(self, keys: TaskIndexKeys, *, entry: bytes, stamp: str) -> PendingReply:
        """OK | STALE stamp."""

    @script
    def find_tasks(
        self,
        keys: TaskIndexKeys,
        *,
        kind: str,
        value: bytes,
        statuses: str,
        newest: bool,
        low: bytes,
        high: bytes,
        size: int,
        most: int,
        wanted: Sequence[bytes],
    ) -> PendingReply:
        """OK more last, then place, stamp, session, task and handler of each."""

    @script
    def count_ended(
        self, keys: TaskIndexKeys, *, statuses: str, low: bytes, high: bytes
    ) -> PendingReply:
        """OK, then a count for each status."""

    @script
    def list_sessions(self, keys: TaskIndexKeys, *, after: bytes, size: int) -> PendingReply:
        """OK, then where each is listed, and its id."""

    @script
    def count_tasks(
        self, keys: TaskIndexKeys, *, kind: str, statuses: str, values: Sequence[bytes]
    ) -> PendingReply:
        """OK, then for each value the time of the newest, and a count for each status."""
