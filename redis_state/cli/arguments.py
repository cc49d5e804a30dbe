"""What commands make of their arguments, and who calls them."""

from __future__ import annotations

import getpass
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

from redis_state.errors import InvalidField


def json_of(option: str, text: str) -> Any:
    """Read an argument that is JSON. Errors: InvalidField."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidField(option, "is not JSON; a text needs quotes of its own") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def length_of(option: str, text: str) -> timedelta:
    """Read an argument that is a length of time. Errors: InvalidField."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise InvalidField(option, "a length is needed, such as 90s, 15m, 6h or 1d")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def moment_of(option: str, text: str) -> datetime:
    """Read an argument that is a moment, in UTC if it does not say. Errors: InvalidField."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidField(option, "a time is needed, such as 2026-11-24T09:00+01:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def user_name() -> str:
    """Return the name of the user who calls."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "redis-state"
