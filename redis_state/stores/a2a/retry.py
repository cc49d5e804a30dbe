"""Repeat the calls of a run under their own id while the server is silent.

A call has one deadline. A healthy run must not fail because the server was silent for a little
longer. So its writes are repeated under the same id until the run's lease expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis_state.errors import BackendError, NoConnection, OutcomeUnknown, StoreFull
from redis_state.transport.transport import Transport

T = TypeVar("T")

_PAUSES = 30


async def repeated(call: Callable[[], Awaitable[T]], transport: Transport, within_s: float) -> T:
    """Make a call, and again for ``within_s`` while the server is away, refuses us or is full.

    ``call`` makes the same call each time: under one id, so that it happens once. The last try
    begins within the time and has a deadline of its own. Errors: those of the last try, but
    OutcomeUnknown if an earlier one may have happened. A closed store is not tried again.
    """
    now = asyncio.get_running_loop().time
    give_up_at = now() + within_s
    unknown: OutcomeUnknown | None = None
    while True:
        try:
            return await call()
        except (NoConnection, StoreFull) as error:
            if isinstance(error, OutcomeUnknown):
                unknown = error
            if transport.closed or now() + within_s / _PAUSES >= give_up_at:
                raise unknown or error from None
        except BackendError as error:
            raise unknown or error from None
        await asyncio.sleep(within_s / _PAUSES)
