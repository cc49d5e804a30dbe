"""PenguiFlow's A2A task store: upstream's rules on both stores, then what a shared one adds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("penguiflow_a2a", reason="needs the published package")

from penguiflow_a2a.models import (
    ListTasksResponse,
    PushNotificationConfig,
    StreamResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from penguiflow_a2a.store import InMemoryTaskStore

from redis_state import ConfigError, InvalidField, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.integrations.penguiflow import PenguiflowA2ATaskStore, create_a2a_task_store
from redis_state.integrations.penguiflow.stores import a2a_tasks
from redis_state.primitives.log import Bounds, Log
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import PENGUIFLOW_SCOPE, a2a_keys
from redis_state.transport.wire.resp import Argument, PreparedScript
from tests.processes.a2a.use_a2a_tasks import TASK, artifact, message, reported, serving
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives
from tests.support.servers.faults import Proxy, run_processes, start_process
from tests.support.sizes import sizes

WORKING = TaskStatus(state=TaskState.WORKING, timestamp="2026-01-01T00:00:00.000Z")
DONE = TaskStatus(state=TaskState.COMPLETED, message=message("bye"))


def make(settings: Settings, **options: Any) -> PenguiflowA2ATaskStore:
    url = options.pop("url", settings.url.get_secret_value())
    return create_a2a_task_store(url=url, namespace=settings.namespace, **options)


def task(task_id: str = TASK, context_id: str = "context", **more: Any) -> Task:
    submitted = TaskStatus(state=TaskState.SUBMITTED)
    fields: dict[str, Any] = {"status": submitted, **more}
    return Task(id=task_id, context_id=context_id, **fields)


def push(name: str | None, **more: Any) -> TaskPushNotificationConfig:
    config = PushNotificationConfig(url="https://hook", **more)
    return TaskPushNotificationConfig(name=name, push_notification_config=config)


async def listing(store: Any, **more: Any) -> ListTasksResponse:
    requested: dict[str, Any] = {
        "context_id": None,
        "status": None,
        "page_size": 50,
        "page_token": None,
        "history_length": None,
        "status_timestamp_after": None,
        "include_artifacts": True,
    }
    found: ListTasksResponse = await store.list_tasks(**{**requested, **more})
    return found


async def hear(queue: asyncio.Queue[StreamResponse], count: int) -> list[StreamResponse]:
    async with asyncio.timeout(60):
        return [await queue.get() for _ in range(count)]


@pytest.fixture
async def tasks(settings: Settings) -> AsyncIterator[PenguiflowA2ATaskStore]:
    async with make(settings) as made:
        yield made


@pytest.fixture(params=["upstream", "ours"])
async def either(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Any]:
    """Give upstream's own store and ours, so that both are asked the same."""
    if request.param == "upstream":
        yield InMemoryTaskStore()
        return
    async with make(settings) as made:
        yield made


# The same on upstream's store and ours


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"history": [], "artifacts": [], "metadata": {}},
        {"history": [message("a"), message("b")], "metadata": {"é": [1, None, {"x": 1.5}]}},
        {"artifacts": [artifact("x", "1"), artifact("x", "2")], "status": DONE},
    ],
)
async def test_a_task_comes_back_as_it_was_created(either: Any, more: dict[str, Any]) -> None:
    made = task(**more)
    assert await either.create_task(made) == made
    assert await either.get_task(TASK) == made
    with pytest.raises(ValueError, match="already exists"):
        await either.create_task(task(context_id="another"))
    assert await either.get_task(TASK) == made


async def test_a_task_that_is_given_back_is_a_copy(either: Any) -> None:
    made = await either.create_task(task(metadata={"a": 1}, history=[message("a")]))
    made.metadata["a"] = 2
    found = await either.get_task(TASK)
    found.history.append(message("b"))
    assert await either.get_task(TASK) == task(metadata={"a": 1}, history=[message("a")])


