"""The contract's tests of audit events, with the events in PostgreSQL, in both modes.

They are those of the folders `contract` and `penguiflow`, run once more with another store. What is
not among them has no audit events, or damages rows in Redis.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import Settings
from tests.integration.contract import (
    test_bad_input,
    test_mixed_operations,
    test_seed_cases,
    test_traps_rows,
    test_traps_values,
)
from tests.support.hosts import Host, open_host
from tests.support.servers.postgres import OwnPostgres

_WORDS = ("save_event", "load_history", "host.event(", "clear_session")


def _of(module: ModuleType, *, whole: bool = False) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, test in vars(module).items():
        if not name.startswith("test_") or not inspect.isfunction(test):
            continue
        text = inspect.getsource(test)
        if (whole or any(word in text for word in _WORDS)) and "host" in text:
            found[name] = test
    return found


globals().update(
    _of(test_seed_cases, whole=True)
    | _of(test_bad_input)
    | _of(test_mixed_operations)
    | _of(test_traps_rows)
    | _of(test_traps_values)
)


@pytest.fixture(
    params=[
        *(("own", "delayed"), ("penguiflow", "sync")),
        pytest.param(("own", "sync"), marks=pytest.mark.exhaustive),
        pytest.param(("penguiflow", "delayed"), marks=pytest.mark.exhaustive),
    ],
    ids="-".join,
)
async def host(
    settings: Settings, postgres: OwnPostgres, request: pytest.FixtureRequest
) -> AsyncIterator[Host]:
    """Give the store with each set of classes, and in each mode."""
    kind, mode = request.param
    options: dict[str, Any] = {"durable_events": postgres.url, "durable_events_mode": mode}
    # Hundreds of reads one after the other may take long on a busy machine.
    options["call_timeout_s"] = 60.0
    async with open_host(kind, settings, **options) as opened:
        yield opened


def test_there_are_tests_of_each_part() -> None:
    assert len([name for name in globals() if name.startswith("test_")]) >= 20
