"""A saver closes the store that it made itself, and no other."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from redis_state import BackendUnavailable, RedisStateStore
from redis_state.integrations.langgraph import RedisSaver, RedisStore
from tests.support.agents.graphs import config_of

NOWHERE = config_of("nowhere")


@pytest.mark.parametrize("kind", [RedisSaver, RedisStore])
async def test_a_store_that_was_given_stays_open(
    store: RedisStateStore, kind: type[RedisSaver | RedisStore]
) -> None:
    async with kind(store):
        assert await RedisSaver(store).aget_tuple(NOWHERE) is None
    assert await RedisSaver(store).aget_tuple(NOWHERE) is None
    with RedisSaver(store) as saver:
        assert saver.get_tuple(NOWHERE) is None
    assert await RedisSaver(store).aget_tuple(NOWHERE) is None


async def test_a_store_of_its_own_is_closed(store: RedisStateStore) -> None:
    url = store.settings.url.get_secret_value()
    saver = RedisSaver.from_url(url, namespace=store.settings.namespace)
    async with saver:
        assert await saver.aget_tuple(NOWHERE) is None
    with pytest.raises(BackendUnavailable, match="closed"):
        await saver.aget_tuple(NOWHERE)
