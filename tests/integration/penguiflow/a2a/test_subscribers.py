"""Subscribers of PenguiFlow's A2A tasks: each update once and in order, over a cut or a stall."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("penguiflow_a2a", reason="needs the published package")

from penguiflow_a2a.models import (
    TaskState,
)

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowA2ATaskStore
from redis_state.integrations.penguiflow.stores import a2a_tasks
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import PENGUIFLOW_SCOPE, a2a_keys
from tests.processes.a2a.use_a2a_tasks import TASK, artifact, message, reported, serving
from tests.support.penguiflow.a2a_tasks import DONE, WORKING, hear, listing, make, task
from tests.support.samples import shared
from tests.support.scripts.replies import HOUR, ask
from tests.support.servers.faults import Proxy, start_process


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
