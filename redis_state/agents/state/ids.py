"""Ids of an agent's parts, as the original checks them."""

from __future__ import annotations

import re
import uuid

from redis_state.agents.state.wire.kinds import same, text
from redis_state.agents.state.wire.wire import Kind
from redis_state.errors import InvalidField

_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_OURS = uuid.uuid5(uuid.NAMESPACE_URL, "redis_state.agents")
_SESSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")


def new_id() -> str:
    """Make an id."""
    return str(uuid.uuid4())


def derived_id(*parts: str) -> str:
    """Make an id of what it belongs to: the same parts give the same id in every process.

    Errors: InvalidField for a part that is no text.
    """
    for part in parts:
        text.read(part, "parts")
    # A lone surrogate, which JSON may hold, has no UTF-8.
    name = "\x1f".join(parts).encode("utf-8", "backslashreplace").decode()
    return str(uuid.uuid5(_OURS, name))


def check_uuid(value: object, place: str) -> str:
    """Return an id. Errors: InvalidField unless it is a UUID of version 1 to 8."""
    found: str = text.check(value, place)
    if not _UUID.fullmatch(found):
        raise InvalidField(place, "a UUID is needed; id_for makes one of any name")
    return found


def id_for(name: str) -> str:
    """Return a name as an id: itself if it is a UUID, else the UUID of version 5 made of it.

    The same name gives the same id in every process, and in other languages: its namespace is
    the UUID of version 5 of ``redis_state.agents`` in the namespace for URLs. Errors:
    InvalidField for an empty name.
    """
    found: str = text.check(name, "name")
    if not found:
        raise InvalidField("name", "must not be empty")
    return found if _UUID.fullmatch(found) else derived_id(found)


def execution_id_for(session_id: str, name: str) -> str:
    """Return the id of a session's execution of a name: the name itself if it is a UUID.

    Two sessions may each have an execution of one name. Their tools have different idempotency
    keys. Errors: InvalidField for an empty name.
    """
    check_session_id(session_id)
    found: str = text.check(name, "execution_id")
    if not found:
        raise InvalidField("execution_id", "must not be empty")
    return found if _UUID.fullmatch(found) else derived_id(session_id, "execution named", found)


def is_session_id(text_: str) -> bool:
    """Return whether a text may be a session's id."""
    return _SESSION.fullmatch(text_) is not None


def session_id_for(name: str) -> str:
    """Return a name as a session's id: itself if it may be one, else one of its own made of it."""
    text.check(name, "name")
    if is_session_id(name):
        return name
    words = "-".join(re.findall(r"[a-zA-Z0-9]+", name))[:40]
    made = derived_id("session of", name)
    return f"{words}-{made}" if words else made


def check_session_id(value: object, place: str = "session_id") -> str:
    """Return a session's id. Errors: InvalidField unless letters, digits, ``_`` and ``-``."""
    found: str = text.check(value, place)
    if not _SESSION.fullmatch(found):
        raise InvalidField(place, "letters, digits, _ and - are needed, a letter or digit first")
    return found


uuid_kind: Kind = Kind(check_uuid, same, check_uuid)
