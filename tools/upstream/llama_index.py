"""The tests of LlamaIndex's stores in memory and in SQLite, with ours in their place."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.llama_index import RedisStateWorkflowStore
from tools.upstream.host import Host

_PLACES = {
    "MemoryWorkflowStore": "llama_agents.server._store.memory_workflow_store",
    "SqliteWorkflowStore": "llama_agents.server._store.sqlite.sqlite_workflow_store",
}


def install(url: str) -> None:
    """Put ours in the place of both. A file becomes a namespace."""

    class StandIn(RedisStateWorkflowStore):
        def __init__(self, db_path: Any = None, **_: Any) -> None:
            file = uuid.uuid4().hex if db_path is None else str(db_path)
            name = hashlib.sha256(file.encode()).hexdigest()[:16]
            settings = Settings(url=SecretStr(url), namespace=f"upstream-{name}")
            super().__init__(RedisStateStore(settings))
            # By this the tests see that a subscription has begun.
            self._conditions: dict[str, bool] = {}

        async def subscribe_events(
            self, run_id: str, after_sequence: int = -1
        ) -> AsyncIterator[Any]:
            self._conditions[run_id] = True
            async for event in super().subscribe_events(run_id, after_sequence):
                yield event

    for name, module in _PLACES.items():
        for each in (module, "llama_agents.server", "llama_agents.server._store"):
            if hasattr(import_module(each), name):
                setattr(import_module(each), name, StandIn)


HOST = Host(
    package="llama-agents-server",
    repository="https://github.com/run-llama/workflows-py",
    tag="llama-agents-server@v{version}",
    tests="packages/llama-agents-server/tests/**/test_*.py",
    store="WorkflowStore",
    install=install,
    left_out={
        "test_postgres": "is about PostgreSQL",
        "test_max_completed": "is about how many runs the store in memory keeps",
        "test_sqlite_state_store|_legacy_ctx_": "writes into SQLite's files",
        "test_evict_run_state_stores_drops|id_falls_back_to_legacy_state": "reads "
        "a private attribute of the store in memory",
    },
    paths=("packages/llama-agents-integration-tests/src",),
)
