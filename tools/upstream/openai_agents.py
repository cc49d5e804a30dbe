"""The tests of the OpenAI Agents SDK that make an SQLite session, with ours in its place."""

from __future__ import annotations

import hashlib
import uuid
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.openai_agents import RedisStateSession
from tools.upstream.host import Host

_INSIDE = (
    "test_sqlite_session_(close|reaps|keeps_connections|closed_rejects|file_lock|failed|rollback)",
    "test_sqlite_session_post_commit",
    "test_sqlite_session_(pop_item|get_items).*corrupt",
    "test_handoff_resume_after_cancelled_compaction_commits",
    "test_settled_(pop|clear)_failure_invalidates",
    "test_await_mutation_cancellation",
)
_PARTLY = (
    "test_backend_read_limit_cannot_hide_retained_history",
    "test_automatic_compaction_does_not_reload_unbounded_hidden_history",
    "test_expired_read_overhead_does_not_authorize_hidden_history",
    "test_encrypted_compaction_skips_unencrypted_stored_history",
    r"test_automatic_compaction_rollback_budget\[True\]",
)


def install(url: str) -> None:
    """Put ours in the place of the SQLite session. A file becomes a namespace."""

    class StandIn(RedisStateSession):
        def __init__(
            self, session_id: str, db_path: Any = ":memory:", session_settings: Any = None
        ) -> None:
            file = uuid.uuid4().hex if str(db_path) == ":memory:" else str(db_path)
            name = hashlib.sha256(file.encode()).hexdigest()[:16]
            store = RedisStateStore(Settings(url=SecretStr(url), namespace=f"upstream-{name}"))
            super().__init__(session_id, store=store, session_settings=session_settings)

        def close(self) -> None:
            """Do nothing: a store's connections end with their loop."""

    for module in ("agents", "agents.memory", "agents.memory.sqlite_session"):
        setattr(import_module(module), "SQLiteSession", StandIn)  # noqa: B010


HOST = Host(
    package="openai-agents",
    repository="https://github.com/openai/openai-agents-python",
    tag="v{version}",
    tests="tests/**/test_*.py",
    store=r"SQLiteSession\(",
    install=install,
    left_out={
        "test_(sqlite|async_sqlite|advanced_sqlite)_session.py": "is about another session",
        "|".join(_INSIDE): "is about SQLite's connections, locks and rows",
        "|".join(_PARTLY): "is about compacting the end of a history, by a private call",
        "test_encrypted_pop_(authentication|wrong_key|cancellation)": "is about what "
        "`EncryptedSession` does with an SQLite session only",
        "scan_budget_rejects_negative_limit": "takes a negative limit for none, as SQLite does",
    },
)
