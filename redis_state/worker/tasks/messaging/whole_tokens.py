"""Where a text may be divided into rows: not within the token of a pause.

A gateway cuts the tokens of pauses from each row by itself, so a token has to stand in one.
"""

from __future__ import annotations

import re
from typing import Final

from redis_state.transport.keys import token_scopes

_RANDOM: Final = re.compile(r"\.[A-Za-z0-9_-]{32}")
_BEGUN: Final = re.compile(r"\.[A-Za-z0-9_-]{0,31}\Z")


class WholeTokens:
    """Divides one text, in the order in which it is published.

    What waits for its rest begins with the dot behind the session's part of a token: at most 32
    signs. All before it is published at once.
    """

    def __init__(self, session_id: str) -> None:
        self._scopes = token_scopes(session_id)
        self._longest = max(map(len, self._scopes))
        self._before = ""

    def divide(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """Return what of the next text is a row, and what is of a later one."""
        seen, near = len(self._before), self._before + text
        at = self._behind(near, seen)
        if at is None:
            begun = None if is_last else _BEGUN.search(near, max(seen, len(near) - 32))
            is_token = begun is not None and near.endswith(self._scopes, 0, begun.start())
            at = begun.start() if begun is not None and is_token else len(near)
        self._before = near[:at][-self._longest :]
        return near[seen:at], near[at:]

    def _behind(self, near: str, seen: int) -> int | None:
        """Return where a token ends whose begin is published.

        It is the end of a row: a gateway knows such a token by its end alone.
        """
        for found in _RANDOM.finditer(near, seen, seen + self._longest + 33):
            if near.endswith(self._scopes, 0, found.start()):
                return found.end()
        return None
