"""Sessions whose tasks run in turn: a new task, and what becomes of those that are in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Announcement, Member, TaskKeys, topic_bytes
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.wire.resp import Argument


class KnownTask(NamedTuple):
    """A task that may be in the way, and the update that it is cancelled; empty for none."""

    keys: TaskKeys
    row_id: bytes = b""
    row: bytes = b""


@dataclass(frozen=True, slots=True)
class KnownTasks:
    """The tasks of a session that may be in a new one's way."""

    each: Sequence[KnownTask] = ()

    @property
    def others(self) -> list[str]:
        """Return the keys of each: its record, its journal."""
        return [key for one in self.each for key in (one.keys.task, one.keys.journal)]

    @property
    def known(self) -> list[Argument]:
        """Return the id of each, with the id and the row of its update."""
        return [
            part
            for one in self.each
            for part in (topic_bytes(one.keys.task_id), one.row_id, one.row)
        ]


class TurnScripts(ScriptRunner):
    """Sessions whose tasks run in turn."""

    @script
    def create_turn_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        steering: LogKeys,
        announcement: Announcement,
        children: str,
        turn: str,
        line: KnownTasks,
        write: str,
        ttl_ms: int,
        before: int,
        policy: str,
        delay_ms: int,
        earlier_ms: int,
        life_ms: int,
        ended_ms: int,
        hold_ms: int = 0,
        cancelled: Mapping[str, bytes],
    ) -> PendingReply:
        """OK version due interrupted ids and versions | STALE version | EXPIRED | AGAIN |
        TAKEN id status.
        """

    @script
    def keep_turn(
        self, *, task: str, turn: str, task_id: Member, place_ms: int, life_ms: int
    ) -> PendingReply:
        """OK order interrupted."""

    @script
    def settle_turn(self, *, task: str, order: int) -> PendingReply:
        """OK settled."""