async def test_history_is_in_order_and_cut_from_its_newest_end(either: Any) -> None:
    await either.create_task(task())
    assert (await either.get_task(TASK)).history is None
    assert (await either.get_task(TASK, history_length=3)).history == []
    stated = [message(str(n)) for n in range(5)]
    for one in stated:
        await either.add_history(TASK, one)
    for length, wanted in ((None, stated), (2, stated[3:]), (9, stated), (0, None), (-1, None)):
        assert (await either.get_task(TASK, history_length=length)).history == wanted


async def test_parts_are_added_to_the_first_artifact_of_their_id(either: Any) -> None:
    await either.create_task(task(artifacts=[artifact("a", "0")]))
    for name, text, append in [
        ("b", "1", True),
        ("b", "2", False),
        ("b", "3", True),
        ("a", "4", True),
        ("a", "5", False),
        ("a", "6", True),
    ]:
        await either.add_artifact(TASK, artifact(name, text), append=append, last_chunk=False)
    found = (await either.get_task(TASK)).artifacts
    joined = [(one.artifact_id, [part.text for part in one.parts]) for one in found]
    assert joined == [("a", ["0", "4", "6"]), ("b", ["1", "3"]), ("b", ["2"]), ("a", ["5"])]


async def test_an_unknown_task_is_a_key_error_everywhere(either: Any) -> None:
    calls = [
        either.add_history("x", message("a")),
        either.update_status("x", WORKING, final=False),
        either.add_artifact("x", artifact("a", "1"), append=True, last_chunk=True),
        either.get_task("x"),
        either.subscribe("x"),
        either.set_push_config("x", "c", push("c")),
        either.get_push_config("x", "c"),
        either.list_push_configs("x", page_size=1, page_token=None),
        either.delete_push_config("x", "c"),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="x"):
            await call


async def test_push_configs_are_listed_by_name_in_pages(either: Any) -> None:
    await either.create_task(task())
    configs = {"c1": push("b"), "c2": push("a", token="t"), "c3": push(None), "c4": push("c")}
    for config_id, config in configs.items():
        assert await either.set_push_config(TASK, config_id, config) == config
    await either.set_push_config(TASK, "c4", push("c", id="new"))
    assert await either.get_push_config(TASK, "c2") == configs["c2"]
    names: list[str | None] = []
    token: str | None = None
    while token != "":
        page = await either.list_push_configs(TASK, page_size=3, page_token=token)
        names += [config.name for config in page.configs]
        token = page.next_page_token
    assert names == [None, "a", "b", "c"]
    await either.delete_push_config(TASK, "c1")
    await either.delete_push_config(TASK, "c1")
    with pytest.raises(KeyError, match="c1"):
        await either.get_push_config(TASK, "c1")
    with pytest.raises(ValueError, match="page_size"):
        await either.list_push_configs(TASK, page_size=0, page_token=None)
    with pytest.raises(ValueError, match="page token"):
        await either.list_push_configs(TASK, page_size=1, page_token="?")


async def test_tasks_are_listed_the_last_updated_first_under_every_filter(either: Any) -> None:
    for n in range(6):
        history = [message("a"), message("b")]
        made = task(f"t{n}", f"c{n % 2}", history=history, artifacts=[artifact("x", "1")])
        await either.create_task(made)
    await either.update_status("t1", WORKING, final=False)
    await either.add_history("t0", message("c"))
    await either.add_artifact("t2", artifact("x", "2"), append=True, last_chunk=True)

    async def names(**more: Any) -> list[str]:
        return [one.id for one in (await listing(either, **more)).tasks]

    assert await names() == ["t2", "t0", "t1", "t5", "t4", "t3"]
    assert await names(context_id="c1") == ["t1", "t5", "t3"]
    assert await names(context_id="") == await names()
    assert await names(context_id="nobody") == []
    assert await names(status=TaskState.WORKING) == ["t1"]
    assert await names(status=TaskState.SUBMITTED, context_id="c0") == ["t2", "t0", "t4"]
    whole = (await listing(either, page_size=1)).tasks[0]
    assert (len(whole.history or []), len(whole.artifacts or [])) == (2, 1)
    bare = (await listing(either, page_size=1, history_length=0, include_artifacts=False)).tasks[0]
    assert (bare.history, bare.artifacts) == (None, None)


