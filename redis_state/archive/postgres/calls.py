"""Calls of the archive over few connections: each over one of its own, and with a deadline.

A connection that was lost, or that nobody knows the state of, is closed. The next call opens one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from pydantic import SecretStr

from redis_state.archive.protocol import CallTurns, has_answered, patience
from redis_state.errors import ArchiveUnavailable
from redis_state.postgres.connection import (
    NO_TABLES,
    PostgresConnection,
    close,
    connect,
    cut,
    is_deadlock,
    problem,
)
from redis_state.timeouts import timeout_at

T = TypeVar("T")

# The deadline of calls that may read or delete all that is kept.
LONG_S: Final = 1800.0
# Classes of errors: of data, of constraints, of limits of the program.
_REFUSED = ("22", "23", "54")
_NO_RIGHT = "42501"
_TRIES = 3
# No partition takes it: another process has dropped one, and the next try makes it again.
_NO_MONTH = "23514"


class NoMonthError(ArchiveUnavailable):
    """No partition takes a row."""


class _RolledBackError(ArchiveUnavailable):
    """The server has chosen this transaction to end a deadlock."""


class PostgresCalls:
    """The connections to one database, and whose turn it is. No I/O when it is made.

    ``failed`` is called when the server refuses a call: what is known of its tables may be wrong.
    """

    def __init__(self, url: SecretStr, *, timeout_s: float, failed: Callable[[], None]) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._failed = failed
        # Those that no call has, the last one that was used at the end.
        self._free: list[PostgresConnection] = []
        self._turns = CallTurns()

    @asynccontextmanager
    async def using(
        self, action: str, *, timeout_s: float | None = None, settled: bool = True
    ) -> AsyncGenerator[PostgresConnection]:
        """Return a connection; open one if none is free. Errors: ArchiveUnavailable."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        until = min(now + (timeout_s or self._timeout_s), patience.get())
        timeout_s = round(until - now, 1)
        late = False

        def end(connection: AsyncConnection[Any]) -> None:
            nonlocal late
            late = True
            cut(connection)

        try:
            async with timeout_at(until):
                await self._turns.acquire()
        except TimeoutError:
            raise ArchiveUnavailable(action, f"no answer in {timeout_s:g} s") from None
        connection: PostgresConnection | None = None
        try:
            try:
                async with timeout_at(until):
                    connection = await self._connected()
                timer = loop.call_at(until, end, connection)
                try:
                    async with connection.settled() if settled else nullcontext():
                        yield connection
                finally:
                    timer.cancel()
            except TimeoutError:
                await self._drop(connection)
                raise ArchiveUnavailable(action, f"no answer in {timeout_s:g} s") from None
            except psycopg.Error as error:
                if late:
                    await self._drop(connection, *self._free)
                    raise ArchiveUnavailable(action, f"no answer in {timeout_s:g} s") from None
                raise await self._failure(action, error, connection) from None
            except (ValueError, OverflowError) as error:
                # A time that no calendar has, for one. Its text may quote what was to be written.
                await self._drop(connection)
                # The server has answered: this call alone fails, and others are not kept from it.
                has_answered()
                raise ArchiveUnavailable(action, type(error).__name__, refused=True) from None
            except BaseException:
                # In the middle of a call: nobody knows what the connection would say next.
                await self._drop(connection)
                raise
            self._free.append(connection)
            has_answered()
        finally:
            self._turns.release()

    @asynccontextmanager
    async def using_long(self, action: str) -> AsyncGenerator[PostgresConnection]:
        """Return a connection for a call that may read or delete all, in one transaction.

        The server ends it at the same deadline, also if it does not see that nobody waits.
        """
        now = asyncio.get_running_loop().time
        until = min(now() + LONG_S, patience.get())
        async with (
            self.using(action, timeout_s=LONG_S, settled=False) as connection,
            connection.long(until - now()),
        ):
            yield connection

    async def _failure(
        self, action: str, error: psycopg.Error, connection: PostgresConnection | None
    ) -> ArchiveUnavailable:
        """Return what a call fails with that the server, or the connection, has ended."""
        # A partition that another process has dropped is made again.
        self._failed()
        state = error.sqlstate or ""
        refused = state.startswith(_REFUSED)
        rolled_back = is_deadlock(error)
        # Another server may be the right one by now: this one may only read, or go away.
        if not (refused or rolled_back) or not _is_idle(connection):
            await self._drop(connection, *self._free)
        elif connection is not None:
            self._free.append(connection)
        if rolled_back:
            return _RolledBackError(action, problem(error))
        kind = NoMonthError if state == _NO_MONTH else ArchiveUnavailable
        # Its text may quote what was to be written.
        return kind(action, _reason(error), refused=refused, denied=state == _NO_RIGHT)

    async def _connected(self) -> PostgresConnection:
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                return connection
        try:
            return await connect(self._url)
        except (OSError, ValueError) as error:
            # A host that is none, for one. Its text and its parts may quote the URL.
            raise ArchiveUnavailable("connect", type(error).__name__) from None

    async def aclose(self) -> None:
        """Disconnect, once the calls that run have ended."""
        async with self._turns.all():
            await self._drop(*self._free)

    async def _drop(self, *connections: PostgresConnection | None) -> None:
        self._free = [each for each in self._free if each not in connections]
        for connection in connections:
            if connection is not None:
                await close(connection)


def _is_idle(connection: PostgresConnection | None) -> bool:
    """Return whether the next call may use a connection: nothing is under way on it."""
    if connection is None or connection.closed:
        return False
    return connection.info.transaction_status is TransactionStatus.IDLE


async def although_in_a_deadlock(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that may be repeated, again if the server ends it for another one's sake."""
    for _ in range(_TRIES - 1):
        with suppress(_RolledBackError):
            return await call()
    return await call()


def _reason(error: psycopg.Error) -> str:
    known = "no worker has prepared it yet: " if error.sqlstate in NO_TABLES else ""
    return f"{known}{problem(error)}"
