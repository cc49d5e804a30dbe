"""A store, and the thread in which calls that block wait for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from redis_state.integrations.loop_thread import LoopThread
from redis_state.store import RedisStateStore

T = TypeVar("T")


class Home:
    """Shared by a saver and its clones. Its thread ends with `close`, or with the last of them."""

    def __init__(self, store: RedisStateStore, name: str) -> None:
        self.store: RedisStateStore = store
        self._thread = LoopThread(name)
        self.close: Callable[[], Any] = weakref.finalize(self, self._thread.close, store.aclose)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine while the caller waits, also one with a running loop."""
        return self._thread.run(work)

    async def aclose(self) -> None:
        """Disconnect, and end the thread. Safe to repeat."""
        await self.store.aclose()
        self.close()
