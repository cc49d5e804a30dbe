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

    def knows(self, name: str, *, at_ms: int | None = None) -> bool:
        """Return whether this process has written a queue's name lately."""
        known = self._known.get(name)
        return (
            known is not None
            and monotonic() - known[0] < _AGAIN_S
            and (at_ms is None or _day_ms(at_ms) <= known[1])
        )

    async def know(self, name: str, *, at_ms: int | None = None) -> None:
        """Write a queue's name, unless this process did lately. Errors: BackendUnavailable."""
        if self.knows(name, at_ms=at_ms):
            return
        day_ms, now_s = _day_ms(at_ms), monotonic()
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


def _day_ms(at_ms: int | None) -> int:
    # Rounded up: not each delayed job writes the name.
    return 0 if at_ms is None else -(-at_ms // _DAY_MS) * _DAY_MS
