"""The contract of ADK's session services, with `RedisStateSessionService` as its first backend."""

from __future__ import annotations

import uuid
from importlib import import_module

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.google_adk import RedisStateSessionService
from tools.upstream.host import Host


def install(url: str) -> None:
    """Put ours in the place of the service in memory. Each one begins empty."""

    class StandIn(RedisStateSessionService):
        def __init__(self) -> None:
            namespace = f"upstream-{uuid.uuid4().hex}"
            super().__init__(RedisStateStore(Settings(url=SecretStr(url), namespace=namespace)))

    for module in ("google.adk.sessions", "google.adk.sessions.in_memory_session_service"):
        setattr(import_module(module), "InMemorySessionService", StandIn)  # noqa: B010


HOST = Host(
    package="google-adk",
    repository="https://github.com/google/adk-python",
    tag="v{version}",
    tests="tests/unittests/sessions/test_session_service.py",
    store="session_service",
    install=install,
    # Its registry of backends names the service in memory so; older versions, by an enumeration.
    variant=r"\[(.*[-.])?(in_memory|IN_MEMORY)[-\]]",
    left_out={
        "test_append_different_events_not_deduplicated": (
            "gives two events one id, and is about the service in memory only"
        ),
    },
)
