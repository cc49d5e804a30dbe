"""Links for outsiders: each decides one pause, until it expires. Made by the user's own backend.

links = HookLinks(secret)
url = "https://agents.example.com/v1/hooks/" + links.mint(pause_id, actor="ann@example.com")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from redis_state.errors import InvalidField
from redis_state.gateway.auth.jwt import SecretKeys, Secrets, read_token
from redis_state.gateway.auth.principal import Principal, Unauthenticated
from redis_state.models.tasks import new_id
from redis_state.transport.keys import is_pause_id

FixedDecision = Literal["approve", "reject"]

LIFETIME = timedelta(days=7)
_LONGEST = timedelta(days=90)
_AUDIENCE = "redis-state/hook"
_DECISIONS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class HookLink:
    """What a link allows: to decide one pause, as ``actor``, perhaps in one way only."""

    pause_id: str
    actor: str
    link_id: str = field(repr=False)
    decision: FixedDecision | None


class HookLinks:
    """Mints links, and reads them. ``keys`` as those of `BrowserTokens`."""

    def __init__(self, keys: SecretKeys, *, audience: str = "") -> None:
        self._keys = Secrets(keys)
        self._audience = f"{_AUDIENCE}/{audience}" if audience else _AUDIENCE

    def mint(
        self,
        pause_id: str,
        *,
        actor: str,
        decision: FixedDecision | None = None,
        ttl: timedelta = LIFETIME,
    ) -> str:
        """Make the last part of a link's URL. Who has it decides as ``actor``.

        ``pause_id`` is `Pause.pause_id`, also that of a pause that was not revealed. The text needs
        no escapes in a URL. Errors: InvalidField.
        """
        if not is_pause_id(pause_id):
            raise InvalidField("pause_id", "is no pause's id: a token must not be in a link")
        if decision not in (None, *_DECISIONS):
            raise InvalidField("decision", "is approve, reject or None")
        given = cast("Any", ttl)
        if not isinstance(given, timedelta) or not timedelta(seconds=1) <= given <= _LONGEST:
            raise InvalidField("ttl", f"must be a timedelta from a second to {_LONGEST}")
        now = datetime.now(UTC)
        return self._keys.sign(
            {
                "sub": Principal(actor).subject,
                "pause": pause_id,
                "decision": decision,
                "aud": self._audience,
                "iat": now,
                "exp": now + ttl,
                "jti": new_id(),
            }
        )

    async def read(self, link: str) -> HookLink:
        """Read the last part of a link's URL. Errors: Unauthenticated."""
        if not link.isascii():
            raise Unauthenticated("the link cannot be read")
        needed = ("sub", "pause", "jti")
        claims = await read_token(link, self._keys, audience=self._audience, needed=needed)
        return HookLink(
            pause_id=str(claims["pause"]),
            actor=str(claims["sub"]),
            link_id=str(claims["jti"]),
            decision=claims.get("decision"),
        )
