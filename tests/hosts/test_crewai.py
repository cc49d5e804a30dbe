"""The state of CrewAI's flows in Redis, with CrewAI's own package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy, deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidField, PayloadUnreadable
from tests.hosts import real
from tests.hosts.links import CALLERS, dying_links
from tests.support.processes import children
from tests.support.samples import HOST_IDS
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import run_python, start_process

crewai: Any = real.load("crewai.flow.flow")
feedback: Any = real.load("crewai.flow.async_feedback.types")

from redis_state.integrations.crewai import RedisStateFlowPersistence  # noqa: E402


def persistence_of(settings: Settings, **options: Any) -> Any:
    """Make one on the server of the test."""
    return RedisStateFlowPersistence(
        url=settings.url, options={"namespace": settings.namespace, **options}
    )


def context_of(flow_id: str) -> Any:
    """Make a question."""
    return feedback.PendingFeedbackContext(
        flow_id=flow_id,
        flow_class="m.Flow",
        method_name="review",
        method_output={"draft": 1},
        message="good?",
    )


async def test_no_test_and_no_process_of_one_calls_out() -> None:
    code = """if True:
        from importlib.util import find_spec
        from crewai.telemetry import Telemetry
        from crewai.events.listeners.tracing.utils import should_enable_tracing
        print(Telemetry._is_telemetry_disabled(), not should_enable_tracing())
        if find_spec("crewai.execution"):  # not in CrewAI 1.15.0
            from crewai.execution import _tracing_disabled
            print(_tracing_disabled(None))
    """
    assert set((await run_python("-c", code)).split()) == {"True"}


async def test_times_are_written_as_the_hosts_own_store_writes_them(settings: Settings) -> None:
    flows = persistence_of(settings)
    at = datetime(2026, 11, 26, 21, 52, tzinfo=UTC)
    flows.save_state("f", "begin", {"at": at, "all": [(at,), {at.date()}]})
    text = at.isoformat()
    assert text.endswith("+00:00")
    assert flows.load_state("f") == {"at": text, "all": [[text], ["2026-11-26"]]}
    flows.close()


async def test_a_state_that_contains_itself_is_refused(settings: Settings) -> None:
    state: dict[str, Any] = {}
    state["state"] = state
    with pytest.raises(InvalidField, match="must not contain itself"):
        persistence_of(settings).save_state("f", "begin", state)


@pytest.mark.parametrize("odd", HOST_IDS)
async def test_a_state_and_what_it_waits_for_come_back(
    settings: Settings, store: RedisStateStore, odd: str
) -> None:
    flows = persistence_of(settings)
    assert flows.load_state(odd) is None
    assert flows.load_pending_feedback(odd) is None
    flows.save_state(odd, "begin", {"n": 1, "s": {1}, "f": "\U0001f600"})
    asked = context_of(odd)
    flows.save_pending_feedback(odd, asked, {"n": 2})
    flows.save_state(odd, "other", {"n": 3})
    state, context = persistence_of(settings).load_pending_feedback(odd)
    assert (state, context) == ({"n": 2}, asked)
    flows.clear_pending_feedback(odd)
    assert flows.load_pending_feedback(odd) is None
    assert flows.load_state(odd) == {"n": 3}
    assert flows.delete_flow(odd)
    assert not flows.delete_flow(odd)
    assert not await store.base.scripts.transport.commands.exists(store.base.keys.crew_flow(odd))
    flows.clear_pending_feedback(odd)
    assert flows.load_state(odd) is None
    flows.close()
    with pytest.raises(InvalidField, match="state_data"):
        flows.save_state(odd, "m", 7)
    with pytest.raises(InvalidField, match="UTF-8"):
        flows.save_state(odd, "m", {"k": b"\xff"})
    with pytest.raises(InvalidField, match="flow_uuid"):
        flows.load_state("")


async def test_a_state_is_sealed_and_no_secret_is_shown(
    settings: Settings, store: RedisStateStore
) -> None:
    sealing = persistence_of(settings, payload_keys=SecretStr(Fernet.generate_key().decode()))
    sealing.save_pending_feedback("f", context_of("secret"), {"k": "secret"})
    stored = await store.base.scripts.transport.commands.hgetall(store.base.keys.crew_flow("f"))
    assert b"secret" not in b" ".join(stored)
    assert sealing.load_state("f") == {"k": "secret"}
    with pytest.raises(PayloadUnreadable):
        persistence_of(settings).load_state("f")
    assert sealing.model_dump() == {"persistence_type": "RedisStateFlowPersistence"}
    assert settings.url.get_secret_value() not in repr(sealing)


@pytest.mark.parametrize("copied", [copy, deepcopy])
async def test_a_copy_outlives_what_it_was_made_of(
    settings: Settings, copied: Callable[[Any], Any]
) -> None:
    first = persistence_of(settings)
    first.save_state("f", "begin", {"n": 1})
    second = copied(first)
    first.close()
    assert second.load_state("f") == {"n": 1}
    second.close()


async def test_a_flow_of_a_killed_process_is_continued_by_another(settings: Settings) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    killed = await start_process("run_crew_flow", argument)
    try:
        lines = [await killed.stdout.readline()]
        while lines[-1] not in (b"second begins\n", b""):
            lines.append(await killed.stdout.readline())
        assert lines[-1], lines
        killed.kill()
        assert await killed.wait() == -9
    finally:
        await children.end(killed)
    flows = persistence_of(settings)
    assert flows.load_state("flow")["done"] == ["first"]
    other = await start_process("run_crew_flow", argument | {"ends": True})
    try:
        out, err = await other.communicate()
        assert other.returncode == 0, err.decode()
    finally:
        await children.end(other)
    assert b"second begins" in out
    assert flows.load_state("flow")["done"] == ["first", "first", "second"]


async def test_flows_over_tls_on_links_that_die_keep_their_states(
    settings: Settings, tmp_path: Path
) -> None:
    async with dying_links(settings, tmp_path) as (store, dying):
        flows = persistence_of(store.settings)

        def save(name: str) -> None:
            for n in range(5):
                flows.save_state(name, "m", {"n": n})
                flows.save_pending_feedback(name, context_of(name), {"n": n})
                assert flows.load_state(name) == {"n": n}

        await dying(lambda name: asyncio.to_thread(save, name))
        for n in range(CALLERS):
            asked = await asyncio.to_thread(flows.load_pending_feedback, f"c{n}")
            assert asked[0] == {"n": 4}
        await asyncio.to_thread(flows.close)


async def test_a_flow_is_as_old_as_a_history_that_went_back() -> None:
    async with rolling_back() as redis:
        flows = RedisStateFlowPersistence(url=SecretStr(redis.url))
        flows.save_state("f", "m", {"n": 1})
        await redis.mark()
        flows.save_pending_feedback("f", context_of("f"), {"n": 2})
        await redis.go_back()
        assert flows.load_state("f") == {"n": 1}
        assert flows.load_pending_feedback("f") is None
        flows.save_state("f", "m", {"n": 3})
        assert flows.load_state("f") == {"n": 3}
        flows.close()
