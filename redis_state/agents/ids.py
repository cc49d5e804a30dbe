"""Ids of an agent's parts, as the original checks them."""

from __future__ import annotations

import re
import uuid

from redis_state.agents.wire import Kind, text
from redis_state.errors import InvalidField

_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_OURS = uuid.uuid5(uuid.NAMESPACE_URL, "redis_state.agents")
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")


def new_id() -> str:
    """Make an id."""
    return str(uuid.uuid4())


def derived_id(*parts: str) -> str:
    """Make an id of what it belongs to: the same parts give the same id in every process."""
    # A lone surrogate, which JSON may hold, has no UTF-8.
    name = "\x1f".join(parts).encode("utf-8", "backslashreplace").decode()
    return str(uuid.uuid5(_OURS, name))


def check_uuid(value: object, place: str) -> str:
    """Return an id. Errors: InvalidField unless it is a UUID of version 1 to 5."""
    found = text.read(value, place)
    if not _UUID.fullmatch(found):
        raise InvalidField(place, "a UUID of version 1 to 5 is needed")
    return str(found)


def is_session_id(text_: str) -> bool:
    """Tell whether a text may be a session's id."""
    return _SESSION.fullmatch(text_) is not None


def session_id_for(name: str) -> str:
    """Return a name as a session's id: itself if it may be one, else one of its own made of it."""
    if is_session_id(name):
        return name
    words = "-".join(re.findall(r"[a-zA-Z0-9]+", name))[:40]
    made = derived_id("session of", name)
    return f"{words}-{made}" if words else made


def check_session_id(value: object, place: str = "session_id") -> str:
    """Return a session's id. Errors: InvalidField unless letters, digits, ``_`` and ``-``."""
    found = text.read(value, place)
    if not _SESSION.fullmatch(found):
        raise InvalidField(place, "letters, digits, _ and - are needed, a letter or digit first")
    return str(found)


uuid_kind: Kind = Kind(check_uuid, lambda value: value)
