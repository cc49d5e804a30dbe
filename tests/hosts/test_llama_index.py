"""A store for LlamaIndex's workflow server in Redis, with LlamaIndex's own packages."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidField, PayloadUnreadable, VersionConflict
from redis_state.testing import eventually
from tests.hosts import real
from tests.hosts.links import CALLERS, dying_links
from tests.support.processes import children
from tests.support.samples import HOST_IDS
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import start_process

theirs: Any = real.load("llama_agents.server._store.abstract_workflow_store")
protocol: Any = real.load("llama_agents.client.protocol.serializable_events")
workflow_events: Any = real.load("workflows.events")

from redis_state.integrations.llama_index import RedisStateWorkflowStore  # noqa: E402


def handler_of(handler_id: str, **more: Any) -> Any:
    """Make a handler."""
    given = {"workflow_name": "w", "status": "running", "run_id": f"run {handler_id}"}
    return theirs.PersistentHandler(handler_id=handler_id, **{**given, **more})


def event_of(event: Any) -> Any:
    """Wrap an event as the server does."""
    return protocol.EventEnvelopeWithMetadata.from_event(event)


@pytest.fixture
def workflows(store: RedisStateStore) -> Any:
    return RedisStateWorkflowStore(store)


async def ids(workflows: Any, **query: Any) -> list[str]:
    """List the ids of the handlers that fit."""
    return [each.handler_id for each in await workflows.query(theirs.HandlerQuery(**query))]


@pytest.mark.parametrize("odd", HOST_IDS)
async def test_all_of_a_handler_comes_back_and_leaves_with_it(
    workflows: Any, store: RedisStateStore, odd: str
) -> None:
    now = datetime.now(UTC)
    result = workflow_events.StopEvent(result={"n": 1})
    times = {"started_at": now, "updated_at": now, "completed_at": now, "idle_since": now}
    handler = handler_of(odd, run_id=odd, status="completed", result=result, error="e", **times)
    await workflows.update(handler_of(odd, run_id=odd))
    assert await ids(workflows, status_in=["running"], is_idle=False) == [odd]
    await workflows.update(handler)
    assert await ids(workflows, status_in=["running"]) == []
    (found,) = await workflows.query(theirs.HandlerQuery(run_id_in=[odd, odd]))
    assert found.model_dump() == handler.model_dump()
    await workflows.append_event(odd, event_of(workflow_events.StopEvent(result=1)))
    await workflows.append_tick(odd, {"t": "\U0001f600"})
    for namespace in ((), ("a/b",), ("a", "b")):
        await workflows.create_state_store(odd, namespace=namespace).set("k", list(namespace))
    for namespace in ((), ("a/b",), ("a", "b")):
        state = workflows.create_state_store(odd, namespace=namespace)
        assert await state.get("k") == list(namespace)
    assert await workflows.delete(theirs.HandlerQuery()) == 0
    assert await workflows.delete(theirs.HandlerQuery(handler_id_in=[odd])) == 1
    assert await workflows.query_events(odd) == await workflows.get_ticks(odd) == []
    pattern = f"{store.settings.namespace}:*"
    left = [
        key
        async for some in store.base.scripts.transport.commands.scan_all(pattern)
        for key in some
    ]
    assert [key for key in left if b":call:" not in key] == []


async def test_handlers_are_found_by_what_they_are(workflows: Any) -> None:
    for n in range(230):
        status = ("running", "failed", "completed")[n % 3]
        await workflows.update(handler_of(f"h{n}", status=status, workflow_name=f"w{n % 2}"))
    assert len(await ids(workflows)) == 230
    assert await ids(workflows, status_in=["running"]) == [f"h{n}" for n in range(0, 230, 3)]
    both = await ids(workflows, status_in=["failed", "running"], workflow_name_in=["w1"])
    assert both == [f"h{n}" for n in range(230) if n % 3 != 2 and n % 2]
    for empty in ("handler_id_in", "run_id_in", "workflow_name_in", "status_in"):
        assert await ids(workflows, **{empty: []}) == []
    assert await ids(workflows, run_id_in=["run h2", "run h1", "none"]) == ["h2", "h1"]
    await workflows.update_handler_status("run h0", status="cancelled")
    assert "h0" not in await ids(workflows, status_in=["running"])


async def test_changes_of_a_handler_at_once_are_all_there(
    workflows: Any, settings: Settings
) -> None:
    result = workflow_events.StopEvent(result={"n": 1})
    at = datetime.now(UTC)
    async with RedisStateStore(settings) as second:
        other: Any = RedisStateWorkflowStore(second)
        for n in range(10):
            handler = handler_of(f"h{n}", idle_since=at)
            await workflows.update(handler)
            await asyncio.gather(
                workflows.update_handler_status(handler.run_id, status="completed", result=result),
                workflows.update_handler_status(handler.run_id, idle_since=None),
                other.update_handler_status(handler.run_id, error="e"),
            )
            (found,) = await other.query(theirs.HandlerQuery(run_id_in=[handler.run_id]))
            assert (found.status, found.result) == ("completed", result)
            assert (found.idle_since, found.error) == (None, "e")
    assert await ids(workflows, status_in=["running"]) == []
    await workflows.update_handler_status("no run", status="failed")


async def test_events_reach_subscribers_of_other_stores_at_once(
    workflows: Any, settings: Settings
) -> None:
    workflows.poll_interval = 3600
    got: list[tuple[int, int]] = []

    async def subscribe(number: int, after: int) -> None:
        async with RedisStateStore(settings) as other:
            async for event in RedisStateWorkflowStore(other).subscribe_events("r", after):
                got.append((number, event.sequence))  # noqa: PERF401 - as they come

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(subscribe(number, -1 if number % 2 else 0))
        for n in range(10):
            await workflows.append_event("r", event_of(workflow_events.Event(n=n)))
            await asyncio.sleep(0)
        await eventually(lambda: len(got) == 190, "all have what there is")
        await workflows.append_event("r", event_of(workflow_events.StopEvent()))
    for number in range(20):
        first = 0 if number % 2 else 1
        assert [n for who, n in got if who == number] == list(range(first, 11))
    stored = await workflows.query_events("r", after_sequence=3, limit=2)
    assert [each.sequence for each in stored] == [4, 5]
    assert await workflows.query_events("r", limit=0) == []
    assert await workflows.query_events("r", after_sequence=99) == []


async def test_trimmed_events_are_left_out_and_ticks_are_all_there(store: RedisStateStore) -> None:
    workflows: Any = RedisStateWorkflowStore(store, max_events=64)
    for n in range(130):
        await workflows.append_event("r", event_of(workflow_events.Event(n=n)))
        await workflows.append_tick("r", {"n": n})
    assert [tick.tick_data["n"] for tick in await workflows.get_ticks("r")] == list(range(130))
    kept = [each.sequence for each in await workflows.query_events("r", after_sequence=2)]
    assert kept == list(range(kept[0], 130))
    assert 64 <= len(kept) <= 68
    async with aclosing(workflows.subscribe_events("r", 2)) as events:
        assert (await anext(events)).sequence == kept[0]
    with pytest.raises(InvalidField, match="max_events"):
        RedisStateWorkflowStore(store, max_events=0)


async def edit(first: Any, second: Any) -> None:
    """Edit a state while another process changes it."""
    async with first.edit_state() as state:
        await second.set("n", 2)
        state["n"] = 3


async def test_a_change_of_a_state_by_another_process_is_not_lost(
    workflows: Any, store: RedisStateStore
) -> None:
    other: Any = RedisStateWorkflowStore(store)
    first, second = (each.create_state_store("r") for each in (workflows, other))
    await first.set("n", 1)
    with pytest.raises(VersionConflict):
        await edit(first, second)
    assert await first.get("n") == 2
    handle = first.to_dict(None)
    copy = other.create_state_store("copy", serialized_state=handle)
    assert await copy.get("n") == 2
    await copy.set("n", 5)
    assert await first.get("n") == 2


async def test_everything_is_sealed(store: RedisStateStore, settings: Settings) -> None:
    keys = SecretStr(Fernet.generate_key().decode())
    async with RedisStateStore(settings.model_copy(update={"payload_keys": keys})) as sealing:
        workflows: Any = RedisStateWorkflowStore(sealing)
        await workflows.update(handler_of("h", error="secret", run_id="r"))
        await workflows.append_event("r", event_of(workflow_events.Event(n="secret")))
        await workflows.append_tick("r", {"n": "secret"})
        await workflows.create_state_store("r").set("k", "secret")
        of, commands = store.base.keys, store.base.scripts.transport.commands
        stored = [
            await commands.hgetall(key)
            for key in (
                of.llama_handler("h"),
                workflows.create_state_store("r")._storage._key("r", "[1]"),
            )
        ]
        logs = of.llama_events("r"), of.llama_ticks("r")
        stored += [await commands.xrange(log.rows, "-", "+") for log in logs]
        assert all(stored)
        assert "secret" not in repr(stored)
        assert (await workflows.get_ticks("r"))[0].tick_data == {"n": "secret"}
        clear: Any = RedisStateWorkflowStore(store)
        for read in (clear.get_ticks("r"), clear.query_events("r"), ids(clear)):
            with pytest.raises(PayloadUnreadable):
                await read
        with pytest.raises(PayloadUnreadable):
            await clear.create_state_store("r").get("k")


async def test_a_run_of_a_killed_server_is_continued_by_another(
    workflows: Any, settings: Settings
) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    killed = await start_process("serve_llama_workflow", argument | {"answer": None})
    try:
        assert (await killed.stdout.readline()).strip() == b"asked"

        async def idle() -> list[str]:
            return await ids(workflows, is_idle=True)

        # What is not, every server that starts takes up; what is, the first one that is asked.
        await eventually(idle, "the run waits")
        killed.kill()
        assert await killed.wait() == -9
        (handler,) = await workflows.query(theirs.HandlerQuery(handler_id_in=["h"]))
        assert handler.status == "running"
        seen: list[str] = []

        async def watch() -> None:
            async for event in workflows.subscribe_events(handler.run_id):
                seen.append(event.event.type)  # noqa: PERF401 - as they come

        watching = asyncio.create_task(watch())
        other = await start_process("serve_llama_workflow", argument | {"answer": 41})
        try:
            assert (await other.stdout.readline()).strip() == b"42", await other.communicate()
            await asyncio.wait_for(watching, 30)
        finally:
            await children.end(other)
    finally:
        await children.end(killed)
    (handler,) = await workflows.query(theirs.HandlerQuery(handler_id_in=["h"]))
    assert (handler.status, handler.result.result) == ("completed", 42)
    assert [name for name in seen if name != "StopEvent"].count("InputRequiredEvent") == 1
    assert seen[-1] == "StopEvent"


async def test_a_subscriber_whose_number_is_ahead_ends_with_the_run(workflows: Any) -> None:
    await workflows.append_event("r", event_of(workflow_events.StartEvent()))

    async def heard() -> list[int]:
        return [each.sequence async for each in workflows.subscribe_events("r", 7)]

    listening = asyncio.create_task(heard())
    for _ in range(3):
        await workflows.append_event("r", event_of(workflow_events.StartEvent()))
    await workflows.append_event("r", event_of(workflow_events.StopEvent()))
    async with asyncio.timeout(30):
        assert await listening == []


async def test_runs_over_tls_on_links_that_die_lose_and_repeat_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    async with dying_links(settings, tmp_path) as (store, dying):
        workflows: Any = RedisStateWorkflowStore(store)

        async def serve(run: str) -> None:
            async def heard() -> list[int]:
                return [each.sequence async for each in workflows.subscribe_events(run)]

            await workflows.update(handler_of(run, run_id=run))
            listening = asyncio.create_task(heard())
            for _ in range(3):
                await workflows.append_event(run, event_of(workflow_events.StartEvent()))
                await workflows.append_tick(run, {"n": 1})
            await workflows.append_event(run, event_of(workflow_events.StopEvent()))
            assert await listening == [0, 1, 2, 3]
            assert len(await workflows.get_ticks(run)) == 3

        await dying(serve)
        assert len(await ids(workflows, status_in=["running"])) == CALLERS


async def test_a_run_goes_on_after_a_history_that_went_back() -> None:
    async with rolling_back() as redis, RedisStateStore.from_url(redis.url) as store:
        workflows: Any = RedisStateWorkflowStore(store)
        await workflows.update(handler_of("kept", run_id="r"))
        await workflows.append_event("r", event_of(workflow_events.StartEvent()))
        await redis.mark()
        await workflows.update(handler_of("lost", run_id="l"))
        for _ in range(3):
            await workflows.append_event("r", event_of(workflow_events.StartEvent()))
        await redis.go_back()
        assert await ids(workflows, status_in=["running"]) == ["kept"]
        assert [each.sequence for each in await workflows.query_events("r")] == [0]
        await workflows.append_event("r", event_of(workflow_events.StopEvent()))
        async with asyncio.timeout(30):
            ahead = [each.sequence async for each in workflows.subscribe_events("r", 3)]
            whole = [each.sequence async for each in workflows.subscribe_events("r")]
        assert (ahead, whole) == ([], [0, 1])
