"""A thing, and the entry that finds it, in two slots: what a caller learns if one step fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sized
from contextlib import contextmanager, suppress
from typing import TypeVar

from redis_state.errors import BackendError, NoConnection, OutcomeUnknown, StoreFull

T = TypeVar("T")


@contextmanager
def behind_a_write(address: object, *, written: Sized | None = None) -> Generator[None]:
    """Do what follows a write that has succeeded. Errors: OutcomeUnknown if the server is away.

    Its own error would say that the call did not happen. That holds while ``written`` is empty.
    """
    try:
        yield
    except (NoConnection, StoreFull) as error:
        if written is not None and not written:
            raise
        raise OutcomeUnknown(str(address), f"written, then: {error}") from error


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
    with behind_a_write(address):
        await list_again()
    return done
