"""Agent Framework's `HistoryProvider`: the messages of a session in a log."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from redis_state import RedisStateStore, limits
from redis_state.errors import InvalidField
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.stores.base import ms

MOST_MESSAGES = 10_000
_theirs: Any = import_module("agent_framework")


class RedisStateHistoryProvider(_theirs.HistoryProvider):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The messages of sessions. Options are those of Agent Framework's `HistoryProvider`.

    Messages of one run are saved together, in one step for each 64. The newest ``max_messages``
    live `memory_ttl` after the last save, encrypted with the store's `payload_keys`. Providers with
    two ``source_id`` have two histories. A message that cannot be read is left out, and kept aside.
    """

    def __init__(
        self,
        store: RedisStateStore,
        *,
        source_id: str = "redis_state",
        max_messages: int = MOST_MESSAGES,
        **options: Any,
    ) -> None:
        super().__init__(text("source_id", source_id), **options)  # pyright: ignore[reportUnknownMemberType]
        self._of = store.base
        most = limits.count("max_messages", max_messages)
        self._bounds = Bounds(most, ms(store.settings.memory_ttl))

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Return the messages of a session, in order. Errors: PayloadUnreadable, InvalidField."""
        del state, kwargs
        given = self._named(session_id)

        def read(row: Row) -> Any:
            return _theirs.Message.from_dict(codec.decode(opened[row.id]))

        rows = await self._log(given).read_all()
        of = f"session {given!r}"
        opened = {row.id: self._of.payloads.open(row.data, of=of, field="message") for row in rows}
        return self._of.read_rows(given, "message", rows, read)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Any],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages, in order. Errors: InvalidField, PayloadTooLarge."""
        del state, kwargs
        log, name = self._log(self._named(session_id)), new_write_id()
        write = self._of.payloads.write
        rows = [
            (f"{name}:{number}".encode(), write(message.to_dict(), field="message"))
            for number, message in enumerate(messages)
        ]
        if rows:
            await log.append(rows)

    async def clear(self, session_id: str | None) -> None:
        """Remove the messages of a session."""
        keys = self._log(self._named(session_id)).keys
        for key in (keys.rows, keys.ids):
            await self._of.scripts.delete(key)

    def _named(self, session_id: str | None) -> str:
        if not session_id:
            raise InvalidField("session_id", "must not be empty")
        return text("session_id", session_id)

    def _log(self, session_id: str) -> Log:
        keys = self._of.keys.framework_messages(session_id, self.source_id)
        return Log(self._of.scripts, keys, self._bounds)
