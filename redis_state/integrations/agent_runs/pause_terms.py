"""The terms of pauses that an adapter opens, checked where they are given."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from inspect import isawaitable
from typing import Any, cast

from redis_state.errors import InvalidField
from redis_state.worker.tasks.waitpoints.pause_model import check_pause_options


async def awaited(value: Any) -> Any:
    """Return what a function of the user's has returned, which may be async."""
    return await value if isawaitable(value) else value


def check_pause_terms(field: str, terms: object, *, own: AbstractSet[str]) -> None:
    """Refuse terms that no pause can have, before a task has effects that a pause follows.

    ``own`` are the options that the adapter gives itself. A function's terms are checked when it
    has returned them. Errors: InvalidField.
    """
    if terms is None or callable(terms):
        return
    if not isinstance(terms, Mapping):
        raise InvalidField(
            field, f"options of a pause, or a function, are needed, not {type(terms).__name__}"
        )
    options = cast("Mapping[str, Any]", terms)
    if given := own & options.keys():
        raise InvalidField(field, f"{min(given)!r} is the pause's own")
    check_pause_options(field, options)
