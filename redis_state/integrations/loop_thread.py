"""An event loop in a thread of its own, for callers that block, from whatever thread."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar, cast

from redis_state.errors import ConfigError

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class LoopThread:
    """Run coroutines to their end while the caller waits, also a caller with a running loop.

    The thread starts with the first call, and again in a forked process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock: threading.Lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        # A loop refers to its tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        _all.add(self)

    def run(self, work: Work[T]) -> T:
        """Run a coroutine in the thread and return what it gives.

        Errors: its own; ConfigError once it is closed, and to a call from within the thread, which
        would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise ConfigError(f"{self._name} is called from its own thread, which cannot wait")
        with self._lock:
            if self._closed:
                raise ConfigError(f"{self._name} is closed")
            future: Future[T] = Future()
            (self._loop or self._start()).call_soon_threadsafe(self._begin, work, future)
            self._waiting.add(future)
        try:
            return future.result()
        finally:
            self._waiting.discard(future)

    def leave(self, work: Work[None]) -> None:
        """Begin a coroutine for which nobody waits. Once it is closed, nothing is left to do.

        Without the lock: the garbage collector may come here while this thread holds it.
        """
        if (loop := self._loop) is not None:
            # One that has ended since has closed its generators.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._begin, work, Future[None]())

    def _begin(self, work: Work[Any], future: Future[Any]) -> None:
        """Run a coroutine as a task, with the caller's context."""
        self._tasks.add(asyncio.create_task(self._settle(work, future)))

    async def _settle(self, work: Work[Any], future: Future[Any]) -> None:
        """Give a caller its outcome within the turn in which it is there."""
        try:
            result = await work()
        except asyncio.CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()
            raise
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(result)
        finally:
            # A callback of the task would do it too, and cost the loop a turn.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def close(self, last: Work[None]) -> None:
        """Wait for running calls, run ``last`` and end the thread. Safe to repeat.

        From the thread itself, where nobody may wait for it, the end is only begun.
        """
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        is_inside = threading.current_thread() is self._thread
        if not is_inside:
            wait(set(self._waiting))
        asyncio.run_coroutine_threadsafe(_end(last), loop)
        if not is_inside and self._thread is not None:
            self._thread.join()

    def after_fork(self) -> None:
        """Forget, in a child, the thread that only its parent has."""
        if self._loop is not None:
            # Ending it here could send data on the parent's connection.
            _of_parents.append(self._loop)
        self._lock = threading.Lock()  # another thread may have held it
        self._waiting, self._tasks = set(), set()
        self._thread = self._loop = None

    def _start(self) -> asyncio.AbstractEventLoop:
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_serve, args=(ready,), name=self._name, daemon=True)
        self._thread.start()
        self._loop = ready.result()
        return self._loop


def _serve(ready: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_soon(ready.set_result, loop)
        loop.run_forever()


async def _end(last: Work[None]) -> None:
    try:
        await last()
    finally:
        asyncio.get_running_loop().stop()


_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_of_parents: list[asyncio.AbstractEventLoop] = []


def _after_fork() -> None:
    for one in list(_all):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
