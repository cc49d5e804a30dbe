"""What a process has listed lately, so that it does not list it again at each write."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

_REMEMBERED = 10_000


class Lately:
    """What this process has listed within an eighth of a lifetime; of the last 10,000."""

    def __init__(self, ttl_ms: int) -> None:
        self.longer_ms: int = ttl_ms + ttl_ms // 4
        self._valid_s = ttl_ms / 8000
        self._until: OrderedDict[Any, float] = OrderedDict()

    def has(self, what: Any) -> bool:
        """Return whether it is listed still."""
        return self._until.get(what, 0) > time.monotonic()

    def add(self, what: Any) -> None:
        """Remember that it was listed now."""
        self._until[what] = time.monotonic() + self._valid_s
        self._until.move_to_end(what)
        if len(self._until) > _REMEMBERED:
            self._until.popitem(last=False)

    def forget(self, what: Any) -> None:
        """Forget it: it is not there any more."""
        self._until.pop(what, None)
