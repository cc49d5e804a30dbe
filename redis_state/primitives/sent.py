"""What a caller sent under a key of its own, by its digest: a repetition is the same once more.

The digest stands where the key is remembered, for as long as the key. A key that has none, because
it was remembered by an earlier release or chosen by us, counts as a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis_state.errors import KeyReused, PayloadUnreadable
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads

# What stands beside a key whose content is not compared.
UNNAMED = b"1"
# Signs of a digest, 60 bits of it: each call sends it, and only a caller's own calls are compared.
_LENGTH = 10


@dataclass(frozen=True, slots=True)
class SentContent:
    """What was sent. Only a sealed digest of it is kept if payloads are sealed: it could be guessed
    from the digest of a short one.
    """

    what: str
    digest: str
    payloads: Payloads
    key: str | None = None

    @classmethod
    def of(cls, payloads: Payloads, what: str, *content: Any, key: str | None = None) -> Self:
        """Make the digest of a content. ``what`` it is, and its ``key``, for the error."""
        return cls(what, _digest(content), payloads, key)

    @property
    def kept(self) -> bytes:
        """Write what stands beside the key."""
        return self.payloads.seal(self.digest.encode())

    def check_kept(self, kept: bytes) -> None:
        """Compare it with what stands beside the key. Errors: KeyReused.

        What this process cannot read counts as the same.
        """
        try:
            known = self.payloads.open(kept, of="a key", field="digest")
        except PayloadUnreadable:
            return
        if known not in (b"", UNNAMED, self.digest.encode()):
            raise KeyReused(self.what, key=self.key)

    def check_same(self, *content: Any) -> None:
        """Compare it with the content that was sent under the key. Errors: KeyReused."""
        if _digest(content) != self.digest:
            raise KeyReused(self.what, key=self.key)


def _digest(content: Sequence[Any]) -> str:
    return codec.fingerprint(*content)[:_LENGTH]
