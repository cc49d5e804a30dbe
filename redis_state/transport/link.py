"""One connection: made by a deadline, used by a reader and a writer, ended without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from redis.exceptions import RedisError, ResponseError

from redis_state.errors import BackendUnavailable
from redis_state.transport.address import Address, Wire
from redis_state.transport.failures import connect_error


async def open_link(locate: Callable[[], Awaitable[Address]], *, timeout_s: float) -> Wire:
    """Connect to a server that is ready to serve.

    Errors: BackendUnavailable; Rejected, if it would be in vain to try again; what ``locate``
    raises.
    """
    address = await locate()
    connection = address.connection(connect_timeout_s=timeout_s)
    failure: BackendUnavailable
    try:
        async with asyncio.timeout(timeout_s):
            await connection.connect()
            ping = connection.pack_command("PING")
            await connection.send_packed_command(ping, check_health=False)
            # A server that is loading its data answers here, before any call is at stake.
            # Any other refusal (a full disk, narrow rights) says nothing about the calls.
            with suppress(ResponseError):
                await connection.read_response()
    except (RedisError, OSError, TimeoutError) as error:
        failure = connect_error(error, str(address))
    except BaseException:
        await _disconnect(connection)
        raise
    else:
        return connection
    await _disconnect(connection)
    # Not from the cause: the frames of redis-py, which some tools print, hold the password.
    raise failure


def is_writable(connection: Wire) -> bool:
    """Tell whether writing is of use. Ask right before it, with no await in between.

    redis-py would connect anew by itself; and asyncio (3.12 and later) would watch the descriptor
    of a lost connection, which the next one may get.
    """
    writer = cast("asyncio.StreamWriter | None", getattr(connection, "_writer", None))
    return writer is not None and not writer.transport.is_closing()


async def use_link(connection: Wire, *jobs: Coroutine[Any, Any, None]) -> str:
    """Run the jobs until one of them ends, then disconnect. Return what broke the connection.

    Any other error of a job is raised.
    """
    # Taken now: redis-py forgets it when a read is cancelled, with asyncio still flushing. That
    # would keep the socket until a dead server reads.
    writer = cast("asyncio.StreamWriter", getattr(connection, "_writer", None))
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        writer.transport.abort()
        try:
            # Gathered, so that the error of each is looked at: both may have met the same end.
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await _disconnect(connection)
    errors = [error for error in ended if isinstance(error, Exception)]
    for error in errors:
        if not isinstance(error, RedisError | OSError):
            raise error
    return str(errors[0]) if errors else "the connection was given up"


async def _disconnect(connection: Wire) -> None:
    with suppress(RedisError, OSError, TimeoutError):
        await connection.disconnect(nowait=True)
