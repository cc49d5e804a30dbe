"""The published PenguiFlow on a store whose audit events are in PostgreSQL, in both modes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("penguiflow.state", reason="needs the published package")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.penguiflow import create_store
from tests.integration.contract import test_same_as_reference
from tests.integration.contract.test_same_as_reference import TYPES
from tests.integration.penguiflow import test_penguiflow
from tests.support.servers.postgres import OwnPostgres

_MODES = ("sync", "delayed")
_FOUND = {
    name: test
    for name, test in vars(test_penguiflow).items()
    if name.startswith("test_") and "host" in inspect.signature(test).parameters
}
_SAME = "test_random_operations_leave_both_stores_alike"
globals().update({**_FOUND, _SAME: vars(test_same_as_reference)[_SAME]})


@pytest.fixture(params=_MODES)
async def host(
    settings: Settings,
    postgres: OwnPostgres,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Any]:
    """Give the store as its host sees it, also to the host's own commands."""
    monkeypatch.setenv("REDIS_STATE_DURABLE_EVENTS", postgres.url)
    monkeypatch.setenv("REDIS_STATE_DURABLE_EVENTS_MODE", request.param)
    made = create_store(
        url=settings.url.get_secret_value(),
        namespace=settings.namespace,
        durable_events=postgres.url,
        durable_events_mode=request.param,
    )
    yield made
    await made.aclose()


@pytest.fixture(params=[pytest.param(mode, marks=pytest.mark.exhaustive) for mode in _MODES])
async def ours(
    settings: Settings, postgres: OwnPostgres, request: pytest.FixtureRequest
) -> AsyncIterator[RedisStateStore]:
    """Give a store with the types of the package, to be compared with its own."""
    durable = {"durable_events": SecretStr(postgres.url), "durable_events_mode": request.param}
    async with RedisStateStore(settings.model_copy(update=durable), types=TYPES) as opened:
        yield opened


def test_there_are_tests_of_events() -> None:
    assert any("load_history" in inspect.getsource(test) for test in _FOUND.values())
