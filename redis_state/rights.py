"""The rights that processes need of a server, as ``ACL SETUSER`` takes them.

What the scripts call is read off the scripts, so it cannot be out of date. Each user has the keys
and the channels of one namespace, and no other. Without a user of its own a namespace separates
names, not tenants.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from redis_state.errors import ConfigError
from redis_state.scripts.loader import SCRIPTS
from redis_state.settings import Settings
from redis_state.transport.commands import COMMANDS, READING
from redis_state.transport.keys import Keys
from redis_state.transport.sending.guarantee import Guarantee

_PLAIN = re.compile(r"[\w.:@/-]+", re.ASCII)
# A word that follows it is a command of the container: `XINFO STREAM`.
_CALLED = re.compile(r"redis\.p?call\(\s*'(\w+)'(?:,\s*'([A-Z]+)')?")

# What a connection needs, whatever it is for; INFO is for `health`.
_CONNECT = ("AUTH", "HELLO", "SELECT", "PING", "TIME", "INFO")
_SCRIPTS = ("EVAL", "EVALSHA")
_LISTEN = ("SSUBSCRIBE", "SUNSUBSCRIBE")
# `run_once` runs what its caller names.
_RUN_ONCE = ("DEL", "UNLINK", "HDEL", "ZREM")
_SCAN = ("SCAN", "UNLINK", "PTTL")
_CLUSTER = ("CLUSTER|SLOTS", "ASKING")


class Role(StrEnum):
    """What a user is for.

    An ``app`` has stores and clients, a ``worker`` handlers: both have all rights but one. An
    ``admin`` may also list all keys: to erase, to move or to delete a namespace, and what is in it.
    A ``watcher`` reads and watches.
    """

    APP = "app"
    WORKER = "worker"
    WATCHER = "watcher"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class UserRule:
    """A user of a namespace: its commands, its keys and its channels."""

    user: str
    commands: tuple[str, ...]
    keys: tuple[str, ...]
    channels: tuple[str, ...]

    def words(self) -> list[str]:
        """Return the words behind ``ACL SETUSER``, without a password."""
        return [
            self.user,
            "on",
            *(f"~{pattern}" for pattern in self.keys),
            "resetchannels",
            *(f"&{pattern}" for pattern in self.channels),
            "-@all",
            *(f"+{name.lower()}" for name in self.commands),
        ]

    def __str__(self) -> str:
        return "ACL SETUSER " + " ".join(self.words())


def commands_of(
    role: Role, settings: Settings | None = None, *, cluster: bool = False
) -> list[str]:
    """List the commands that a role needs on one server, or on each node of a cluster, sorted.

    The settings say which guarantee is wanted, which takes commands too.
    """
    guarantee = None if settings is None else Guarantee.of(settings)
    called = {
        "|".join(filter(None, words))
        for each in SCRIPTS.values()
        for words in _CALLED.findall(each.text)
    }
    needed = called | set(COMMANDS) - {"SCAN"} | set(_RUN_ONCE)
    if role is Role.WATCHER:
        # A lifetime that a reader may not renew is left as it is.
        needed &= READING
    if role is Role.ADMIN:
        needed |= set(_SCAN)
    if guarantee is not None:
        needed |= set(guarantee.commands)
    if cluster:
        # Who walks through all keys must notice when slots move meanwhile.
        needed |= {*_CLUSTER, *(("CLUSTER|NODES",) if role is Role.ADMIN else ())}
    return sorted(needed | set(_CONNECT) | set(_SCRIPTS) | set(_LISTEN))


def keys_of(role: Role, namespace: str) -> tuple[str, ...]:
    """List the patterns of the keys that a role needs: those of the namespace and of its queue."""
    own = f"{namespace}:*"
    return (own,) if role is Role.WATCHER else (own, f"arq:*:{Keys(namespace).jobs_tag}/*")


def user_rule(
    settings: Settings,
    role: Role,
    *,
    user: str | None = None,
    cluster: bool = False,
) -> UserRule:
    """Return the user that processes of a role need for the settings' namespace.

    Errors: ConfigError for a name that would reach beyond the namespace, or that a server cannot
    take.
    """
    namespace = settings.namespace
    user = user or f"{namespace}-{role.value}"
    for what, name in (("namespace", namespace), ("user", user)):
        # A wildcard would reach beyond it, a space would begin another word of the rule.
        if not _PLAIN.fullmatch(name):
            raise ConfigError(f"the {what} {name!r} has characters that a rule cannot have")
    commands = tuple(commands_of(role, settings, cluster=cluster))
    return UserRule(user, commands, keys_of(role, namespace), (f"{namespace}:*",))
