"""What no answer may hold: the tokens that decide pauses.

A token begins with its session's part of the key, and has 32 characters behind a dot. So every text
about a session is searched for those of that session, wherever a handler may have put them. Hosts
have tokens of any form, always under the name ``resume_token``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, cast

from redis_state.serialization import codec
from redis_state.transport.keys import is_pause_id, token_scopes

CUT = "[token]"
_NAMES = frozenset({"resume_token"})
# Ids that a user has chosen may look like anything.
_IDS = frozenset({"session_id", "task_id", "pause_id", "update_id", "trace_id", "event_id"})
# What decides a pause of another session: an input may be a copy, and a parent's row its child's.
# Random text has letters of both cases; a digest, and the name of a function, has not.
_RANDOM = r"\.(?=[A-Za-z0-9_-]{0,31}[a-z])(?=[A-Za-z0-9_-]{0,31}[A-Z])[A-Za-z0-9_-]{32}"
_ENDING = _RANDOM + r"(?![A-Za-z0-9_-])"
# With what stands behind it: who finds the token in there has it.
WITH_MORE: Final = re.compile(_RANDOM + "[A-Za-z0-9_-]*")
FOREIGN: Final = re.compile(_ENDING)
_FOREIGN_BYTES = re.compile(_ENDING.encode())


def cut_tokens(session_id: str, value: Any) -> Any:
    """Return a value about a session as plain JSON, without tokens of the session's pauses."""
    return _cut(codec.plain(value), _pattern(session_id).sub)


def may_have_token(written: bytes) -> bool:
    """Return whether JSON may hold a token of any session."""
    return _FOREIGN_BYTES.search(written) is not None


@lru_cache(maxsize=512)
def _pattern(session_id: str) -> re.Pattern[str]:
    scopes = "|".join(map(re.escape, token_scopes(session_id)))
    return re.compile(rf"(?:{scopes})\.[A-Za-z0-9_-]{{32}}")


def _cut(value: Any, own: Callable[[str, str], str], *, is_id: bool = False) -> Any:
    if isinstance(value, str):
        text = own(CUT, value)
        return text if is_id else FOREIGN.sub(f".{CUT}", text)
    if isinstance(value, list):
        return [_cut(each, own) for each in cast("Any", value)]
    if isinstance(value, dict):
        return {
            _cut(name, own): CUT
            if name in _NAMES and not is_pause_id(each)
            else _cut(each, own, is_id=name in _IDS)
            for name, each in cast("dict[str, Any]", value).items()
        }
    return value
