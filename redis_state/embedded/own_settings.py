"""What settings say of other servers and places: a server of one's own does without it.

A shell may have the variables of production. A trial must not take the jobs of its queue, and put
nothing into its archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic_settings import BaseSettings

# About the server that REDIS_STATE_URL names, or that stands beside it.
OF_SERVERS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("queue_url", "credentials", "password_file", "guarantee_replicas")),
    "guarantee": "fast",
    "durable_trusted": False,
}
# Where data is beside the server.
OF_PLACES: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("archive_url", "archive_store", "durable_events"),
        *("claim_check_bytes", "claim_check_url", "claim_check_store"),
    )
)
ALONE: Final[Mapping[str, Any]] = {**OF_SERVERS, **OF_PLACES}


def arguments_of(given: BaseSettings) -> dict[str, Any]:
    """Return the settings that a program has chosen: what the environment says is none of them."""
    chosen = {name: getattr(given, name) for name in given.model_fields_set}
    try:
        said = type(given)()
    except ValueError:  # an argument stands in the place of a variable that cannot be used
        return {
            each: value for each, value in chosen.items() if not variables_of([each], os.environ)
        }
    return {
        name: value
        for name, value in chosen.items()
        if name not in said.model_fields_set or getattr(said, name) != value
    }


def variables_of(settings: Iterable[str], environment: Iterable[str]) -> list[str]:
    """List the variables that set one of these, in whatever case they are written."""
    wanted = {f"REDIS_STATE_{name}".upper() for name in settings}
    return [name for name in environment if name.upper() in wanted]