async def test_a_list_is_read_in_pages_with_the_total(either: Any) -> None:
    for n in range(7):
        await either.create_task(task(f"t{n}"))
    found: list[str] = []
    token: str | None = None
    sizes: list[int] = []
    while token != "":
        page = await listing(either, page_size=3, page_token=token)
        assert (page.page_size, page.total_size) == (3, 7)
        found += [one.id for one in page.tasks]
        sizes.append(len(page.tasks))
        token = page.next_page_token
    assert found == [f"t{n}" for n in reversed(range(7))]
    assert sizes == [3, 3, 1]
    with pytest.raises(ValueError, match="page token"):
        await listing(either, page_token="?")


async def test_a_filtered_page_reads_its_own_tasks_and_no_others(
    tasks: PenguiflowA2ATaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(tasks.create_task(task(f"t{n}", f"c{n % 2}")) for n in range(300)))
    scripts, calls = tasks.base.scripts, Counter[str]()
    send = scripts._send

    def counted(prepared: PreparedScript, more: tuple[Argument, ...]) -> asyncio.Future[Any]:
        calls[prepared.script.name] += 1
        return send(prepared, more)

    monkeypatch.setattr(scripts, "_send", counted)
    page = await listing(tasks, context_id="c1", page_size=3)
    assert (len(page.tasks), page.total_size) == (3, 150)
    assert calls == {"list_a2a_tasks": 1, "read_a2a_task": 3}


async def test_only_tasks_updated_after_a_moment_are_listed(either: Any) -> None:
    await either.create_task(task("old"))
    moment = datetime.now().astimezone()
    far = moment + timedelta(hours=1)
    assert (await listing(either, status_timestamp_after=far)).total_size == 0
    past = moment - timedelta(hours=1)
    assert (await listing(either, status_timestamp_after=past)).total_size == 1


async def test_a_subscriber_hears_what_comes_in_order_until_he_stops(either: Any) -> None:
    await either.create_task(task())
    await either.update_status(TASK, WORKING, final=False, metadata={"name": "before"})
    queue, unsubscribe = await either.subscribe(TASK)
    await either.update_status(TASK, WORKING, final=False, metadata={"name": "now"})
    await either.add_history(TASK, message("not told"))
    added = artifact("a", "1")
    await either.add_artifact(TASK, added, append=True, last_chunk=True, metadata={"m": 1})
    await either.update_status(TASK, DONE, final=True)
    first, second, third = await hear(queue, 3)
    assert first.status_update is not None
    assert first.status_update.metadata == {"name": "now"}
    assert first.status_update.status == WORKING
    update = second.artifact_update
    assert update is not None
    assert (update.artifact, update.append, update.last_chunk) == (added, True, True)
    assert (update.task_id, update.context_id, update.metadata) == (TASK, "context", {"m": 1})
    assert third.status_update is not None
    assert (third.status_update.final, third.status_update.metadata) == (True, {})
    await unsubscribe()
    await unsubscribe()
    await either.update_status(TASK, WORKING, final=False)
    assert queue.empty()


# What upstream's cannot


async def test_a_page_token_survives_changes_between_the_pages(
    tasks: PenguiflowA2ATaskStore,
) -> None:
    for n in range(6):
        await tasks.create_task(task(f"t{n}"))
    first = await listing(tasks, page_size=2)
    await tasks.create_task(task("new"))
    await tasks.add_history("t5", message("a"))
    await tasks.add_history("t4", message("a"))
    second = await listing(tasks, page_size=2, page_token=first.next_page_token)
    third = await listing(tasks, page_size=9, page_token=second.next_page_token)
    found = [one.id for page in (first, second, third) for one in page.tasks]
    assert found == ["t5", "t4", "t3", "t2", "t1", "t0"]
    nothing = await listing(tasks, page_size=0, page_token=first.next_page_token)
    assert (nothing.tasks, nothing.next_page_token) == ([], first.next_page_token)


