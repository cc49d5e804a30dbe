"""Sessions of Google's ADK, with the states of their users and apps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Expected
from redis_state.transport.key_groups import LogKeys


@dataclass(frozen=True, slots=True)
class AdkKeys:
    """The keys of a session, its user and its app: all in the slot of the app."""

    session: str
    user: str
    app: str
    index: str
    own: str
    events: LogKeys
    member: str

    @property
    def rows(self) -> str:
        """Return the key of the events."""
        return self.events.rows

    @property
    def ids(self) -> str:
        """Return the key of the events' ids."""
        return self.events.ids

    @property
    def channel(self) -> str:
        """Return the channel of the events."""
        return self.events.channel


class AdkScripts(ScriptRunner):
    """Sessions of Google's ADK."""

    @script
    def write_adk_session(
        self,
        keys: AdkKeys,
        *,
        expected: Expected,
        write: str,
        updated: str,
        ttl_ms: int,
        max_rows: int,
        row_id: bytes,
        row: bytes,
        of_session: Sequence[bytes],
        of_user: Sequence[bytes],
        of_app: Sequence[bytes],
    ) -> PendingReply:
        """OK version | STALE version write | AGAIN version write newest | MISSING."""

    @script
    def delete_adk_session(self, keys: AdkKeys) -> PendingReply:
        """OK deleted."""
