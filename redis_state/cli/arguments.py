"""What commands make of their arguments, and who calls them."""

from __future__ import annotations

import getpass
import json
from typing import Any

from redis_state.errors import InvalidField


def json_of(option: str, text: str) -> Any:
    """Read an argument that is JSON. Errors: InvalidField."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidField(option, "is not JSON; a text needs quotes of its own") from None


def user_name() -> str:
    """Return the name of the user who calls."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "redis-state"
