"""The answer to one question about one server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from redis_state.errors import BackendError, CommandRefused, NoConnection


class Verdict(StrEnum):
    """The kind of an answer."""

    SOUND = "sound"
    FINDING = "finding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about one server.

    ``says`` is what was found, ``means`` what follows from it, ``do`` what to do. The last two are
    empty for what is sound, and for what nobody can find out. ``examined`` of ``total`` are the
    keys that were looked through, where the question needs it; ``total`` is None where the server
    does not say it.
    """

    server: str
    question: str
    state: Verdict
    says: str
    means: str = ""
    do: str = ""
    examined: int | None = None
    total: int | None = None


Found = AsyncGenerator[Finding]
# Called with a server, how many of its keys were examined, and how many it has, if it says so.
ExamineProgress: TypeAlias = Callable[[str, int, int | None], None]


class NotReported(Exception):
    """A question without an answer."""


def lacks_a_right(error: Exception) -> bool:
    """Return whether the server refused a command because its user has no right to it."""
    return isinstance(error, CommandRefused) and "not permitted" in str(error)


async def answered(place: str, question: str, answers: Found) -> Found:
    """Yield answers as they come, then *unknown* if the server refuses what the next one needs.

    What was found before stands. Errors: NoConnection.
    """
    async with aclosing(answers):
        try:
            async for each in answers:
                yield each
        except NoConnection:
            raise
        except (BackendError, NotReported) as error:
            means, do = "", ""
            if lacks_a_right(error):
                means = "this user lacks a right, so this was not looked at"
                do = (
                    "ask once more with --url and a user who has it: the role admin of "
                    "`redis-state acl` has SCAN, and no role has CONFIG, as it shows passwords"
                )
            yield Finding(place, question, Verdict.UNKNOWN, str(error), means, do)
