"""What can be chosen about the console."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from redis_state.errors import InvalidField

_LONGEST = timedelta(hours=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """How people log in to the console.

    ``secret`` signs the cookies: 32 bytes or more, or several by ``kid``, or a file, as in
    `BrowserTokens`. All processes behind one address need the same. Without it each process makes
    one, and a restart logs everybody out. ``session`` is how long a login lasts, at most 12 hours,
    and never longer than the credential. ``login_by_url`` accepts the credential as ``?token=``,
    for development: a URL stays in histories and logs. ``banner`` returns what every page shows on
    top, or None.

    Errors: InvalidField.
    """

    secret: dict[str, str] | str | Path | None = field(default=None, repr=False)
    session: timedelta = timedelta(hours=8)
    login_by_url: bool = False
    banner: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        session = cast("Any", self.session)
        if not isinstance(session, timedelta) or not timedelta(seconds=1) <= session <= _LONGEST:
            raise InvalidField("session", f"must be a timedelta from a second to {_LONGEST}")
