"""Logs and rows for the tests of logs."""

from __future__ import annotations

from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR

TOPICS = [None, "", "a", "b"]


def log_of(
    scripts: Scripts, keys: Keys, *, max_rows: int = 0, announce: bool = True, session: str = "s"
) -> Log:
    """Make the log of a session's updates, without a bound on its rows unless one is given."""
    return Log(scripts, keys.updates(session), Bounds(max_rows, HOUR), announce=announce)


def pair(row_id: str) -> tuple[bytes, bytes]:
    """Return the id and the text of a row to append."""
    return row_id.encode(), b"row " + row_id.encode()
