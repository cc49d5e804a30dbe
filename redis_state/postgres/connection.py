"""One connection to PostgreSQL, set up for us."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection
from pydantic import SecretStr

# Of each connection. A commit must be on the disk; what asks for more than that stays.
SESSION_SETTINGS: Final[tuple[LiteralString, ...]] = (
    "SET TIME ZONE 'UTC'",
    "SET client_encoding = 'UTF8'",
    """
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
    """,
    "SET statement_timeout = '60s'",
    "SET lock_timeout = '20s'",
    "SET idle_in_transaction_session_timeout = '60s'",
)


async def connect(url: SecretStr, *, timeout_s: float | None = None) -> AsyncConnection[Any]:
    """Open a connection, each statement of which commits by itself.

    Errors: psycopg.Error; OSError and ValueError for a host or a URL that is none. The texts of all
    may quote the URL.
    """
    options: dict[str, Any] = {}
    if timeout_s is not None:
        options["connect_timeout"] = max(2, round(timeout_s))
    opened = await AsyncConnection.connect(
        url.get_secret_value(), autocommit=True, application_name="redis-state", **options
    )
    try:
        for statement in SESSION_SETTINGS:
            await opened.execute(statement)
    except BaseException:
        await close(opened)
        raise
    return opened


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


def problem(error: psycopg.Error) -> str:
    """Return what is wrong, without the text, which may quote what was to be written."""
    return " ".join(filter(None, (type(error).__name__, error.sqlstate)))
