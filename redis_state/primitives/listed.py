"""A thing, and the entry that finds it, in two slots: what a caller learns if one step fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from typing import TypeVar

from redis_state.errors import BackendError, NoConnection, OutcomeUnknown, StoreFull

T = TypeVar("T")


class behind_a_write:  # noqa: N801 - what it does to the block that is written behind it
    """Do what follows a write that has succeeded. Errors: OutcomeUnknown if the server is away.

    Its own error would say that the call did not happen. That holds while ``written`` is empty.
    """

    # A class, not a generator: every submit enters two of them.
    __slots__ = ("_address", "_written")

    def __init__(self, address: object, *, written: Sized | None = None) -> None:
        self._address = address
        self._written = written

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (NoConnection, StoreFull)):
            return
        if self._written is None or self._written:
            raise OutcomeUnknown(str(self._address), f"written, then: {error}") from error


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