async def test_whoever_comes_too_late_hears_the_end_at_once(tasks: PenguiflowA2ATaskStore) -> None:
    await tasks.create_task(task())
    await tasks.update_status(TASK, DONE, final=True, metadata={"m": 1})
    queue, unsubscribe = await tasks.subscribe(TASK)
    (event,) = await hear(queue, 1)
    assert event.status_update is not None
    assert event.status_update.final
    assert event.status_update.status.state == DONE.state
    assert event.status_update.metadata == {"m": 1}
    await unsubscribe()


async def test_what_was_dropped_before_it_could_be_read_comes_as_the_task_itself(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = make(settings, url=proxy.url)
        async with make(settings, max_updates_per_a2a_task=10) as near:
            await near.create_task(task())
            queue, unsubscribe = await far.subscribe(TASK)
            await near.add_artifact(TASK, artifact("a", "0"), append=True, last_chunk=False)
            assert reported((await hear(queue, 1))[0]) == "0"
            proxy.refuse()
            proxy.cut()
            for n in range(1, 40):
                part = artifact("a", str(n))
                await near.add_artifact(TASK, part, append=True, last_chunk=False)
            proxy.refuse(refusing=False)
            (event,) = await hear(queue, 1)
            assert event.task is not None
            (whole,) = event.task.artifacts or []
            assert [part.text for part in whole.parts] == [str(n) for n in range(40)]
            await near.update_status(TASK, DONE, final=True)
            assert reported((await hear(queue, 1))[0]) == "end"
            await unsubscribe()
            assert proxy.cuts
        await far.aclose()


@pytest.mark.chaos
@pytest.mark.parametrize("ended", [True, False])
async def test_a_subscriber_whose_updates_are_gone_hears_of_an_end_or_of_nothing_more(
    settings: Settings,
    scripts: Scripts,
    caplog: pytest.LogCaptureFixture,
    ended: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = make(settings, url=proxy.url)
        async with make(settings, max_updates_per_a2a_task=10) as near:
            await near.create_task(task())
            queue, unsubscribe = await far.subscribe(TASK)
            await near.update_status(TASK, WORKING, final=False, metadata={"name": "here"})
            assert reported((await hear(queue, 1))[0]) == "here"
            proxy.refuse()
            assert proxy.cut()
            for _ in range(40):
                await near.add_history(TASK, message("a"))
            await near.update_status(TASK, DONE, final=True)
            if not ended:
                await ask(scripts, "DEL", near.base.keys.a2a_task(PENGUIFLOW_SCOPE, TASK))
            proxy.refuse(refusing=False)
            if ended:
                whole, end = await hear(queue, 2)
                assert whole.task is not None
                assert whole.task.status.state == DONE.state
                assert reported(end) == "end"
            else:
                await eventually(lambda: not far._followers, "the subscription ends")
                assert "has ended" in caplog.text
            assert queue.empty()
            await unsubscribe()
        await far.aclose()


@pytest.mark.chaos
async def test_a_server_away_beyond_all_patience_is_waited_for_and_nothing_is_heard_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(a2a_tasks, "_PATIENCE_S", 0.05)
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as near:
        far = make(settings, url=proxy.url, call_timeout_s=1.0)
        await near.create_task(task())
        queue, unsubscribe = await far.subscribe(TASK)

        async def add(name: str) -> None:
            await near.update_status(TASK, WORKING, final=False, metadata={"name": name})

        await add("1")
        assert reported((await hear(queue, 1))[0]) == "1"
        proxy.refuse()
        assert proxy.cut()
        await add("2")
        await eventually(lambda: "waits for its server" in caplog.text, "patience is at its end")
        proxy.refuse(refusing=False)
        await add("3")
        assert [reported(event) for event in await hear(queue, 2)] == ["2", "3"]
        await unsubscribe()
        assert queue.empty()
        await far.aclose()


async def test_an_update_that_cannot_be_read_is_left_out(
    tasks: PenguiflowA2ATaskStore,
) -> None:
    await tasks.create_task(task())
    queue, unsubscribe = await tasks.subscribe(TASK)
    events = tasks.base.keys.a2a_events(PENGUIFLOW_SCOPE, TASK)
    rows = Log(tasks.base.scripts, events, Bounds(0, HOUR), announce=True)
    odd = [b"{]", b'[1,"status"]', b'[1,"artifact",{},true,true,{}]', b'[1,"later",1]']
    await rows.append([(b"x%d" % n, b"o" + row) for n, row in enumerate(odd)])
    await tasks.update_status(TASK, DONE, final=True)
    assert reported((await hear(queue, 1))[0]) == "end"
    assert tasks.base.counters.unreadable_rows == 3
    await unsubscribe()


async def test_closing_the_store_ends_its_subscriptions(settings: Settings) -> None:
    closed = make(settings)
    await closed.create_task(task())
    _, unsubscribe = await closed.subscribe(TASK)
    await closed.aclose()
    assert not closed._followers
    await unsubscribe()


async def test_a_task_is_gone_as_a_whole_when_its_time_is_over(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, a2a_task_ttl=timedelta(hours=1)) as tasks:
        await tasks.create_task(task(history=[message("a")], artifacts=[artifact("a", "1")]))
        await tasks.set_push_config(TASK, "c", push("c"))
        await tasks.update_status(TASK, WORKING, final=False)
        keys = a2a_keys(tasks.base.keys, PENGUIFLOW_SCOPE, TASK)
        names = [keys.task, keys.history, keys.artifacts, keys.configs, keys.books.index]
        assert all(HOUR * 0.9 < left <= HOUR for left in await lives(scripts, *names))
        await ask(scripts, "DEL", keys.task)
        with pytest.raises(KeyError):
            await tasks.get_task(TASK)
        assert (await listing(tasks)).tasks == []
        # Made anew it has nothing of the old one.
        await tasks.create_task(task())
        assert await tasks.get_task(TASK) == task()
        assert (await tasks.list_push_configs(TASK, page_size=9, page_token=None)).configs == []


async def test_a_task_that_cannot_be_read_is_set_aside(
    tasks: PenguiflowA2ATaskStore, scripts: Scripts
) -> None:
    await tasks.create_task(task())
    await ask(scripts, "HSET", tasks.base.keys.a2a_task(PENGUIFLOW_SCOPE, TASK), "body", b"{]")
    with pytest.raises(KeyError):
        await tasks.get_task(TASK)
    assert (await listing(tasks)).tasks == []
    assert tasks.base.counters.unreadable_rows == 1


async def test_bad_input_is_named(tasks: PenguiflowA2ATaskStore) -> None:
    many = [message("a")] * 5001
    with pytest.raises(InvalidField, match="history"):
        await tasks.create_task(task(history=many))
    await tasks.create_task(task(history=many[:5000]))
    assert len((await tasks.get_task(TASK)).history or []) == 5000
    odd = TaskStatus.model_construct(state="resting")
    with pytest.raises(InvalidField, match=r"status\.state"):
        await tasks.update_status(TASK, odd, final=False)


# Several processes


def shared(settings: Settings, **more: Any) -> dict[str, Any]:
    url = settings.url.get_secret_value()
    return {"url": url, "namespace": settings.namespace, **more}


@pytest.mark.slow
@pytest.mark.parametrize("processes", sizes(3, 8))
async def test_8_processes_lose_nothing_of_one_task_and_all_see_one_order(
    tasks: PenguiflowA2ATaskStore, settings: Settings, processes: int
) -> None:
    await tasks.create_task(task())
    queue, unsubscribe = await tasks.subscribe(TASK)
    times = 25
    writers = [shared(settings, does="write", who=f"w{n}", times=times) for n in range(processes)]
    await run_processes("use_a2a_tasks", writers)
    wanted = sorted(f"w{w}-{n}" for w in range(processes) for n in range(times))
    found = await tasks.get_task(TASK)
    history = [one.message_id for one in found.history or []]
    whole, *alone = sorted(found.artifacts or [], key=lambda one: one.artifact_id != "shared")
    parts = [str(part.text).removeprefix("shared ") for part in whole.parts]
    apart = [one.artifact_id for one in alone]
    heard = [reported(event) for event in await hear(queue, 3 * len(wanted))]
    await unsubscribe()
    assert queue.empty()
    names = [name for name in heard if " " not in name]
    for order in (history, parts, apart, names):
        assert sorted(order) == wanted
        for writer in range(processes):
            own = [name for name in order if name.startswith(f"w{writer}-")]
            assert own == [f"w{writer}-{n}" for n in range(times)]
    # What is kept and what was told are one order.
    assert [name.removeprefix("shared ") for name in heard if name.startswith("shared")] == parts
    assert (await tasks.get_task(TASK)) == found


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_subscriber_that_is_cut_off_again_and_again_hears_each_of_1000_once(
    tasks: PenguiflowA2ATaskStore, settings: Settings
) -> None:
    await tasks.create_task(task())
    async with Proxy(settings.url.get_secret_value()) as proxy:
        argument = {**shared(settings, does="follow"), "url": proxy.url}
        process = await start_process("use_a2a_tasks", argument)

        async def subscribed() -> bool:
            found = await listing(tasks, status=TaskState.WORKING)
            return bool(found.tasks)

        await eventually(subscribed, "the subscriber is there", timeout_s=30)
        for n in range(1000):
            part = artifact("a", str(n))
            await tasks.add_artifact(TASK, part, append=n > 0, last_chunk=False)
            if n % 100 == 50:
                accepted = proxy.accepted
                assert proxy.cut()
                await eventually(lambda seen=accepted: proxy.accepted > seen, "it connects again")  # type: ignore[misc]
        await tasks.update_status(TASK, DONE, final=True)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        assert proxy.cuts == 10
    heard = json.loads(out.decode().splitlines()[-1])
    assert heard == ["subscribed", *map(str, range(1000)), "end"]


@pytest.mark.slow
async def test_upstreams_server_streams_a_task_that_runs_in_another_process(
    tasks: PenguiflowA2ATaskStore, settings: Settings
) -> None:
    process = await start_process("use_a2a_tasks", shared(settings, does="serve"))
    assert process.stdout is not None
    task_id = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()

    async def speaks() -> bool:
        return bool((await tasks.get_task(task_id)).artifacts)

    await eventually(speaks, "the first chunk is there", timeout_s=30)
    async with serving(tasks, asyncio.Event()) as client:
        listed = (await client.get("/tasks")).json()
        assert [one["id"] for one in listed["tasks"]] == [task_id]
        streaming = asyncio.create_task(client.get(f"/tasks/{task_id}:subscribe"))
        await eventually(lambda: tasks._followers, "the stream has begun")
        await tasks.update_status(task_id, WORKING, final=False, metadata={"go": "on"})
        answer = await asyncio.wait_for(streaming, 60)
        events = [
            json.loads(line.removeprefix("data: "))
            for line in answer.text.splitlines()
            if line.startswith("data: ")
        ]
        found = (await client.get(f"/tasks/{task_id}")).json()
        again = await client.get(f"/tasks/{task_id}:subscribe")
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    assert events[0]["task"]["id"] == task_id
    updates = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    chunks = [update["artifact"]["parts"][0]["text"] for update in updates]
    assert chunks == ["chunk 1", "chunk 2"]
    assert updates[-1]["lastChunk"]
    assert events[-1]["statusUpdate"]["final"]
    assert found["status"]["state"] == "completed"
    (output,) = found["artifacts"]
    assert [part["text"] for part in output["parts"]] == ["chunk 0", "chunk 1", "chunk 2"]
    assert again.status_code == 400
    assert not tasks._followers


# A server that does not reply for a while


async def test_what_a_run_changes_is_changed_once_after_a_stall_longer_than_a_call_may_take(
    settings: Settings, scripts: Scripts
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as near:
        hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0}
        async with make(settings, url=proxy.url, **hurry) as far:
            await far.create_task(task())
            queue, unsubscribe = await near.subscribe(TASK)
            proxy.silence()
            changes = [
                far.add_artifact(TASK, artifact("a", "x"), append=True, last_chunk=False),
                far.update_status(TASK, DONE, final=True),
                far.add_history(TASK, message("m")),
                far.set_push_config(TASK, "p", push("p")),
                far.list_push_configs(TASK, page_size=1, page_token=None),
            ]
            running = asyncio.gather(*changes)
            await eventually(lambda: proxy.swallowed > 0, "a reply is lost")
            await clock_passes(scripts, await clock_ms(scripts) + 600)
            assert not running.done()
            proxy.silence(silent=False)
            proxy.cut()
            async with asyncio.timeout(20):
                await running
            assert sorted([reported(event) for event in await hear(queue, 2)]) == ["end", "x"]
            assert queue.empty()
            await unsubscribe()
            kept = await near.get_task(TASK)
            assert [part.text for part in (kept.artifacts or [])[0].parts] == ["x"]
            assert [stated.message_id for stated in kept.history or []] == ["m"]


async def test_a_change_is_not_repeated_beyond_the_patience_of_its_store(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0, "reconnect_timeout_s": 0}
        async with make(settings, url=proxy.url, **hurry) as far:
            await far.create_task(task())
            proxy.silence()
            with pytest.raises(OutcomeUnknown):
                await far.update_status(TASK, DONE, final=True)
            assert proxy.swallowed > 0
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="reconnect_timeout_s"):
            make(settings, reconnect_timeout_s=wrong)


async def test_an_empty_id_of_a_push_configuration_is_one_like_any_other(either: Any) -> None:
    await either.create_task(task())
    for config_id in ("a", "", "="):
        await either.set_push_config(TASK, config_id, push(f"n{config_id}"))
    assert (await either.get_push_config(TASK, "")).name == "n"
    await either.delete_push_config(TASK, "")
    with pytest.raises(KeyError):
        await either.get_push_config(TASK, "")
    left = await either.list_push_configs(TASK, page_size=9, page_token=None)
    assert [config.name for config in left.configs] == ["n=", "na"]


async def test_a_list_is_read_past_an_id_of_any_length(either: Any) -> None:
    names = ["a", "b" * 50_000, "c"]
    for name in names:
        await either.create_task(task(name))
    found, token = list[str](), None
    while token != "":
        page = await listing(either, page_size=1, page_token=token)
        found += [one.id for one in page.tasks]
        token = page.next_page_token
    assert found == names[::-1]
    assert len((await listing(either, page_size=10**20)).tasks) == 3


async def test_a_subscriber_of_a_task_whose_updates_the_server_lost_is_not_flooded(
    tasks: PenguiflowA2ATaskStore,
) -> None:
    await tasks.create_task(task())
    await tasks.update_status(TASK, WORKING, final=False)
    log = a2a_keys(tasks.base.keys, PENGUIFLOW_SCOPE, TASK).events
    await ask(tasks.base.scripts, "DEL", log.rows, log.ids)
    queue, stop = await tasks.subscribe(TASK)
    await tasks.update_status(TASK, DONE, final=True)
    first, *_ = await hear(queue, 1)
    known = first.task or first.status_update
    assert known is not None
    assert known.status.state == TaskState.COMPLETED
    await stop()
    assert queue.qsize() <= 1
