"""A thing, and the entry that finds it, in two slots: what a caller learns if one step fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from redis_state.errors import BackendError, NoConnection, OutcomeUnknown, StoreFull

T = TypeVar("T")


async def write_listed(
    write: Callable[[], Awaitable[T]],
    list_again: Callable[[], Awaitable[object]],
    *,
    doubts: tuple[type[BaseException], ...] = (BaseException,),
    address: object,
) -> T:
    """Write a thing that is listed, and list it again; return what the write does.

    Behind one of the ``doubts`` it may be written all the same. Errors: those of the write,
    whatever becomes of the entry; OutcomeUnknown if it is written, and cannot be listed now.
    """
    try:
        done = await write()
    except doubts:
        with suppress(BackendError):
            await list_again()
        raise
    try:
        await list_again()
    except (NoConnection, StoreFull) as error:
        raise OutcomeUnknown(str(address), f"written, and perhaps not listed: {error}") from error
    return done
