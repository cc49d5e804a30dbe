"""What this process remembers of threads: the values that new ones may continue."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TypeAlias

from redis_state.integrations.langgraph.threads.stored.tails import LEAST, StoredValue

# Values of a thread that another process deleted stay in memory no longer.
KEPT_S = 300.0
_REMEMBERED_BYTES = 32 * 1024 * 1024

_Key: TypeAlias = tuple[str, str, str]


class Newest:
    """The values of channels that this process put or got last: of five minutes, and 32 MiB.

    They are not sealed. So those of a thread that is deleted here are forgotten at once.
    """

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        # What was remembered first comes first.
        self._values: OrderedDict[_Key, tuple[StoredValue, float]] = OrderedDict()
        self._of_thread: dict[str, set[_Key]] = {}
        self.held_bytes: int = 0
        # Callers that block have a loop in a thread of its own.
        self._lock = Lock()
        self._clears_in: asyncio.AbstractEventLoop | None = None

    def of(self, thread_id: str, scope: str, channel: str) -> StoredValue | None:
        """Return what a channel's next value may continue."""
        found = self._values.get((thread_id, scope, channel))
        return None if found is None or found[1] < time.monotonic() else found[0]

    def add(self, thread_id: str, scope: str, values: Mapping[str, StoredValue]) -> None:
        """Remember values of channels that are stored, each in place of the one before.

        Needs a running loop.
        """
        with self._lock:
            until = time.monotonic() + self._kept_s
            for channel, value in values.items():
                key = thread_id, scope, channel
                if len(value.data) < LEAST:
                    self._pop(key)
                    continue
                before = self._values.get(key)
                if before is None:
                    self._of_thread.setdefault(thread_id, set()).add(key)
                else:
                    self.held_bytes -= before[0].size
                self._values[key] = value, until
                self._values.move_to_end(key)
                self.held_bytes += value.size
            while self.held_bytes > _REMEMBERED_BYTES:
                self._pop(next(iter(self._values)))
            if self._values and (self._clears_in is None or self._clears_in.is_closed()):
                self._clear_later(self._kept_s)

    def forget_thread(self, thread_id: str) -> None:
        """Forget a thread that is deleted, or parts of it."""
        with self._lock:
            for key in list(self._of_thread.get(thread_id, ())):
                self._pop(key)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
            self._of_thread.clear()
            self.held_bytes = 0

    def _pop(self, key: _Key) -> None:
        found = self._values.pop(key, None)
        if found is None:
            return
        self.held_bytes -= found[0].size
        of_thread = self._of_thread[key[0]]
        of_thread.discard(key)
        if not of_thread:
            del self._of_thread[key[0]]

    def _clear_later(self, after_s: float) -> None:
        loop = self._clears_in = asyncio.get_running_loop()
        this: weakref.ref[Newest] = weakref.ref(self)
        loop.call_later(after_s, _clear_old, this)

    def clear_old(self) -> None:
        """Forget what was remembered too long ago, and look again when the next one is due."""
        with self._lock:
            self._clears_in = None
            now = time.monotonic()
            while self._values:
                key, (_, until) = next(iter(self._values.items()))
                if until > now:
                    self._clear_later(until - now)
                    return
                self._pop(key)


def _clear_old(newest: weakref.ref[Newest]) -> None:
    found = newest()
    if found is not None:
        found.clear_old()
