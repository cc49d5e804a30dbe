"""The state of a run as LlamaIndex's facade stores it: one record for each namespace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from redis_state.models.version import Version
from redis_state.primitives.record import Place
from redis_state.serialization.rows import pack
from redis_state.stores.base import Base, ms

_KIND = "redis_state"
_states: Any = import_module("workflows.context.state_store_integration")


class RunStateStorage:
    """The state of a run and a namespace. In a block it is saved only if it is as it was loaded."""

    def __init__(self, base: Base, run_id: str, namespace: tuple[str, ...]) -> None:
        self.run_id: str = run_id
        self._of = base
        self._name = pack(list(namespace)).decode()
        self._in_block = False
        self._expected: Version | None = None

    async def load(self) -> Any:
        """Return the record, or None. Errors: PayloadUnreadable."""
        found = await self._of.records.load(self._key(self.run_id, self._name))
        if self._in_block:
            self._expected = Version(0) if found is None else found.version
        if found is None:
            return None
        of = f"run {self.run_id!r}"
        data = self._of.payloads.open(found.fields["document"], of=of, field="state")
        return _states.StateRecord(data=self._of.payloads.decode(data))

    async def save(self, record: Any) -> None:
        """Save a record. Errors: VersionConflict, in a block, if another process saved since."""
        document = self._of.payloads.write(record.data, field="state")
        await self._save(self._name, document, self._expected)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[RunStateStorage, None]:
        """Yield a storage whose save is refused if another process saved since its load."""
        block = RunStateStorage(self._of, self.run_id, ())
        block._name, block._in_block = self._name, True
        yield block

    def to_handle(self) -> dict[str, Any]:
        """Return what finds this run's state again."""
        return {"store_type": _KIND, "run_id": self.run_id}

    def parse_own_handle(self, payload: dict[str, Any]) -> str | None:
        """Return the run that a handle names, or None if it is another store's."""
        return str(payload["run_id"]) if payload.get("store_type") == _KIND else None

    async def copy_from_handle(self, handle: str) -> None:
        """Copy the states of all namespaces of a run into this one."""
        async for names in self._of.records.pages(self._of.keys.llama_states(handle)):
            for name in names:
                found = await self._of.records.load(self._key(handle, name))
                if found is not None:
                    await self._save(name, found.fields["document"], None)

    async def _save(self, name: str, document: bytes, expected: Version | None) -> None:
        await self._of.records.save(
            self._key(self.run_id, name),
            {"document": document},
            ttl_ms=ms(self._of.settings.agent_sessions_ttl),
            expected=expected,
            place=Place(self._of.keys.llama_states(self.run_id), name),
        )

    def _key(self, run_id: str, name: str) -> str:
        return self._of.keys.llama_state(run_id, name)


async def drop_states(base: Base, run_id: str) -> None:
    """Delete the states of a run."""
    index = base.keys.llama_states(run_id)
    async for names in base.records.pages(index):
        for name in names:
            key = base.keys.llama_state(run_id, name)
            await base.records.delete(key, place=Place(index, name))
