"""A gateway and the handlers of a chat, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.gateway import create_gateway
from tests.support.chat.chats import HANDLERS
from tests.support.http.gateway import Served, tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving


@pytest.fixture
async def chat(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve the handlers, and a gateway."""
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
    async with serving(agent(store.settings, HANDLERS)), client_of(store) as client:
        yield Served(app, client, store)
        await app.aclose()
