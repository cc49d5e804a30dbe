"""Where a memory's document is kept: with a version where the store has them."""

from __future__ import annotations

from typing import Any, Protocol

from redis_state.stores.memory.memory import MemoryStore


class MemoryDocument(Protocol):
    """A document that is read and written whole."""

    async def load(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the document and its version; None for its version if it has none."""
        ...

    async def save(self, state: dict[str, Any], *, expected: int | None) -> int | None:
        """Write the document over the version expected. Errors: VersionConflict."""
        ...


class Versioned:
    """A document of the memory store."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key

    async def load(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the document and its version."""
        return await self._store.load(self._key)

    async def save(self, state: dict[str, Any], *, expected: int | None) -> int | None:
        """Compare and set, in one step."""
        return await self._store.save(self._key, state, expected_version=expected)


class Plain:
    """A document of any other state store, where the last save wins."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    async def load(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the document."""
        state = await self._store.load_memory_state(self._key)
        return None if state is None else (state, None)

    async def save(self, state: dict[str, Any], *, expected: int | None) -> int | None:
        """Write the document over whatever is there."""
        del expected
        await self._store.save_memory_state(self._key, state)
        return None


class LocalDocument:
    """A document that this object keeps to itself, for a memory without a store."""

    def __init__(self) -> None:
        self._state: dict[str, Any] | None = None

    async def load(self) -> tuple[dict[str, Any], int | None] | None:
        """Return the document."""
        return None if self._state is None else (self._state, None)

    async def save(self, state: dict[str, Any], *, expected: int | None) -> int | None:
        """Keep the document."""
        del expected
        self._state = state
        return None


def memory_store_of(store: Any) -> MemoryStore | None:
    """Return the memory store of a state store of ours, else None."""
    memory = getattr(store, "memory", None)
    return memory if isinstance(memory, MemoryStore) else None


def open_document(store: Any, key: str) -> MemoryDocument:
    """Return the document of a key: in a store's memory, else by its two methods, else nowhere."""
    memory = memory_store_of(store)
    if memory is not None:
        return Versioned(memory, key)
    if hasattr(store, "load_memory_state") and hasattr(store, "save_memory_state"):
        return Plain(store, key)
    return LocalDocument()
