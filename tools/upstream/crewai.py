"""The tests of CrewAI that make its SQLite store, with `RedisStateFlowPersistence` in its place."""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state.integrations.crewai import RedisStateFlowPersistence
from tools.upstream.host import Host


def install(url: str) -> None:
    """Put ours in the place of the SQLite store. A file becomes a namespace."""

    class StandIn(RedisStateFlowPersistence):
        def __init__(self, db_path: str | None = None, /, **fields: Any) -> None:
            file = hashlib.sha256(str(db_path).encode()).hexdigest()[:16]
            options = {"namespace": f"upstream-{os.getpid()}-{file}"}
            super().__init__(url=SecretStr(url), options=options, **fields)  # pyright: ignore[reportUnknownMemberType]

    for module in ("crewai.flow.persistence", "crewai.flow.persistence.sqlite"):
        setattr(import_module(module), "SQLiteFlowPersistence", StandIn)  # noqa: B010


HOST = Host(
    package="crewai",
    repository="https://github.com/crewAIInc/crewAI",
    tag="{version}",
    tests="**/tests/**/test_*.py",
    store=r"SQLiteFlowPersistence\(",
    install=install,
    left_out={
        "test_sqlite_connection_lifecycle": "is about SQLite's connections and files",
    },
)
