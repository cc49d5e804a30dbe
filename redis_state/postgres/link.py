"""A connection to PostgreSQL for one event loop: deadlines, repetition, and errors of our own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from pydantic import SecretStr

from redis_state.backoff import Backoff
from redis_state.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
    OutcomeUnknown,
    StoreFull,
)
from redis_state.futures import unawaited
from redis_state.postgres.connection import (
    FINAL,
    LOGIN,
    NO_TABLES,
    PostgresConnection,
    close,
    connect,
    cut,
    is_deadlock,
    known_text,
    problem,
)
from redis_state.postgres.migrations import applied_version, apply_migrations
from redis_state.timeouts import timeout, timeout_at

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

# So long a call waits for a connection that says nothing, as a part of its deadline.
_SILENT_PART = 2
_AGAIN_S = Backoff(0.05, 1.0)
# An index of a large table takes its time.
_MAKING_S = 3600.0
# Classes of errors after which the same call may succeed: lost connections, deadlocks, servers that
# start, end, or are replicas.
_PASSING = ("08", "40", "57", "53", "25006", "55P03", "XX")
_FULL = "53100"
_NO_RIGHT = "42501"


class PostgresLink:
    """One connection, opened at the first call, and again when it is lost.

    Each call is repeated until its deadline, so it must be one that may be. Calls wait for each
    other. ``address`` is what errors show. The tables are made at the first connection, and
    by a task of their own: what takes longer than a call must not begin again at each.
    """

    def __init__(
        self,
        url: SecretStr,
        *,
        address: str,
        schema: str,
        migrations: Sequence[str],
        call_timeout_s: float,
    ) -> None:
        self.address: str = address
        self._url = url
        self._schema = schema
        self._migrations = migrations
        self._timeout_s = call_timeout_s
        self._connection: PostgresConnection | None = None
        self._lock = asyncio.Lock()
        self._making: asyncio.Task[None] | None = None
        self._closed = False

    async def prepare(self) -> None:
        """Make the tables unless they are there, however long that takes. Errors: as `run`."""
        while True:
            try:
                return await self.run(_nothing)
            except BackendUnavailable:
                if (making := self._made_now()) is None:
                    raise
                await asyncio.wait({making})
                self._raise_refusal(making)

    async def run(
        self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], *, writes: bool = False
    ) -> T:
        """Do some work on the connection, and return what that returns.

        Errors: BackendUnavailable if it did not happen by the deadline; OutcomeUnknown if it
        ``writes`` and may have happened; AuthenticationFailed; StoreFull; CommandRefused;
        ConfigError if the user lacks a right.
        """
        ends = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with timeout_at(ends):
                await self._lock.acquire()
        except TimeoutError:
            raise BackendUnavailable(self.address, "other calls are waiting for it") from None
        try:
            return await self._repeated(work, ends, writes=writes)
        finally:
            self._lock.release()

    async def _repeated(
        self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], ends: float, *, writes: bool
    ) -> T:
        loop = asyncio.get_running_loop()
        reason, sent = f"no answer in {self._timeout_s:g} s", False
        for pause_s in _AGAIN_S.delays():
            left = ends - loop.time()
            if self._closed or left <= 0:
                break
            opened, earlier = None, sent and writes
            try:
                opened = await self._connected(left)
                sent = True
                return await self._bounded(_settled(opened, work), left / _SILENT_PART, opened)
            except TimeoutError:
                making = self._made_now() is not None
                reason = "its tables are being made" if making else reason
                await self._drop()
            except psycopg.Error as error:
                reason = self._judge_after(error, is_new=opened is None, earlier=earlier)
                if not is_deadlock(error):
                    await self._drop()
            except (OSError, ValueError) as error:
                # A host that is none, for one. Its text and its parts may quote the URL.
                reason = type(error).__name__
                await self._drop()
            except BaseException:
                # In the middle of a call: nobody knows what the connection would say next.
                await self._drop()
                raise
            await asyncio.sleep(min(pause_s, max(ends - loop.time(), 0)))
        if self._closed:
            reason = "the store is closed"
        kind = OutcomeUnknown if sent and writes else BackendUnavailable
        raise kind(self.address, reason)

    def _judge_after(self, error: psycopg.Error, *, is_new: bool, earlier: bool) -> str:
        """Do as `_judge`. ``earlier``: a try before this one may have done it."""
        try:
            return self._judge(error, is_new=is_new)
        except (NoConnection, StoreFull) as refusal:
            if not earlier:
                raise
            # It says that nothing was done, which is true of the last try alone.
            kind = type(refusal).__name__
        raise OutcomeUnknown(self.address, f"{kind} after a try without an answer")

    def _judge(self, error: psycopg.Error, *, is_new: bool) -> str:
        """Return why a call is repeated. Errors: those of `run` if it is of no use."""
        state = error.sqlstate or ""
        if state == _NO_RIGHT:
            raise ConfigError(
                f"{self.address}: the user lacks a right on the schema {self._schema}: "
                f"{problem(error)}"
            ) from None
        if is_new or not state:
            known = known_text(error)
            if known in LOGIN:
                raise AuthenticationFailed(self.address, known) from None
            if known in FINAL:
                raise BackendUnavailable(self.address, known, final=True) from None
            return known or problem(error)
        if state == _FULL:
            raise StoreFull(f"{self.address}: the disk is full") from None
        if state in NO_TABLES or state.startswith(_PASSING):
            return problem(error)
        # Its text may quote what was to be written.
        raise CommandRefused(f"{self.address}: {problem(error)}") from None

    async def _connected(self, left: float) -> PostgresConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        async with timeout(left):
            opened = await connect(self._url)
        self._connection = opened
        if not await self._bounded(_settled(opened, self._is_prepared), left, opened):
            await self._wait_for_tables(left)
        return opened

    async def _is_prepared(self, opened: AsyncConnection[Any]) -> bool:
        encoding = opened.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise CommandRefused(f"{self.address}: the encoding is {encoding}, and must be UTF8")
        return await applied_version(opened, self._schema) >= len(self._migrations)

    def _made_now(self) -> asyncio.Task[None] | None:
        """Return the task that makes the tables, if one does."""
        return None if self._making is None or self._making.done() else self._making

    async def _wait_for_tables(self, left: float) -> None:
        """Wait for the tables. They are made to the end, also if this call cannot wait for so long.

        Errors: TimeoutError; those of who makes them.
        """
        making = self._made_now()
        if making is None:
            if self._closed:
                raise TimeoutError
            making = self._making = asyncio.create_task(self._make_tables())
            unawaited(making)
        await asyncio.wait({making}, timeout=left)
        if not making.done() or making.cancelled():
            raise TimeoutError
        making.result()

    def _raise_refusal(self, making: asyncio.Task[None]) -> None:
        """Raise why the tables cannot be made, if another try is of no use."""
        error = None if making.cancelled() else making.exception()
        if isinstance(error, psycopg.Error):
            reason = self._judge(error, is_new=False)
            log.warning("%s: its tables are not made yet: %s", self.address, reason)

    async def _make_tables(self) -> None:
        async def make(opened: AsyncConnection[Any]) -> None:
            await apply_migrations(opened, self._schema, self._migrations)

        async with timeout(self._timeout_s):
            opened = await connect(self._url)
        try:
            await self._bounded(_settled(opened, make), _MAKING_S, opened)
        finally:
            await close(opened)

    async def _bounded(
        self, work: Awaitable[T], within_s: float, opened: AsyncConnection[Any]
    ) -> T:
        """Wait for some work. Errors: TimeoutError, with the connection cut."""
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({doing}, timeout=within_s)
            if not doing.done():
                raise TimeoutError
            return doing.result()
        finally:
            if not doing.done():
                # psycopg would first ask the server to end the call, and wait for that.
                cut(opened)
                await asyncio.wait({doing}, timeout=1.0)
                doing.cancel()
                unawaited(doing)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close(connection)

    async def aclose(self) -> None:
        """Disconnect; later calls are refused. Safe to repeat."""
        self._closed = True
        if (making := self._made_now()) is not None:
            making.cancel()
            await asyncio.wait({making})
        if self._connection is not None and self._lock.locked():
            cut(self._connection)
        async with self._lock:
            await self._drop()


async def _settled(
    connection: PostgresConnection, work: Callable[[AsyncConnection[Any]], Awaitable[T]]
) -> T:
    async with connection.settled():
        return await work(connection)


async def _nothing(connection: AsyncConnection[Any]) -> None:
    del connection
