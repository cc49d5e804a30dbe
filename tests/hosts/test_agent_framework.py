"""Checkpoints and history of Microsoft's Agent Framework in Redis, with its own package."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidField, PayloadTooLarge, PayloadUnreadable
from redis_state.testing import eventually
from tests.hosts import real
from tests.hosts.links import CALLERS, dying_links
from tests.support.processes import children
from tests.support.samples import HOST_IDS
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy, start_process

framework: Any = real.load("agent_framework")
errors: Any = real.load("agent_framework.exceptions")

from redis_state.integrations.agent_framework import (  # noqa: E402
    RedisStateCheckpointStorage,
    RedisStateHistoryProvider,
)


class Unknown:
    """A type that nobody allowed."""


def checkpoint_of(name: str, workflow: str = "w", **more: Any) -> Any:
    """Make a checkpoint."""
    given = {"workflow_name": workflow, "graph_signature_hash": "h", "checkpoint_id": name}
    return framework.WorkflowCheckpoint(**{**given, **more})


async def left(store: RedisStateStore) -> list[bytes]:
    """List the keys that are there, without the replies of calls."""
    scan = store.base.scripts.transport.commands.scan_all(f"{store.settings.namespace}:*")
    return [key async for some in scan for key in some if b":call:" not in key]


@pytest.mark.parametrize("odd", HOST_IDS)
async def test_a_checkpoint_comes_back_whole_and_leaves_nothing(
    store: RedisStateStore, odd: str
) -> None:
    storage: Any = RedisStateCheckpointStorage(store)
    message = framework.Message(role="user", contents=["\U0001f600"])
    made = checkpoint_of(odd, odd, state={"k": {1, 2}, "m": message}, iteration_count=3)
    for _ in range(2):
        assert await storage.save(made) == odd
    found = await storage.load(odd)
    assert found.state["m"].text == message.text
    assert (found.state["k"], found.iteration_count, found.timestamp) == ({1, 2}, 3, made.timestamp)
    assert await storage.list_checkpoint_ids(workflow_name=odd) == [odd]
    assert (await storage.get_latest(workflow_name=odd)).checkpoint_id == odd
    assert await storage.delete(odd)
    assert not await storage.delete(odd)
    with pytest.raises(errors.WorkflowCheckpointException):
        await storage.load(odd)
    assert await storage.get_latest(workflow_name=odd) is None
    assert await left(store) == []


async def test_the_latest_is_the_latest_by_its_time_and_lists_are_whole(
    store: RedisStateStore,
) -> None:
    storage: Any = RedisStateCheckpointStorage(store)

    def at(n: int) -> str:
        return f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}+00:00"

    await asyncio.gather(
        *(storage.save(checkpoint_of(f"c{n}", timestamp=at(n))) for n in range(230))
    )
    await storage.save(checkpoint_of("other", "other"))
    # Saved again it is listed last, and is as old as it was.
    await storage.save(checkpoint_of("c7", timestamp=at(7)))
    assert (await storage.get_latest(workflow_name="w")).checkpoint_id == "c229"
    listed = await storage.list_checkpoint_ids(workflow_name="w")
    assert (sorted(listed), listed[-1]) == (sorted(f"c{n}" for n in range(230)), "c7")
    assert len(await storage.list_checkpoints(workflow_name="w")) == 230
    # One that was saved under another name is in the list of that name only.
    await storage.save(checkpoint_of("c7", "other"))
    assert "c7" not in await storage.list_checkpoint_ids(workflow_name="w")


async def test_a_checkpoint_stays_listed_though_its_deleter_dies_meanwhile(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion ends behind each of its steps, and a save has returned before that step."""
    storage: Any = RedisStateCheckpointStorage(store)

    class Killed(Exception):
        pass

    for name in ("delete", "unlist_member"):
        await storage.save(checkpoint_of("c"))
        of = storage._of.records if name == "delete" else storage._of.scripts
        step = getattr(of, name)

        async def die(
            *args: Any, step: Any = step, before: bool = name != "delete", **more: Any
        ) -> Any:
            monkeypatch.undo()
            if before:
                await storage.save(checkpoint_of("c", iteration_count=2))
            await step(*args, **more)
            if not before:
                await storage.save(checkpoint_of("c", iteration_count=2))
            raise Killed

        monkeypatch.setattr(of, name, die)
        with pytest.raises(Killed):
            await storage.delete("c")
        assert (await storage.load("c")).iteration_count == 2
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c"]


