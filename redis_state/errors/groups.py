"""Errors in groups: what `asyncio.TaskGroup` raises for the errors of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

E = TypeVar("E", bound=BaseException)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group and of the groups in it; an error that is no group itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


def found_in(error: BaseException, *kinds: type[E]) -> E | None:
    """Return the first error of these kinds that an error is, or has in it; None without one."""
    return next((each for each in leaves(error) if isinstance(each, kinds)), None)
