"""Tasks whose input is gathered: what is added, until they begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Announcement, Member, TaskKeys, raw
from redis_state.transport.key_groups import LogKeys


class GatheringKeys(NamedTuple):
    """The keys of what a session gathers, in its slot."""

    gathering: str

    @property
    def items(self) -> str:
        """Return the key of the times until which items are remembered."""
        return f"{self.gathering}:items"


class GatheringScripts(ScriptRunner):
    """Tasks whose input is gathered."""

    @script
    def add_item(
        self,
        of: GatheringKeys,
        *,
        task: str,
        task_id: Member,
        name: str,
        item_id: Annotated[str, raw],
        item: bytes,
        sent: bytes,
        most: int | None,
        most_bytes: int,
        after_ms: int,
        keep_ms: int,
    ) -> PendingReply:
        """OK due full | HELD task_id sent | AGAIN | FULL due | STALE."""

    @script
    def open_gathering(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        of: GatheringKeys,
        steering: LogKeys,
        announcement: Announcement,
        children: str,
        write: str,
        ttl_ms: int,
        before: int,
        name: str,
        closed: Annotated[str, raw],
        item_id: Annotated[str, raw],
        item: bytes,
        sent: bytes,
        after_ms: int,
        latest_ms: int,
        keep_ms: int,
        in_turn: bool,
        earlier_ms: int,
        turn: str | None = None,
    ) -> PendingReply:
        """OK version due | STALE version | EXPIRED | HELD task_id sent | AGAIN."""
