"""The contract of ADK's session services, with `RedisStateSessionService` as its first backend."""

from __future__ import annotations

import uuid
from importlib import import_module
from typing import Self

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.google_adk import RedisStateSessionService
from tools.upstream.host import Host

_PLACES = {
    "google.adk.sessions": ("InMemorySessionService", "DatabaseSessionService"),
    "google.adk.sessions.in_memory_session_service": ("InMemorySessionService",),
    "google.adk.sessions.database_session_service": ("DatabaseSessionService",),
    "google.adk.sessions.sqlite_session_service": ("SqliteSessionService",),
}
# What ADK asks of its databases alone: late writers, deleted sessions, values that are no JSON.
_KEPT = (
    r"test_(?:(?:sqlite_)?append_event_(?:to_|uses_typed_|concurrent_|allows_|with_non_)"
    r"|get_session_orders_tied_)"
)


def install(url: str) -> None:
    """Put ours in the place of the services in memory and in databases. Each one begins empty."""

    class StandIn(RedisStateSessionService):
        def __init__(self, *_: object) -> None:
            namespace = f"upstream-{uuid.uuid4().hex}"
            self._store = RedisStateStore(Settings(url=SecretStr(url), namespace=namespace))
            super().__init__(self._store)

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            await self.close()

        async def close(self) -> None:
            await self._store.aclose()

    for module, names in _PLACES.items():
        for name in names:
            setattr(import_module(module), name, StandIn)


HOST = Host(
    package="google-adk",
    repository="https://github.com/google/adk-python",
    tag="v{version}",
    tests="tests/unittests/sessions/test_session_service.py",
    store=rf"def test_\w+\(\s*session_service\b|\bInMemorySessionService\(\)|def {_KEPT}",
    install=install,
    # Its registry of backends names the service in memory so; older versions, by an enumeration.
    # Others make their service themselves: such an id has no parameter, or the model's environment.
    variant=(
        r"\[(.*[-.])?(in_memory|IN_MEMORY)[-\]]"
        rf"|{_KEPT}\w*\[.*\bDATABASE\]"
        r"|::\w+(\[(GOOGLE_AI|VERTEX)\])?$"
    ),
    left_out={
        "test_append_different_events_not_deduplicated": (
            "gives two events one id, which ADK's databases refuse as ours does"
        ),
        "_sync_": "calls deprecated methods, which the service in memory alone has",
        "orders_tied_timestamps_by_id": (
            "sorts events of one time by id; ours and the service in memory keep their order"
        ),
        "is_same_ref_as_storage": "reads an attribute of the service in memory",
    },
)
