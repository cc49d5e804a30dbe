"""LlamaIndex's `AbstractWorkflowStore`: handlers in indexes, events and ticks in logs of a run.

What LlamaIndex takes and gives is typed `Any` here: its package is not in the environment in which
types are checked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

from redis_state import RedisStateStore, limits
from redis_state.errors import CursorGap, VersionConflict
from redis_state.integrations.llama_index.state_storage import RunStateStorage, drop_states
from redis_state.models.version import Version
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.scripts import ReplyCode
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.stores.base import ms
from redis_state.transport.key_groups import LogKeys

MOST_EVENTS = 100_000
_PAGE = 500
_RUNNING: Final = frozenset({"running"})
_RECONNECT_S = 300.0

log: logging.Logger = logging.getLogger(__name__)
_theirs: Any = import_module("llama_agents.server._store.abstract_workflow_store")
_memory: Any = import_module("llama_agents.server._store.memory_workflow_store")
_states: Any = import_module("workflows.context.state_store_integration")


class RedisStateWorkflowStore(_theirs.AbstractWorkflowStore):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Handlers, events, ticks and states of workflows, shared by all servers of a namespace.

    Every call is one atomic step, safe to repeat. All of a run lives `agent_sessions_ttl` after its
    last write. The newest ``max_events`` events of a run are kept, and all of its ticks. They are
    encrypted with the store's `payload_keys`, but for ids and names of states. Ids may be any text.
    """

    def __init__(self, store: RedisStateStore, *, max_events: int = MOST_EVENTS) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._of = store.base
        self._ttl_ms = ms(store.settings.agent_sessions_ttl)
        self._most = limits.count("max_events", max_events)

    def _build_state_store(
        self,
        run_id: str,
        namespace: tuple[str, ...],
        state_type: type[Any] | None,
        serializer: Any,
    ) -> Any:
        storage = RunStateStorage(self._of, text("run_id", run_id), namespace)
        return _states.StateStoreFacade(storage, state_type, serializer)

    async def query(self, query: Any) -> list[Any]:
        """List the handlers that fit, in the order of their last write.

        By ids or runs it reads these only, by the status ``running`` only what has not ended.
        Everything else reads all handlers, in pages of 100.
        """
        return [handler async for handler, _ in self._matching(query)]

    async def update(self, handler: Any) -> None:
        """Save a handler, whole, in place of one with its id. The last of several calls wins."""
        await self._save(handler, None)

    async def update_handler_status(self, run_id: str, **changes: Any) -> None:
        """Change a handler. What others change meanwhile, in whatever process, stays.

        LlamaIndex reads and saves the handler. A save that another one came before is begun again.
        """
        while True:
            try:
                await _theirs.AbstractWorkflowStore.update_handler_status(
                    _Unchanged(self), run_id, **changes
                )
            except VersionConflict:
                continue
            return

    async def _save(self, handler: Any, expected: Version | None) -> None:
        handler_id, keys = text("handler_id", handler.handler_id), self._of.keys
        is_running = handler.status in _RUNNING
        document = self._of.payloads.write(handler.model_dump(mode="json"), field="handler")
        reply = await self._of.scripts.save_listed(
            keys.llama_handler(handler_id),
            {"document": document},
            indexes=self._indexes(handler),
            write=new_write_id(),
            ttl_ms=self._ttl_ms,
            member=handler_id,
            listed=len(self._indexes(handler)) - (not is_running),
            expected=expected,
        )
        if expected is not None and reply.word is ReplyCode.STALE:
            raise VersionConflict(handler_id, expected=expected, actual=reply.version)

    async def delete(self, query: Any) -> int:
        """Delete the handlers that fit, with all of their runs; return how many. Nothing by none.

        A crash in between leaves a handler whose run is gone; deleting it again completes it.
        """
        if query == _theirs.HandlerQuery():
            return 0
        found = await self.query(query)
        for handler in found:
            if handler.run_id is not None:
                await self._drop_run(handler.run_id)
            await self._of.scripts.drop_listed(
                self._of.keys.llama_handler(handler.handler_id),
                indexes=self._indexes(handler),
                member=handler.handler_id,
            )
        return len(found)

    async def append_event(self, run_id: str, event: Any) -> None:
        """Append an event, and deliver it to the subscribers of all processes."""
        await self._append(self._events(run_id), event.model_dump(mode="json"), "event")

    async def query_events(
        self, run_id: str, after_sequence: int | None = None, limit: int | None = None
    ) -> list[Any]:
        """Return events after a number, in order, at most ``limit``."""
        most = None if limit is None else max(limit, 0)
        found: list[Any] = []
        async with aclosing(self._rows(self._events(run_id), after_sequence)) as rows:
            async for row in rows:
                if most is not None and len(found) >= most:
                    break
                found.append(self._event(run_id, row))
        return found

    async def append_tick(self, run_id: str, tick_data: dict[str, Any]) -> None:
        """Append a tick."""
        await self._append(self._ticks(run_id), tick_data, "tick")

    async def get_ticks(self, run_id: str) -> list[Any]:
        """Return all ticks of a run, in order."""
        return [tick async for tick in self.stream_ticks(run_id)]

    async def stream_ticks(self, run_id: str) -> AsyncIterator[Any]:
        """Yield the ticks of a run in order, read in pages. Errors: PayloadUnreadable."""
        async with aclosing(self._rows(self._ticks(run_id), None)) as rows:
            async for row in rows:
                yield _theirs.StoredTick(
                    run_id=run_id,
                    sequence=row.n - 1,
                    timestamp=_time(row),
                    tick_data=self._data(run_id, row, "tick"),
                )

    async def subscribe_events(self, run_id: str, after_sequence: int = -1) -> AsyncIterator[Any]:
        """Yield events after a number as they are appended, until the last one of the run.

        Survives lost connections. Events that were trimmed are left out, and the log says so.
        """
        events = self._events(run_id)
        after = None if after_sequence < 0 else f"{after_sequence + 1}-0"
        while True:
            try:
                following = events.follow(after=after, reconnect_timeout_s=_RECONNECT_S)
                async with aclosing(following) as rows:
                    async for row in rows:
                        after = row.cursor
                        event = self._event(run_id, row)
                        # The number may be ahead of the run, or of a history that went back.
                        if row.n - 1 > after_sequence:
                            yield event
                        if self._is_terminal_event(event):
                            return
            except CursorGap as gap:
                log.warning("events of run %r are missing: %s", run_id, gap.reason)
                after = gap.resume_after
                if gap.reason == "ahead":
                    # The last event may be there already: the history went back.
                    for event in [self._event(run_id, row) for row in await events.tail(count=1)]:
                        if self._is_terminal_event(event):
                            if event.sequence > after_sequence:
                                yield event
                            return

    async def _matching(self, query: Any) -> AsyncGenerator[tuple[Any, Version]]:
        """Yield the handlers that fit, each with its version."""
        keys = self._of.keys
        if query.handler_id_in is not None:
            async for found in self._read(list(dict.fromkeys(query.handler_id_in)), query):
                yield found
            return
        indexes = [keys.llama_handlers()]
        if query.run_id_in is not None:
            indexes = [keys.llama_handlers_of(run_id) for run_id in dict.fromkeys(query.run_id_in)]
        elif query.status_in is not None and _RUNNING.issuperset(query.status_in):
            indexes = [keys.llama_running()]
        seen: set[str] = set()
        for index in indexes:
            async for names in self._of.records.pages(index):
                async for found in self._read([n for n in names if n not in seen], query):
                    yield found
                seen.update(names)

    async def _read(self, names: list[str], query: Any) -> AsyncGenerator[tuple[Any, Version]]:
        for start in range(0, len(names), _PAGE):
            some = names[start : start + _PAGE]
            asked = [self._of.fetch(self._of.keys.llama_handler(name)) for name in some]
            for name, flat in zip(some, asked, strict=True):
                document = dict(zip((fields := await flat)[::2], fields[1::2], strict=True))
                if not document:
                    continue
                of, sealed = f"handler {name!r}", document[b"document"]
                data = codec.decode(self._of.payloads.open(sealed, of=of, field="handler"))
                handler = _theirs.decode_persistent_handler(data, self.result_decoder)
                if _memory._matches_query(handler, query):  # noqa: SLF001 - what each store means
                    number, write = document[b"version"], document[b"write"]
                    yield handler, Version(int(number), write.decode())

    async def _append(self, to: Log, value: Any, field: str) -> None:
        row = self._of.payloads.write(value, field=field)
        await to.add((new_write_id().encode(), row))

    async def _rows(self, of: Log, after_sequence: int | None) -> AsyncGenerator[Row]:
        """Yield the rows after a number; what was trimmed is left out."""
        wanted = -1 if after_sequence is None else after_sequence
        cursor = None if wanted < 0 else f"{wanted + 1}-0"
        while True:
            try:
                page = await of.read(after=cursor, count=_PAGE)
            except CursorGap as gap:
                if gap.reason != "trimmed":
                    return
                cursor = gap.resume_after
                continue
            for row in page.rows:
                yield row
            if page.at_end:
                return
            cursor = page.cursor

    def _event(self, run_id: str, row: Row) -> Any:
        return _theirs.StoredEvent(
            run_id=run_id,
            sequence=row.n - 1,
            timestamp=_time(row),
            event=self._data(run_id, row, "event"),
        )

    def _data(self, run_id: str, row: Row, field: str) -> Any:
        return codec.decode(self._of.payloads.open(row.data, of=f"run {run_id!r}", field=field))

    def _events(self, run_id: str) -> Log:
        return self._log(self._of.keys.llama_events(run_id), self._most, announce=True)

    def _ticks(self, run_id: str) -> Log:
        return self._log(self._of.keys.llama_ticks(run_id), 0, announce=False)

    def _log(self, keys: LogKeys, most: int, *, announce: bool) -> Log:
        return Log(self._of.scripts, keys, Bounds(most, self._ttl_ms), announce=announce)

    def _indexes(self, handler: Any) -> list[str]:
        keys, run_id = self._of.keys, handler.run_id
        of_run = [] if run_id is None else [keys.llama_handlers_of(run_id)]
        return [keys.llama_handlers(), *of_run, keys.llama_running()]

    async def _drop_run(self, run_id: str) -> None:
        for keys in (self._of.keys.llama_events(run_id), self._of.keys.llama_ticks(run_id)):
            await self._of.scripts.drop_listed(keys.rows, indexes=[], member="")
            await self._of.scripts.drop_listed(keys.ids, indexes=[], member="")
        await drop_states(self._of, run_id)
        self._evict_run_state_stores(run_id)


class _Unchanged:
    """The store of one change: what it has read is saved only if it is as it was."""

    def __init__(self, workflows: RedisStateWorkflowStore) -> None:
        self._workflows = workflows
        self._read: dict[str, Version] = {}

    async def query(self, query: Any) -> list[Any]:
        """List handlers, and note their versions."""
        matching = self._workflows._matching(query)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this file
        found = [each async for each in matching]
        self._read = {handler.handler_id: version for handler, version in found}
        return [handler for handler, _ in found]

    async def update(self, handler: Any) -> None:
        """Save a handler that was read. Errors: VersionConflict."""
        save = self._workflows._save  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this file
        await save(handler, self._read[handler.handler_id])


def _time(row: Row) -> datetime:
    return datetime.fromtimestamp(row.ms / 1000, UTC)
