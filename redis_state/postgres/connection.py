"""One connection to PostgreSQL, set up for us."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

# Our settings, for a connection or for a transaction. A commit must be on the disk; what asks for
# more than that stays. A call whose connection was cut ends soon, and gives its locks back, where
# the server can look for its client: PostgreSQL 14 on Linux. One statement: over a pooler each
# transaction begins with it.
_SETTINGS: Final[LiteralString] = """
SELECT set_config('TimeZone', 'UTC', {local}), set_config('client_encoding', 'UTF8', {local}),
    set_config('statement_timeout', '60s', {local}), set_config('lock_timeout', '20s', {local}),
    set_config('idle_in_transaction_session_timeout', '60s', {local}),
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit')
        IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, {local}),
    CASE WHEN strpos(version(), 'linux') > 0
        AND current_setting('client_connection_check_interval', true) = '0'
        THEN set_config('client_connection_check_interval', '10s', {local}) END
"""
_PATIENT: Final[LiteralString] = "SELECT set_config('statement_timeout', %s, true)"
# A server whose machine has gone is found by these, whatever the deadline of a call is.
_ALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
# What a server says of a login, what else is final, and what may pass. The rest of the text of an
# error may quote the URL.
LOGIN: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
FINAL: Final = ("certificate verify failed", "does not match host name", "does not support SSL")
_PASSING: Final = (
    *("Connection refused", "timeout expired", "starting up", "shutting down", "too many"),
)
# States of errors: the schema or a table is not there.
NO_TABLES: Final = frozenset({"3F000", "42P01"})
_OF_A_CONNECTION: Final = _SETTINGS.format(local="false")
_OF_A_TRANSACTION: Final = _SETTINGS.format(local="true")


class PostgresConnection(AsyncConnection[Any]):
    """A connection, each statement of which commits by itself.

    ``pooled``: a pooler may lend each transaction another connection, which others use in turn.
    Then nothing may be left on it, neither settings nor prepared statements.
    """

    pooled: bool = False

    @asynccontextmanager
    async def settled(self) -> AsyncGenerator[None]:
        """Work with our settings. Over a pooler all of the block is one transaction."""
        if not self.pooled:
            yield
            return
        async with self.transaction():
            await self.execute(_OF_A_TRANSACTION)
            yield

    @asynccontextmanager
    async def long(self, timeout_s: float) -> AsyncGenerator[None]:
        """Work in one transaction, each statement of which may take so long."""
        async with self.settled(), self.transaction():
            await self.execute(_PATIENT, [f"{max(round(timeout_s * 1000), 1)}"])
            yield


async def connect(url: SecretStr, *, timeout_s: float | None = None) -> PostgresConnection:
    """Open a connection.

    Errors: psycopg.Error; OSError and ValueError for a host or a URL that is none. The texts of all
    may quote the URL.
    """
    given = conninfo_to_dict(url.get_secret_value())
    options: dict[str, Any] = {name: n for name, n in _ALIVE.items() if name not in given}
    if timeout_s is not None:
        options["connect_timeout"] = max(2, round(timeout_s))
    opened = await PostgresConnection.connect(
        url.get_secret_value(), autocommit=True, application_name="redis-state", **options
    )
    try:
        await _set_up(opened)
    except BaseException:
        await close(opened)
        raise
    return opened


async def _set_up(opened: PostgresConnection) -> None:
    # Whatever the database's default: who has waited for a lock must see what was done meanwhile.
    await opened.set_isolation_level(IsolationLevel.READ_COMMITTED)
    found = await opened.execute("SELECT pg_backend_pid()")
    process: Any = await found.fetchone()
    # A pooler gives its clients numbers of its own. One that lends connections for a session does
    # so too, and looks the same: it is used with the same care.
    opened.pooled = process[0] != opened.info.backend_pid
    if opened.pooled:
        opened.prepare_threshold = None
    else:
        await opened.execute(_OF_A_CONNECTION)


async def close(connection: AsyncConnection[Any]) -> None:
    """Close a connection, whatever state it is in."""
    with suppress(psycopg.Error, OSError):
        await connection.close()


def cut(connection: AsyncConnection[Any]) -> None:
    """End a connection at once. What waits for it fails.

    To cancel what waits would first ask the server to end the call, and wait for that.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as it:
        it.shutdown(socket.SHUT_RDWR)


def is_deadlock(error: psycopg.Error) -> bool:
    """Return whether the server ended a transaction for another's sake: it may be repeated."""
    return (error.sqlstate or "").startswith("40")


def known_text(error: psycopg.Error) -> str:
    """Return what of an error's text is known to quote nothing; nothing of others."""
    return next((known for known in (*LOGIN, *FINAL, *_PASSING) if known in str(error)), "")


def problem(error: psycopg.Error) -> str:
    """Return what is wrong, without the text, which may quote what was to be written.

    Without a state the error is one of a connection: see `known_text`.
    """
    code = error.sqlstate or known_text(error)
    return " ".join(filter(None, (type(error).__name__, code)))
