from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from redis_state import (
    BackendUnavailable,
    InvalidField,
    OutcomeUnknown,
    RedisStateStore,
    Settings,
    TokenResolved,
)
from redis_state.testing import eventually
from tests.support.samples import STORED_STRANGE, admin, changed, keys_of, strange
from tests.support.servers.faults import Proxy, reached, run_processes
from tests.support.sizes import sizes


@pytest.mark.slow
@pytest.mark.parametrize("rounds", sizes(100, 1_000))
async def test_of_200_callers_in_8_processes_exactly_one_loads_a_pause(
    store: RedisStateStore, settings: Settings, rounds: int
) -> None:
    tokens = [f"token-{number}" for number in range(rounds)]
    for token in tokens:
        await store.save_planner_state(token, {"token": token})
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "tokens": tokens,
        "callers": 25,
    }
    wins: Counter[str] = Counter()
    for result in await run_processes("consume_tokens", [argument] * 8):
        wins.update(result)
    assert wins == Counter(dict.fromkeys(tokens, 1))


async def test_an_unknown_token_gives_none(store: RedisStateStore) -> None:
    assert await store.load_planner_state("unknown") is None


PAYLOADS: list[dict[str, Any]] = [
    {},
    {"trajectory": {}},
    {"falsy": [0, "", [], {}, None]},
]


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_a_pause_comes_back_once_exactly_as_it_was_saved(
    store: RedisStateStore, payload: dict[str, Any]
) -> None:
    await store.save_planner_state("token", payload)
    assert await store.load_planner_state("token") == payload
    assert await store.load_planner_state("token") is None


async def test_a_pause_keeps_the_order_of_its_keys(store: RedisStateStore) -> None:
    await store.save_planner_state("token", {"z": 1, "a": {"y": 2, "b": 3}})
    loaded = await store.load_planner_state("token")
    assert loaded is not None
    assert list(loaded) == ["z", "a"]
    assert list(loaded["a"]) == ["y", "b"]


async def test_a_pause_that_holds_what_json_cannot_is_kept(store: RedisStateStore) -> None:
    await store.save_planner_state("token", {"payload": strange(), "tool_context": None})
    loaded = await store.load_planner_state("token")
    assert loaded == {"payload": STORED_STRANGE, "tool_context": None}