@pytest.mark.parametrize("where", ["a save within a delete", "a delete within a save"])
async def test_a_checkpoint_that_is_saved_while_it_is_deleted_is_listed(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    storage: Any = RedisStateCheckpointStorage(store)
    await storage.save(checkpoint_of("c"))
    records, met = storage._of.records, 0
    delete, save = records.delete, records.save

    async def delete_and_save(*args: Any, **more: Any) -> Any:
        nonlocal met
        monkeypatch.undo()
        deleted = await delete(*args, **more)
        await storage.save(checkpoint_of("c", iteration_count=2))
        met += 1
        return deleted

    async def delete_then_save(*args: Any, **more: Any) -> Any:
        nonlocal met
        monkeypatch.undo()
        assert await storage.delete("c")
        met += 1
        return await save(*args, **more)

    if where == "a save within a delete":
        monkeypatch.setattr(records, "delete", delete_and_save)
        assert await storage.delete("c")
    else:
        monkeypatch.setattr(records, "save", delete_then_save)
        await storage.save(checkpoint_of("c", iteration_count=2))
    assert met == 1
    assert (await storage.load("c")).iteration_count == 2
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["c"]
    assert (await storage.get_latest(workflow_name="w")).iteration_count == 2
    assert await storage.delete("c")
    assert await left(store) == []


@pytest.mark.parametrize("there", [False, True], ids=["new", "saved again"])
@pytest.mark.parametrize("deleted", ["never", "before", "behind", "saved and deleted before"])
@pytest.mark.parametrize("step", ["save", "zscore", "unlist_member"])
@pytest.mark.parametrize("ends", ["before", "behind"])
async def test_a_save_that_is_killed_leaves_what_is_both_listed_and_loaded(
    store: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    there: bool,
    deleted: str,
    step: str,
    ends: str,
) -> None:
    """The save ends at its calls, and another process deletes around that call."""
    storage: Any = RedisStateCheckpointStorage(store)
    of = storage._of
    places = {"save": of.records, "unlist_member": of.scripts}
    place = places.get(step, of.scripts.transport.commands)
    call, reached = getattr(place, step), False
    if there:
        await storage.save(checkpoint_of("c"))

    class Killed(Exception):
        pass

    async def die(*args: Any, **more: Any) -> Any:
        nonlocal reached
        monkeypatch.undo()
        reached = True
        if deleted == "saved and deleted before":
            await storage.save(checkpoint_of("c"))
        if deleted.endswith("before"):
            await storage.delete("c")
        if ends == "behind":
            await call(*args, **more)
        if deleted == "behind":
            await storage.delete("c")
        raise Killed

    def begin(*args: Any, **more: Any) -> Any:
        return asyncio.ensure_future(die(*args, **more))

    monkeypatch.setattr(place, step, begin)
    saved = True
    try:
        await storage.save(checkpoint_of("c", iteration_count=2))
    except Killed:
        saved = False
    # Only a save over another one removes the other's entry.
    assert reached or (step in ("zscore", "unlist_member") and not there)
    monkeypatch.undo()
    assert not reached or not saved
    await _assert_listed_as_loaded(storage)


async def _assert_listed_as_loaded(storage: Any) -> None:
    listed = await storage.list_checkpoint_ids(workflow_name="w")
    try:
        await storage.load("c")
    except errors.WorkflowCheckpointException:
        assert listed == []
    else:
        assert listed == ["c"]
        assert await storage.delete("c")
        assert await storage.list_checkpoint_ids(workflow_name="w") == []


async def test_a_checkpoint_that_is_saved_again_while_it_is_listed_is_listed(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage: Any = RedisStateCheckpointStorage(store)
    for name in ("a", "c"):
        await storage.save(checkpoint_of(name))
    pages, met = storage._of.records.pages, 0

    async def pages_and_save(*args: Any, **more: Any) -> Any:
        nonlocal met
        async for page in pages(*args, **more):
            await storage.save(checkpoint_of("c", iteration_count=2))
            met += 1
            yield page

    monkeypatch.setattr(storage._of.records, "pages", pages_and_save)
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["a", "c"]
    listed = await storage.list_checkpoints(workflow_name="w")
    assert [each.checkpoint_id for each in listed] == ["a", "c"]
    assert (await storage.get_latest(workflow_name="w")).checkpoint_id == "c"
    assert met == 3


async def test_the_latest_is_another_one_if_it_is_deleted_meanwhile(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage: Any = RedisStateCheckpointStorage(store)
    await storage.save(checkpoint_of("a"))
    await storage.save(checkpoint_of("c"))
    load = storage._of.records.load

    async def delete_and_load(key: str) -> Any:
        monkeypatch.undo()
        assert await storage.delete("c")
        return await load(key)

    monkeypatch.setattr(storage._of.records, "load", delete_and_load)
    assert (await storage.get_latest(workflow_name="w")).checkpoint_id == "a"


async def test_what_is_too_large_leaves_nothing(settings: Settings) -> None:
    update = {"max_payload_bytes": 1024}
    async with RedisStateStore(settings.model_copy(update=update)) as store:
        storage: Any = RedisStateCheckpointStorage(store)
        with pytest.raises(PayloadTooLarge):
            await storage.save(checkpoint_of("c", state={"k": "x" * 2000}))
        assert await left(store) == []


async def test_what_could_not_be_loaded_is_not_saved(store: RedisStateStore) -> None:
    storage: Any = RedisStateCheckpointStorage(store)
    with pytest.raises(errors.WorkflowCheckpointException):
        await storage.save(checkpoint_of("c", state={"k": Unknown()}))
    with pytest.raises(InvalidField, match="timestamp"):
        await storage.save(checkpoint_of("c", timestamp="now"))
    assert await left(store) == []
    name = f"{Unknown.__module__}:{Unknown.__qualname__}"
    allowing: Any = RedisStateCheckpointStorage(store, allowed_checkpoint_types=[name])
    await allowing.save(checkpoint_of("c", state={"k": Unknown()}))
    assert isinstance((await allowing.load("c")).state["k"], Unknown)


@pytest.mark.parametrize("odd", HOST_IDS)
async def test_messages_come_back_in_order_and_leave_nothing(
    store: RedisStateStore, odd: str
) -> None:
    history: Any = RedisStateHistoryProvider(store, max_messages=64)
    other: Any = RedisStateHistoryProvider(store, source_id=odd)
    texts = [f"{n} \U0001f600" for n in range(10)]
    await history.save_messages(odd, [framework.Message(role="user", contents=[t]) for t in texts])
    await history.save_messages(odd, [])
    assert [each.text for each in await history.get_messages(odd)] == texts
    assert await other.get_messages(odd) == []
    many = [framework.Message(role="user", contents=[str(n)]) for n in range(200)]
    await history.save_messages(odd, many)
    kept = [each.text for each in await history.get_messages(odd)]
    assert kept == [str(n) for n in range(200)][-len(kept) :]
    assert 64 <= len(kept) <= 68
    await history.clear(odd)
    assert await left(store) == []
    with pytest.raises(InvalidField, match="session_id"):
        await history.get_messages(None)


async def test_all_is_sealed(store: RedisStateStore, settings: Settings) -> None:
    keys = SecretStr(Fernet.generate_key().decode())
    async with RedisStateStore(settings.model_copy(update={"payload_keys": keys})) as sealing:
        storage: Any = RedisStateCheckpointStorage(sealing)
        history: Any = RedisStateHistoryProvider(sealing)
        await storage.save(checkpoint_of("c", state={"k": "secret"}))
        await history.save_messages("s", [framework.Message(role="user", contents=["secret"])])
        of, commands = store.base.keys, store.base.scripts.transport.commands
        stored = [await commands.hgetall(of.framework_checkpoint("c"))]
        stored += [await commands.xrange(of.framework_messages("s", "redis_state").rows, "-", "+")]
        assert all(stored)
        assert "secret" not in repr(stored)
        assert (await storage.load("c")).state == {"k": "secret"}
        with pytest.raises(PayloadUnreadable):
            await RedisStateCheckpointStorage(store).load("c")
        with pytest.raises(PayloadUnreadable):
            await RedisStateHistoryProvider(store).get_messages("s")


async def test_what_a_killed_process_has_saved_is_there(
    store: RedisStateStore, settings: Settings
) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    processes = [
        await start_process("save_framework_checkpoints", argument | {"name": name})
        for name in ("a", "b")
    ]
    printed: list[str] = []
    try:
        for process in processes:
            printed += [(await process.stdout.readline()).decode().strip() for _ in range(30)]
        for process in processes:
            process.kill()
        assert [await process.wait() for process in processes] == [-9, -9]
    finally:
        await asyncio.gather(*map(children.end, processes))
    storage: Any = RedisStateCheckpointStorage(store)
    found = {each.checkpoint_id: each for each in await storage.list_checkpoints(workflow_name="w")}
    assert set(printed) <= set(found)
    assert all(each.state == {"name": name} for name, each in found.items())
    texts = [each.text for each in await RedisStateHistoryProvider(store).get_messages("s")]
    assert set(printed) <= set(texts)
    for name in ("a", "b"):
        own = [text for text in texts if text.startswith(name)]
        assert own == [f"{name}{n}" for n in range(len(own))]


async def test_checkpoints_and_messages_over_tls_on_links_that_die_are_there_once(
    settings: Settings, tmp_path: Path
) -> None:
    async with dying_links(settings, tmp_path) as (store, dying):
        storage: Any = RedisStateCheckpointStorage(store)
        history: Any = RedisStateHistoryProvider(store)

        async def serve(name: str) -> None:
            for n in range(3):
                await storage.save(checkpoint_of(f"{name} {n}", name, iteration_count=n))
                message = framework.Message(role="user", contents=[f"{n}"])
                await history.save_messages(name, [message])
            assert len(await storage.list_checkpoints(workflow_name=name)) == 3
            assert (await storage.get_latest(workflow_name=name)).iteration_count == 2
            assert await storage.delete(f"{name} 1")
            assert [each.text for each in await history.get_messages(name)] == ["0", "1", "2"]

        await dying(serve)
        for n in range(CALLERS):
            listed = await storage.list_checkpoint_ids(workflow_name=f"c{n}")
            assert listed == [f"c{n} 0", f"c{n} 2"]


async def test_a_save_whose_replies_are_lost_is_listed(
    settings: Settings, store: RedisStateStore
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        behind = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(behind) as other:
            storage: Any = RedisStateCheckpointStorage(other)
            await storage.save(checkpoint_of("first"))
            proxy.silence()
            saving = asyncio.create_task(storage.save(checkpoint_of("second")))
            key = store.base.keys.framework_checkpoint("second")
            await eventually(lambda: store.base.fetch(key), "the server has it")
            proxy.silence(silent=False)
            assert proxy.cut()
            await saving
            listed = await storage.list_checkpoint_ids(workflow_name="w")
            assert listed == ["first", "second"]


async def test_what_a_history_that_went_back_kept_is_listed() -> None:
    async with rolling_back() as redis, RedisStateStore.from_url(redis.url) as store:
        storage: Any = RedisStateCheckpointStorage(store)
        history: Any = RedisStateHistoryProvider(store)
        for name in ("kept", "lost"):
            await storage.save(checkpoint_of(name))
            message = framework.Message(role="user", contents=[name])
            await history.save_messages("s", [message])
            if name == "kept":
                await redis.mark()
        await redis.go_back()
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["kept"]
        assert (await storage.get_latest(workflow_name="w")).checkpoint_id == "kept"
        await storage.save(checkpoint_of("new"))
        await history.save_messages("s", [framework.Message(role="user", contents=["new"])])
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["kept", "new"]
        assert [each.text for each in await history.get_messages("s")] == ["kept", "new"]
