"""ASAP's two kinds of snapshot store. They fit its protocols by their methods, as these want it.

What they take and give, typed `Any` here, are ASAP's own `StateSnapshot`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Self

from redis_state.errors import InvalidField
from redis_state.integrations.asap.package import load
from redis_state.integrations.loop_thread import LoopThread
from redis_state.settings import make_settings
from redis_state.store import RedisStateStore
from redis_state.stores.hosts.snapshots import SnapshotStore

BACKEND = "ASAP_STORAGE_BACKEND"


class AsyncRedisSnapshotStore:
    """ASAP's `AsyncSnapshotStore`, and more: find by id, roll back, prune.

    Each call is one atomic step that every process sees from then on. Closing it closes the
    store that it was made with, in the running loop.
    """

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        kind = load("asap.models.entities").StateSnapshot
        self._snapshots = SnapshotStore(store.base, kind)

    async def save(self, snapshot: Any) -> None:
        """Save a snapshot, whole, in place of one of the same task and version.

        Errors: InvalidField, a ValueError, names what could not be given back as it is.
        """
        await self._snapshots.save(snapshot)

    async def get(self, task_id: str, version: int | None = None) -> Any:
        """Return one version, or the highest; None if there is none."""
        return await self._snapshots.get(task_id, version)

    async def list_versions(self, task_id: str) -> list[int]:
        """List a task's versions, ascending."""
        return list(await self._snapshots.versions(task_id))

    async def delete(self, task_id: str, version: int | None = None) -> bool:
        """Delete one version, or all; return whether there was any."""
        return await self._snapshots.delete(task_id, version)

    async def by_id(self, task_id: str, snapshot_id: str) -> Any:
        """Return the snapshot that a `StateRestore` names, at any version; or None."""
        return await self._snapshots.by_id(task_id, snapshot_id)

    async def last_checkpoint(self, task_id: str) -> Any:
        """Return the highest version that is a checkpoint, or None."""
        return await self._snapshots.last_checkpoint(task_id)

    async def rollback(self, task_id: str, *, to: int | None = None) -> Any:
        """Delete what is above the last checkpoint, or above ``to``; return that one, or None."""
        return await self._snapshots.rollback(task_id, to=to)

    async def prune(self, task_id: str, *, keep_last: int, keep_checkpoints: bool = True) -> int:
        """Delete all but the highest versions, and the checkpoints; return how many."""
        return await self._snapshots.prune(
            task_id, keep_last=keep_last, keep_checkpoints=keep_checkpoints
        )

    async def aclose(self) -> None:
        """Finish what was called and disconnect the running loop. Safe to repeat."""
        await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._store!r}>"


class RedisSnapshotStore:
    """ASAP's `SnapshotStore`, which blocks: from any thread, under a running loop too.

    The calls of all threads share one connection, in an event loop that a thread of its own runs.
    It ends with `close`, with the last reference, or with the process.
    """

    def __init__(self, store: RedisStateStore) -> None:
        own = AsyncRedisSnapshotStore(store)
        self._own = own
        self._thread = LoopThread("redis_state snapshots")
        # Not a method of this object: it would keep it for ever.
        self._close: Callable[[], Any] = weakref.finalize(self, self._thread.close, own.aclose)

    def save(self, snapshot: Any) -> None:
        """Save a snapshot, as the other kind does."""
        self._thread.run(lambda: self._own.save(snapshot))

    def get(self, task_id: str, version: int | None = None) -> Any:
        """Return one version, or the highest; None if there is none."""
        return self._thread.run(lambda: self._own.get(task_id, version))

    def list_versions(self, task_id: str) -> list[int]:
        """List a task's versions, ascending."""
        return self._thread.run(lambda: self._own.list_versions(task_id))

    def delete(self, task_id: str, version: int | None = None) -> bool:
        """Delete one version, or all; return whether there was any."""
        return self._thread.run(lambda: self._own.delete(task_id, version))

    def by_id(self, task_id: str, snapshot_id: str) -> Any:
        """Return the snapshot that a `StateRestore` names, at any version; or None."""
        return self._thread.run(lambda: self._own.by_id(task_id, snapshot_id))

    def last_checkpoint(self, task_id: str) -> Any:
        """Return the highest version that is a checkpoint, or None."""
        return self._thread.run(lambda: self._own.last_checkpoint(task_id))

    def rollback(self, task_id: str, *, to: int | None = None) -> Any:
        """Delete what is above the last checkpoint, or above ``to``; return that one, or None."""
        return self._thread.run(lambda: self._own.rollback(task_id, to=to))

    def prune(self, task_id: str, *, keep_last: int, keep_checkpoints: bool = True) -> int:
        """Delete all but the highest versions, and the checkpoints; return how many."""
        return self._thread.run(
            lambda: self._own.prune(task_id, keep_last=keep_last, keep_checkpoints=keep_checkpoints)
        )

    def close(self) -> None:
        """Wait for running calls, disconnect and end the thread. Safe to repeat."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._own!r}>"


def create_snapshot_store(*, url: str | None = None, **options: Any) -> Any:
    """Make the store that blocks: what ``snapshot_store`` of ASAP's `create_app` takes.

    `ASAP_STORAGE_BACKEND` chooses as it does for ASAP, and ``redis`` besides; unset it is
    ``redis``, since who calls this wants no store that forgets. For ``memory`` and ``sqlite``
    ASAP's own factory answers. The server is ``url``, else ``REDIS_STATE_URL``; options are the
    fields of `Settings`. No I/O. Errors: InvalidField, a ValueError, for another backend;
    ConfigError.
    """
    if _backend(None) != "redis":
        return load("asap.state.stores").create_snapshot_store()
    return RedisSnapshotStore(RedisStateStore(make_settings(url, **options)))


def create_async_snapshot_store(
    backend: str | None = None,
    *,
    db_path: str | os.PathLike[str] | None = None,
    url: str | None = None,
    **options: Any,
) -> Any:
    """Make the store for ``await``. ``backend`` goes before `ASAP_STORAGE_BACKEND`.

    For ``memory`` and ``sqlite`` ASAP's own factory answers, with ``db_path``. Otherwise as
    `create_snapshot_store`.
    """
    chosen = _backend(backend)
    if chosen != "redis":
        return load("asap.state.snapshot").create_async_snapshot_store(chosen, db_path=db_path)
    return AsyncRedisSnapshotStore(RedisStateStore(make_settings(url, **options)))


def _backend(named: str | None) -> str:
    chosen = (named if named is not None else os.environ.get(BACKEND, "redis")).strip().lower()
    if chosen not in {"memory", "sqlite", "redis"}:
        field = BACKEND if named is None else "backend"
        raise InvalidField(field, f"{chosen!r} is none of memory, sqlite and redis")
    return chosen