@pytest.mark.parametrize("payload", [None, [], "text"])
async def test_a_pause_that_is_no_mapping_is_refused_by_name(
    store: RedisStateStore, payload: Any
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.save_planner_state("token", payload)
    assert caught.value.field == "payload"


async def test_a_stored_pause_shares_nothing_with_the_callers(store: RedisStateStore) -> None:
    payload = {"steps": [1]}
    await store.save_planner_state("token", payload)
    payload["steps"].append(2)
    assert await store.load_planner_state("token") == {"steps": [1]}


async def test_a_pause_expires(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    async with changed(settings, pause_ttl="PT0.05S") as store:
        await store.save_planner_state("token", {"n": 1})

        async def expired() -> bool:
            with caplog.at_level(logging.INFO):
                assert await store.load_planner_state("other") is None
            time = await admin(store, "TIME")
            now = int(time[0]) * 1000 + int(time[1]) // 1000
            return now > int(await admin(store, "HGET", key, "expires"))

        key = store.base.keys.pause("token")
        await eventually(expired, "the pause's time is over")
        with caplog.at_level(logging.INFO):
            assert await store.load_planner_state("token") is None
        assert "the token has expired" in caplog.text


async def test_saving_a_pause_again_renews_its_time_and_its_payload(
    settings: Settings, store: RedisStateStore
) -> None:
    key = store.base.keys.pause("token")
    async with changed(settings, pause_ttl="PT1M") as short:
        await short.save_planner_state("token", {"n": 1})
    soon = int(await admin(store, "HGET", key, "expires"))
    await store.save_planner_state("token", {"n": 2})
    assert int(await admin(store, "HGET", key, "expires")) > soon + 3_000_000
    assert await admin(store, "PTTL", key) > 3_600_000
    assert await store.load_planner_state("token") == {"n": 2}


async def test_a_repeated_save_after_the_load_does_not_bring_the_pause_back(
    store: RedisStateStore,
) -> None:
    await store.save_planner_state("token", {"n": 1})
    assert await store.load_planner_state("token") == {"n": 1}
    await store.save_planner_state("token", {"n": 1})
    assert await store.load_planner_state("token") is None


async def test_another_pause_under_a_used_token_is_refused_with_the_facts(
    store: RedisStateStore,
) -> None:
    await store.save_planner_state("token", {"n": 1})
    assert await store.load_planner_state("token") == {"n": 1}
    with pytest.raises(TokenResolved) as caught:
        await store.save_planner_state("token", {"n": 2})
    assert caught.value.actor
    assert caught.value.at_ms > 0
    assert await store.load_planner_state("token") is None


async def test_the_winner_may_repeat_its_claim(store: RedisStateStore) -> None:
    await store.save_planner_state("token", {"n": 1})
    assert await store.pauses.load("token", idempotency_key="mine") == {"n": 1}
    assert await store.pauses.load("token", idempotency_key="mine") == {"n": 1}
    assert await store.pauses.load("token", idempotency_key="other") is None


async def test_a_token_is_nowhere_in_the_server(store: RedisStateStore) -> None:
    await store.save_planner_state("a-secret-token", {"n": 1})
    (key,) = await keys_of(store)
    assert "a-secret-token" not in key
    assert b"a-secret-token" not in b"".join(await admin(store, "HGETALL", key))


async def test_a_load_of_unknown_outcome_leaves_the_pause_to_the_next_load(
    store: RedisStateStore, settings: Settings
) -> None:
    await store.save_planner_state("token", {"n": 1})
    key = store.base.keys.pause("token")
    async with Proxy(settings.url.get_secret_value()) as proxy:
        unlucky = changed(settings, url=proxy.url, call_timeout_s=0.3)
        await reached(unlucky)
        proxy.silence()
        loading = asyncio.create_task(unlucky.load_planner_state("token"))

        async def claimed() -> bool:
            state: bytes = await admin(store, "HGET", key, "state")
            return state == b"resolved"

        await eventually(claimed, "the server has the claim")
        with pytest.raises(OutcomeUnknown):
            await loading
        proxy.silence(silent=False)
        proxy.cut()
        await reached(unlucky)
        assert await unlucky.load_planner_state("token") == {"n": 1}
        assert await store.load_planner_state("token") is None
        await unlucky.aclose()


async def test_all_callers_of_a_process_that_leave_a_pause_leave_it_to_the_next(
    store: RedisStateStore, settings: Settings
) -> None:
    await store.save_planner_state("token", {"n": 1})
    key = store.base.keys.pause("token")
    async with Proxy(settings.url.get_secret_value()) as proxy:
        unlucky = changed(settings, url=proxy.url)
        await reached(unlucky)
        proxy.silence()
        loading = [asyncio.create_task(unlucky.load_planner_state("token")) for _ in range(2)]

        async def claimed() -> bool:
            state: bytes = await admin(store, "HGET", key, "state")
            return state == b"resolved"

        await eventually(claimed, "the server has the claims")
        for caller in loading:
            caller.cancel()
        await asyncio.wait(loading)
        proxy.silence(silent=False)
        proxy.cut()
        await reached(unlucky)
        assert await unlucky.load_planner_state("token") == {"n": 1}
        await unlucky.aclose()


async def test_a_failed_save_brings_no_pause_back_that_was_loaded(
    store: RedisStateStore, settings: Settings
) -> None:
    key = store.base.keys.pause("token")
    for gone in (False, True):
        async with Proxy(settings.url.get_secret_value()) as proxy:
            options = {"url": proxy.url, "call_timeout_s": 0.2, "resolved_token_ttl": "PT0.05S"}
            unlucky = changed(settings, **options)
            await reached(unlucky)
            proxy.silence()
            with pytest.raises(OutcomeUnknown):
                await unlucky.save_planner_state("token", {"n": 1})
            proxy.silence(silent=False)
            proxy.cut()
            assert await store.load_planner_state("token") == {"n": 1}
            if gone:
                await admin(store, "DEL", key)
            await reached(unlucky)
            assert await unlucky.load_planner_state("token") is None
            await unlucky.aclose()
        await admin(store, "DEL", key)


async def test_a_pause_of_unknown_outcome_keeps_its_time_when_its_store_is_closed(
    store: RedisStateStore, settings: Settings
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        unlucky = changed(settings, url=proxy.url, call_timeout_s=0.2)
        await reached(unlucky)
        proxy.silence()
        with pytest.raises(OutcomeUnknown):
            await unlucky.save_planner_state("token", {"n": 1})
        proxy.silence(silent=False)
        proxy.cut()
        await reached(unlucky)
        await unlucky.aclose()
    life_ms = await admin(store, "PTTL", store.base.keys.pause("token"))
    assert life_ms > settings.pause_ttl.total_seconds() * 1000
    assert await store.load_planner_state("token") == {"n": 1}


async def test_a_failed_save_brings_no_pause_back_whose_time_is_over(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        options = {"url": proxy.url, "call_timeout_s": 0.2, "pause_ttl": "PT0.05S"}
        async with changed(settings, **options) as unlucky:
            proxy.refuse()
            with pytest.raises(BackendUnavailable):
                await unlucky.save_planner_state("token", {"n": 1})
            assert proxy.refused
            proxy.refuse(refusing=False)
            await reached(unlucky)
            assert await unlucky.load_planner_state("token") is None
