"""Principals and their scopes: a right, and over what. Without I/O.

    read:session:s-1     read that session: its tasks, updates and pauses
    resolve:tag:finance  see and decide the pauses that have this tag, in any session
    write:stream:chats/* write all durable streams whose path begins with chats/
    admin:*              everything

There is no default scope. ``admin`` includes the other rights over the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, cast

from starlette.requests import HTTPConnection

from redis_state.errors import InvalidField
from redis_state.models.streams import check_path

MOST_SCOPES = 100
_LONGEST_SUBJECT = 200
_LONGEST_SCOPE = 1_000
EVERYTHING = "*"
_STREAM, _BELOW = "stream:", "/*"


class Right(StrEnum):
    """What a scope allows."""

    READ = "read"
    STEER = "steer"
    RESOLVE = "resolve"
    SUBMIT = "submit"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class AccessScope:
    """A right over ``*``, ``session:<id>``, ``tag:<tag>`` or ``stream:<path>``.

    A path that ends with ``/*`` stands for all below it.
    """

    right: Right
    over: str

    @classmethod
    def read(cls, text: Any) -> AccessScope:
        """Read a scope as it is written: ``read:session:s-1``. Errors: InvalidField."""
        if not isinstance(text, str) or len(text) > _LONGEST_SCOPE:
            raise InvalidField("scopes", "a text such as read:session:<id> is needed")
        right, _, over = text.partition(":")
        kind, colon, _ = over.partition(":")
        known = over == EVERYTHING or (colon and kind in ("session", "tag", "stream"))
        if right not in tuple(Right) or not known:
            rights = ", ".join(Right)
            raise InvalidField(
                "scopes",
                f"one of {rights} is needed, over *, session:<id>, tag:<tag> or stream:<path>",
            )
        if kind == "stream":
            _check_stream(over)
        return cls(Right(right), over)

    def __str__(self) -> str:
        return f"{self.right.value}:{self.over}"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. ``subject`` is the actor of what the caller does.

    ``scopes`` may be texts. ``expires_at`` ends the caller's streams. Errors: InvalidField.
    """

    subject: str
    scopes: frozenset[AccessScope] = frozenset()
    expires_at: datetime | None = None
    _of: dict[Right, frozenset[str]] = field(
        default_factory=dict[Right, frozenset[str]], repr=False, compare=False, init=False
    )

    def __post_init__(self) -> None:
        """Read the scopes, and refuse what cannot be."""
        if not isinstance(cast("Any", self.subject), str):
            raise InvalidField("subject", "text is needed")
        if not 0 < len(self.subject) <= _LONGEST_SUBJECT:
            raise InvalidField("subject", f"needs 1 to {_LONGEST_SUBJECT} characters")
        scopes = read_scopes(self.scopes)
        object.__setattr__(self, "scopes", scopes)
        for right in Right:
            over = (each.over for each in scopes if each.right in (right, Right.ADMIN))
            self._of[right] = frozenset(over)

    def everywhere(self, right: Right) -> bool:
        """Return whether the caller has a right over everything."""
        return EVERYTHING in self._of[right]

    def may(self, right: Right, session_id: str) -> bool:
        """Return whether the caller has a right over a session."""
        return self.everywhere(right) or f"session:{session_id}" in self._of[right]

    def may_decide(self, right: Right, session_id: str, tags: Iterable[str]) -> bool:
        """Return whether the caller has a right over a pause: by its session or by a tag."""
        return self.may(right, session_id) or any(f"tag:{tag}" in self._of[right] for tag in tags)

    def sees_pause(self, session_id: str, tags: Collection[str]) -> bool:
        """Return whether the caller may see a pause: who decides it sees it."""
        return any(
            self.may_decide(right, session_id, tags) for right in (Right.READ, Right.RESOLVE)
        )

    def may_stream(self, right: Right, path: str) -> bool:
        """Return whether the caller has a right over a durable stream: by its path, or above."""
        if self.everywhere(right) or f"{_STREAM}{path}" in self._of[right]:
            return True
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return any(f"{_STREAM}{each}{_BELOW}" in self._of[right] for each in above)

    def named(self, kind: str, *rights: Right) -> list[str]:
        """List the sessions or tags over which the caller has one of the rights."""
        prefix = f"{kind}:"
        found = {over for right in rights for over in self._of[right] if over.startswith(prefix)}
        return sorted(over.removeprefix(prefix) for over in found)

    def has_any(self, *rights: Right) -> bool:
        """Return whether the caller has one of the rights over any tasks or pauses.

        A right over a durable stream is over none of them.
        """
        return any(not over.startswith(_STREAM) for right in rights for over in self._of[right])

    def expired(self) -> bool:
        """Return whether the caller's token has expired."""
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


class Unauthenticated(Exception):
    """The caller's credentials cannot be used, for ``reason``: no part of them is in it.

    ``passing``: nothing is known of them now. A gateway answers 503, and the caller tries again.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passing = passing


class Authenticator(Protocol):
    """Finds who calls.

    Returns None for a request without credentials of its kind. Errors: Unauthenticated for
    credentials that it knows and refuses, such as expired ones.
    """

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the caller, or None."""
        ...


def _check_stream(over: str) -> None:
    try:
        check_path(over.removeprefix(_STREAM).removesuffix(_BELOW))
    except InvalidField as error:
        raise InvalidField("scopes", f"stream: {error}") from None


def read_scopes(given: Any) -> frozenset[AccessScope]:
    """Read scopes, or their texts. Errors: InvalidField."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidField("scopes", "a list of scopes is needed")
    listed = list(cast("Any", given))
    if len(listed) > MOST_SCOPES:
        raise InvalidField("scopes", f"must be at most {MOST_SCOPES}")
    return frozenset(
        each if isinstance(each, AccessScope) else AccessScope.read(each) for each in listed
    )


def bearer(connection: HTTPConnection) -> str | None:
    """Return the token of the header ``Authorization: Bearer``, or None."""
    kind, _, token = connection.headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if kind.lower() == "bearer" and token and token.isascii() else None
