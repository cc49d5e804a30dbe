"""What a thread's parts are called: checkpoints, values of channels, writes of tasks.

A *place* is a checkpoint's namespace and id, ``<namespace>:<id>``. The namespace is escaped, so it
has no colon, and no two namespaces are the same text. Ids are compared as they are: their order is
that of the checkpoints.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from redis_state.errors import CorruptState, InvalidField
from redis_state.scripts import GraphKeys
from redis_state.transport.key_text import escape, unescape
from redis_state.transport.keys import Keys

# What orders as text orders as bytes, and separates from what stands behind it.
_ID = re.compile(r"[!-~]{1,200}")

Configurable = Mapping[str, Any]


class Target(NamedTuple):
    """What a config names. An absent namespace is "", where the caller makes no difference."""

    thread_id: str
    namespace: str | None
    checkpoint_id: str | None

    @property
    def scope(self) -> str:
        """Return the namespace as the places in it begin, with its colon."""
        return scope_of(self.namespace or "")

    @property
    def place(self) -> bytes:
        """Return the place of the checkpoint; of the newest in its namespace without an id."""
        return (self.scope + (self.checkpoint_id or "")).encode()


def keys_of(keys: Keys, thread_id: str) -> GraphKeys:
    """Return a thread's keys."""
    return GraphKeys(
        keys.graph_thread(thread_id), keys.graph_order(thread_id), keys.graph_puts(thread_id)
    )


def target_of(config: Mapping[str, Any] | None) -> Target:
    """Read which thread, namespace and checkpoint a config names. Errors: InvalidField."""
    found = _configurable(config)
    if "thread_id" not in found:
        raise InvalidField("configurable.thread_id", "is missing")
    namespace = found.get("checkpoint_ns")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidField("configurable.checkpoint_ns", "text is needed")
    # An empty id stands for none, as in LangGraph.
    given = found.get("checkpoint_id") or None
    id_ = None if given is None else checked_id("configurable.checkpoint_id", given)
    return Target(thread_of(found["thread_id"]), namespace, id_)


def thread_of(value: object, field: str = "configurable.thread_id") -> str:
    """Read a thread's id. Numbers and UUIDs are taken as their text. Errors: InvalidField."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, uuid.UUID)) and not isinstance(value, bool):
        return str(value)
    raise InvalidField(field, f"text is needed, not {type(value).__name__}")


def checked_id(field: str, value: object) -> str:
    """Check a checkpoint's id. Errors: InvalidField."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise InvalidField(field, "1 to 200 characters of ASCII without spaces are needed")


def scope_of(namespace: str) -> str:
    """Write a namespace as the places in it begin."""
    return f"{escape('checkpoint_ns', namespace)}:"


def is_whole(namespace: str) -> bool:
    """Return whether a namespace can be read from its places: not if it is too long."""
    return not scope_of(namespace).startswith("%~")


def split_place(place: bytes) -> tuple[str, str]:
    """Return the scope and the checkpoint's id of a place."""
    scope, _, id_ = place.decode().partition(":")
    return f"{scope}:", id_


def namespace_in(scope: str) -> str:
    """Read the namespace of a scope that is whole."""
    return unescape(scope[:-1])


def value_name(channel: str, version: object) -> str:
    """Write which value of a channel this is, so that a reader gets the version back as it was.

    Errors: InvalidField.
    """
    try:
        channel.encode()
    except UnicodeEncodeError:
        raise InvalidField(
            "channel_versions", "names of channels have no lone surrogates"
        ) from None
    if isinstance(version, str):
        return f"s{_written(version)} {channel}"
    if isinstance(version, bool) or not isinstance(version, (int, float)):
        raise InvalidField(f"channel_versions.{channel}", "a number or text is needed")
    return f"{'i' if isinstance(version, int) else 'f'}{version!r} {channel}"


def read_value_name(name: str) -> tuple[str, str | int | float]:
    """Read a channel and a version. Errors: CorruptState."""
    version, _, channel = name.partition(" ")
    try:
        match version[:1]:
            case "i":
                return channel, int(version[1:])
            case "f":
                return channel, float(version[1:])
            case "s":
                return channel, unescape(version[1:])
            case _:
                pass
    except ValueError:
        pass
    raise CorruptState("thread", "a channel's version cannot be read")


def _written(version: str) -> str:
    written = escape("channel_versions", version)
    if written.startswith("%~"):
        raise InvalidField("channel_versions", "a version is too long")
    return written


def _configurable(config: Mapping[str, Any] | None) -> Configurable:
    found = (config or {}).get("configurable")
    if not isinstance(found, Mapping):
        raise InvalidField("configurable", "a mapping is needed")
    return found  # pyright: ignore[reportUnknownVariableType]
