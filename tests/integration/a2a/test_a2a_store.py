"""The A2A SDK's plain task store and its push configurations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, TaskPushNotificationConfig, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from redis_state import ConfigError, RedisStateError, RedisStateStore, Settings
from redis_state.integrations import a2a as integration
from redis_state.integrations.a2a import (
    A2ABackend,
    A2AOptions,
    RedisPushNotificationConfigStore,
    RedisTaskStore,
    connect,
    create_push_config_store,
    create_queue_manager,
    create_task_store,
)
from redis_state.scripts import Scripts
from tests.support.a2a.rows import all_keys, drop
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    WORKING,
    caller,
    needs_rules_of_1_2,
    server_on,
    task,
)
from tests.support.scripts.replies import ask, lives

ME = caller()
OTHERS = [caller("bob"), caller("ann", tenant="x"), caller("", tenant="ann")]


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[A2ABackend]:
    async with server_on(settings) as made:
        yield made


@pytest.fixture
def tasks(backend: A2ABackend) -> RedisTaskStore:
    return create_task_store(backend)


@pytest.fixture
def configs(backend: A2ABackend) -> RedisPushNotificationConfigStore:
    return create_push_config_store(backend)


def hook(name: str = "", url: str = "https://hook.example/", **more: Any) -> Any:
    return TaskPushNotificationConfig(id=name, url=url, **more)


# Tasks


async def test_a_task_is_saved_replaced_read_and_deleted(tasks: RedisTaskStore) -> None:
    assert await tasks.get("t", ME) is None
    await tasks.save(task(text="1"), ME)
    await tasks.save(task(text="2", context="another"), ME)
    found = await tasks.get("t", ME)
    assert found is not None
    assert found == task(text="2", context="another")
    found.id = "changed"
    assert await tasks.get("t", ME) == task(text="2", context="another")
    await tasks.delete("t", ME)
    await tasks.delete("t", ME)
    assert await tasks.get("t", ME) is None
    with pytest.raises(TaskNotFoundError, match="deleted"):
        await tasks.save(task(), ME)


async def test_nobody_takes_over_a_task_by_its_id(tasks: RedisTaskStore) -> None:
    await tasks.save(task(text="mine"), ME)
    for other in OTHERS:
        assert await tasks.get("t", other) is None
        await tasks.save(task(text="theirs"), other)
        await tasks.delete("t", other)
    assert await tasks.get("t", ME) == task(text="mine")


async def test_a_cancel_keeps_what_another_server_saved_since_the_task_was_read(
    settings: Settings, tasks: RedisTaskStore
) -> None:
    async with server_on(settings) as elsewhere:
        working = create_task_store(elsewhere, holds_lease=True)
        await working.save(task(), ME)
        made = await tasks.get("t", ME)
        assert made is not None
        await working.save(task(text="result"), ME)
        made.status.state = CANCELED
        await tasks.save(made, ME)
        assert await working.get("t", ME) == task(state=CANCELED, text="result")


async def test_a_cancel_is_not_lost_to_a_later_write(tasks: RedisTaskStore) -> None:
    for end in (CANCELED, COMPLETED, FAILED):
        name = f"t{end}"
        await tasks.save(task(name), ME)
        await tasks.save(task(name, end), ME)
        for late in {WORKING, COMPLETED, CANCELED} - {end}:
            with pytest.raises(UnsupportedOperationError, match="terminal state"):
                await tasks.save(task(name, late, text="late"), ME)
        assert await tasks.get(name, ME) == task(name, end)
        # What an ended task is saved with once more is no revival: its last artifact, say.
        await tasks.save(task(name, end, text="more"), ME)
        assert await tasks.get(name, ME) == task(name, end, text="more")


async def test_ids_of_every_kind_are_tasks_of_their_own(tasks: RedisTaskStore) -> None:
    model = InMemoryTaskStore()
    parts = [
        "a",
        "A",
        "%61",
        "null",
        "456",
        "[1]",
        "{a}",
        "a|b",
        "a b",
        "*",
        ":",
        "\n",
        "\0",
        "ü",
        "u\u0308",
        "漢" * 99,
    ]
    names = [*parts, *(part + "x" * 300 for part in parts)]
    for store in (model, tasks):
        for number, name in enumerate(names):
            await store.save(task(name, context=name, ns=number), ME)
    for name in names:
        assert await tasks.get(name, ME) == await model.get(name, ME)
    with pytest.raises(InvalidParamsError, match="an id is needed"):
        await tasks.save(task(""), ME)


async def test_a_state_that_this_sdk_does_not_know_is_a_typed_error(
    tasks: RedisTaskStore, scripts: Scripts
) -> None:
    unknown: Any = 99
    with pytest.raises(InvalidParamsError, match="no state has the number 99"):
        await tasks.save(task(state=unknown), ME)
    # Another server, with a later SDK, may know it.
    await tasks.save(task(state=COMPLETED), ME)
    key = tasks.backend.tasks.keys(tasks.backend.ref("t", ME)).task
    await ask(scripts, "HSET", key, "state", "99")
    with pytest.raises(UnsupportedOperationError, match="terminal state: 99"):
        await tasks.save(task(), ME)
    nobody: Any = 7
    with pytest.raises(InvalidParamsError, match="task_id"):
        await tasks.get(nobody, ME)


@pytest.mark.parametrize(("end", "holds_lease"), [(COMPLETED, True), (CANCELED, False)])
async def test_nothing_of_a_task_outlives_it(
    settings: Settings,
    scripts: Scripts,
    end: TaskState,
    holds_lease: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    finished_ms = settings.finished_task_ttl.total_seconds() * 1000
    active_ms = settings.active_task_ttl.total_seconds() * 1000
    assert finished_ms * 2 < active_ms
    async with server_on(settings) as backend:
        store = create_task_store(backend, holds_lease=holds_lease)
        configs = create_push_config_store(backend)
        keys = backend.tasks.keys(backend.ref("t", ME))
        push, index = keys.configs, backend.store.base.keys.a2a_config_scopes("t")
        await store.save(task(), ME)
        await configs.set_info("t", hook(), ME)
        # While it is worked on, they live on with it, and can be found as long.
        for key in (push, index):
            await ask(scripts, "PEXPIRE", key, 1_000)
        await store.save(task(text="more"), ME)
        await configs.get_info_for_dispatch("t")
        for left in await lives(scripts, push, index):
            assert left > active_ms * 0.9
        await store.save(task(state=end), ME)
        assert len(await configs.get_info_for_dispatch("t")) == 1
        leases = [keys.lease] if holds_lease else []
        for left in await lives(scripts, keys.task, push, *leases):
            assert 0 < left <= finished_ms + 60_000
        await store.delete("t", ME)
        assert await configs.get_info_for_dispatch("t") == []
        assert await lives(scripts, push) == [-2]


async def test_a_deletion_leaves_another_owners_configurations(
    tasks: RedisTaskStore, configs: RedisPushNotificationConfigStore
) -> None:
    for who in (ME, OTHERS[0]):
        await tasks.save(task(), who)
        await configs.set_info("t", hook(token=who.user.user_name), who)
    await tasks.delete("t", ME)
    assert [one.token for one in await configs.get_info_for_dispatch("t")] == ["bob"]


async def test_an_unreadable_task_is_told_and_left_out_of_lists(
    tasks: RedisTaskStore, scripts: Scripts
) -> None:
    for name in ("good", "bad"):
        await tasks.save(task(name), ME)
    key = tasks.backend.tasks.keys(tasks.backend.ref("bad", ME)).task
    await ask(scripts, "HSET", key, "body", b"\xff secret")
    page = await tasks.list(ListTasksRequest(), ME)
    assert [one.id for one in page.tasks] == ["good"]
    with pytest.raises(Exception, match="cannot be read") as unreadable:
        await tasks.get("bad", ME)
    assert "secret" not in str(unreadable.value)


# Push configurations


@pytest.mark.parametrize("ours", [pytest.param(False, marks=needs_rules_of_1_2), True])
async def test_configurations_are_set_replaced_and_deleted_as_in_the_sdks_store(
    ours: bool,  # noqa: FBT001
    configs: RedisPushNotificationConfigStore,
) -> None:
    store: Any = configs if ours else InMemoryPushNotificationConfigStore()

    async def names(context: ServerCallContext = ME) -> list[tuple[str, str]]:
        return [(one.id, one.url) for one in await store.get_info("t", context)]

    assert await names() == []
    await store.set_info("t", hook(), ME)
    (unnamed,) = await store.get_info("t", ME)
    assert (unnamed.id, unnamed.task_id) == ("t", "t")
    for name in ("b", "a", "c"):
        await store.set_info("t", hook(name), ME)
    await store.set_info("t", hook("b", "https://new/"), ME)
    assert [name for name, _ in await names()] == ["t", "a", "c", "b"]
    assert (await names())[-1] == ("b", "https://new/")
    await store.set_info("another", hook("x"), ME)
    await store.delete_info("t", ME, "a")
    await store.delete_info("t", ME, "unknown")
    await store.delete_info("unknown", ME)
    assert [name for name, _ in await names()] == ["t", "c", "b"]
    # After one was deleted, a new one takes nobody's place.
    await store.set_info("t", hook("d"), ME)
    assert [name for name, _ in await names()] == ["t", "c", "b", "d"]
    await store.delete_info("t", ME)
    assert await names() == []
    assert [one.id for one in await store.get_info("another", ME)] == ["x"]


async def test_owners_are_apart_and_dispatch_sees_all(
    configs: RedisPushNotificationConfigStore,
) -> None:
    everybody = [ME, *OTHERS]
    for number, who in enumerate(everybody):
        for name in ("", "c", "a b"):
            await configs.set_info("t", hook(name, f"https://{number}/", token=str(number)), who)
    for number, who in enumerate(everybody):
        found = await configs.get_info("t", who)
        assert [(one.id, one.token) for one in found] == [
            (name, str(number)) for name in ("t", "c", "a b")
        ]
    assert len(await configs.get_info_for_dispatch("t")) == 12
    await configs.delete_info("t", OTHERS[0])
    await configs.delete_info("t", OTHERS[1], "c")
    dispatched = await configs.get_info_for_dispatch("t")
    assert len(dispatched) == 8
    assert {one.url for one in dispatched} == {"https://0/", "https://2/", "https://3/"}
    assert await configs.get_info_for_dispatch("unknown") == []


async def test_configurations_stand_in_their_owners_slot_and_go_with_the_task_in_one_step(
    tasks: RedisTaskStore, configs: RedisPushNotificationConfigStore, scripts: Scripts
) -> None:
    keys = tasks.backend.tasks.keys(tasks.backend.ref("t", ME))
    assert len({key.partition("{")[2].partition("}")[0] for key in all_keys(keys)}) == 1
    await tasks.save(task(), ME)
    await configs.set_info("t", hook(), ME)
    assert await ask(scripts, "EXISTS", keys.configs) == 1
    # The task's own script takes them along: there is no moment with one and without the other.
    await drop(scripts, keys)
    assert await configs.get_info("t", ME) == await configs.get_info_for_dispatch("t") == []
    with pytest.raises(TaskNotFoundError):
        await configs.set_info("t", hook(), ME)


async def test_configurations_are_bounded_and_do_not_stay(
    settings: Settings, scripts: Scripts
) -> None:
    async with server_on(settings, max_push_configs=3, max_bytes=1000) as backend:
        configs = create_push_config_store(backend)
        for name in ("a", "b", "c"):
            await configs.set_info("t", hook(name), ME)
        with pytest.raises(InvalidParamsError, match="a task may have 3"):
            await configs.set_info("t", hook("d"), ME)
        # What one owner has does not count for another.
        for who in OTHERS:
            await configs.set_info("t", hook("d"), who)
        await configs.set_info("t", hook("a", "https://new/"), ME)
        with pytest.raises(InvalidParamsError, match="too large"):
            await configs.set_info("t", hook("a", token="secret" * 999), ME)
        with pytest.raises(InvalidParamsError, match="task id"):
            await configs.set_info("", hook("a"), ME)
        key = backend.tasks.keys(backend.ref("t", ME)).configs
        (left,) = await lives(scripts, key)
        assert 0 < left <= settings.active_task_ttl.total_seconds() * 1000
        await configs.delete_info("t", ME)
        assert await lives(scripts, key) == [-2]


async def test_configurations_set_at_once_are_all_kept(
    configs: RedisPushNotificationConfigStore,
) -> None:
    names = [f"c{number}" for number in range(40)]
    await asyncio.gather(*(configs.set_info("t", hook(name), ME) for name in names))
    assert sorted(one.id for one in await configs.get_info("t", ME)) == sorted(names)


async def test_an_unreadable_configuration_is_left_out(
    configs: RedisPushNotificationConfigStore, scripts: Scripts
) -> None:
    for name in ("a", "b"):
        await configs.set_info("t", hook(name), ME)
    key = configs.backend.tasks.keys(configs.backend.ref("t", ME)).configs
    await ask(scripts, "HSET", key, "a", b"1 \xff")
    assert [one.id for one in await configs.get_info("t", ME)] == ["b"]


# Options


async def test_a_backend_is_made_of_a_store_a_url_or_the_environment(
    settings: Settings, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_STATE_URL", settings.url.get_secret_value())
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", settings.namespace)
    backends = [
        connect(store),
        connect(settings.url.get_secret_value(), namespace=settings.namespace),
        connect(),
    ]
    await create_task_store(backends[0]).save(task(), ME)
    for backend in backends:
        assert connect(backend) is backend
        assert await create_task_store(backend).get("t", ME) == task()
        await backend.aclose()
        await backend.aclose()
    # A store that was given is not closed with the backend.
    assert await store.base.fetch(f"{settings.namespace}:nothing") == []


@pytest.mark.parametrize(
    "make", [create_task_store, create_push_config_store, create_queue_manager]
)
async def test_closing_a_part_closes_its_backend(settings: Settings, make: Any) -> None:
    part = make(server_on(settings))
    await part.aclose()
    with pytest.raises(RedisStateError, match="closed"):
        await create_task_store(part.backend).get("t", ME)


def test_options_that_cannot_work_are_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrongs: list[dict[str, Any]] = [
        {"lease_s": 0.05},
        {"lease_s": float("nan")},
        {"max_bytes": 0},
        {"max_events": 0},
        {"max_push_configs": -1},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            A2AOptions(**wrong)
    backend = server_on(settings)
    with pytest.raises(ConfigError, match="no further options"):
        connect(backend, A2AOptions())
    with pytest.raises(ConfigError, match="no further settings"):
        connect(backend.store, namespace="x")
    assert create_queue_manager(backend).backend is backend
    # As on an SDK that is too old for versions.
    monkeypatch.setitem(sys.modules, "a2a.server.cluster", None)
    for make in (integration.create_versioned_task_store, integration.create_event_stream):
        with pytest.raises(ConfigError, match=r"a2a-sdk 1\.2"):
            make(backend)
