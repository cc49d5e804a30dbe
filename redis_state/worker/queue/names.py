"""The names of the queues that jobs were put into, also of those that no worker serves.

A name is known before its first job is there. It is written again every ten minutes, and by a
sweeper that finds that the history of the queues is another one. So a server that lost it knows it
soon.
"""

from __future__ import annotations

from time import monotonic

from redis_state.scripts import Scripts, raw

_AGAIN_S = 600.0
_DAY_MS = 86_400_000
# So many that a process has written are remembered.
_MOST = 1_000
# So many are listed with one call.
_PAGE = 1_000


class QueueNames:
    """The names of a namespace's queues. ``life_ms`` is how long a job that is due is kept."""

    def __init__(self, scripts: Scripts, key: str, *, life_ms: int) -> None:
        self._scripts = scripts
        self._key = key
        self._life_ms = life_ms
        # When a name was written last, and for jobs of up to which time.
        self._known: dict[str, tuple[float, int]] = {}

    async def know(self, name: str, *, at_ms: int | None = None) -> None:
        """Write a queue's name, unless this process did lately. Errors: BackendUnavailable."""
        # Rounded up: not each delayed job writes it.
        day_ms = 0 if at_ms is None else -(-at_ms // _DAY_MS) * _DAY_MS
        now_s = monotonic()
        since_s, until_ms = self._known.get(name, (now_s - _AGAIN_S, 0))
        if now_s - since_s < _AGAIN_S and day_ms <= until_ms:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[name] = now_s, day_ms
        try:
            await self._scripts.know_queue(
                self._key, queue=raw(name), life_ms=self._life_ms, at_ms=day_ms or None
            )
        except BaseException:
            self._known.pop(name, None)
            raise

    def doubt(self) -> None:
        """Write every name again that comes: the server may have lost it."""
        self._known.clear()

    async def list(self) -> set[str]:
        """List all of them, a page at a time. Errors: BackendUnavailable."""
        commands = self._scripts.transport.commands
        names: set[str] = set()
        async for page in commands.zscan_all(self._key, count=_PAGE):
            names.update(name.decode("utf-8", "surrogatepass") for name in page)
        return names
