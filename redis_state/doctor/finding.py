"""The answer to one question about one server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The kind of an answer."""

    SOUND = "sound"
    FINDING = "finding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about one server.

    ``says`` is what was found, ``means`` what follows from it, ``do`` what to do. The last two are
    empty for what is sound.
    """

    server: str
    question: str
    state: Verdict
    says: str
    means: str = ""
    do: str = ""


Found = AsyncGenerator[Finding]
