"""A store, and the thread in which calls that block wait for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from redis_state.integrations.loop_thread import LoopThread
from redis_state.store import RedisStateStore

T = TypeVar("T")


class StoreThread:
    """Shared by a saver and its clones. Its thread ends with `close`, or with the last of them.

    Only a store that is ``owned`` is closed in the caller's loop too.
    """

    def __init__(self, store: RedisStateStore, name: str) -> None:
        self.store: RedisStateStore = store
        # Of who made the store from a URL.
        self.owned: bool = False
        self._thread = LoopThread(name)
        # In the thread's loop, which has connections of its own.
        self.close: Callable[[], Any] = weakref.finalize(self, self._thread.close, store.aclose)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine while the caller waits, also one with a running loop."""
        return self._thread.run(work)

    def leave(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a coroutine for which nobody waits."""
        self._thread.leave(work)

    async def aclose(self) -> None:
        """Disconnect what is owned, and end the thread. Safe to repeat."""
        if self.owned:
            await self.store.aclose()
        self.close()


class OnStoreThread:
    """What LangGraph is given: its calls wait for a store or block, and it is closed once."""

    _home: StoreThread

    async def aclose(self) -> None:
        """Disconnect, and end the thread of calls that block. Safe to repeat.

        A store that was given stays open: it is the caller's.
        """
        await self._home.aclose()

    def close(self) -> None:
        """Wait for running calls, disconnect and end the thread. Safe to repeat."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._home.store!r}>"
