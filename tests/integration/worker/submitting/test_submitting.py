"""Submitting: what the record, the queue and the watch list have of a task."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    InvalidField,
    KeyReused,
)
from redis_state.models import (
    SteeringEventType,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
)
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.queue.jobs.job_format import serialize
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import (
    SESSION,
    agent,
    client_of,
    key_of_queue,
    pool,
    queue_of,
    queued,
    serving,
    statuses,
    watched,
)
from tests.support.tasks.handlers import answer, forget_watched, is_idle, is_off_queue

# How long a call waits for the queue's server.
SHORT = {"connect_timeout_s": 0.5, "call_timeout_s": 1.0}


@pytest.mark.parametrize("handler", ["", None, 5, b"h", ["h"]])
async def test_a_handler_without_a_name_is_refused(store: RedisStateStore, handler: Any) -> None:
    async with client_of(store) as client:
        with pytest.raises(InvalidField, match="handler"):
            await client.submit(handler, session_id=SESSION)
        with pytest.raises(InvalidField, match="handler"):
            await client.debounce(handler, session_id=SESSION, wait=timedelta(seconds=1))
        with pytest.raises(InvalidField, match="handler"):
            await client.batch(handler, 1, session_id=SESSION, after=timedelta(seconds=1))
    assert await store.list_tasks(SESSION) == []


@pytest.mark.parametrize("empty", ["", 0, b"", False])
async def test_an_empty_id_or_key_is_refused_where_one_may_be_chosen(
    store: RedisStateStore, empty: Any
) -> None:
    # Taken as none, it would be a new one in each call: a repetition would do its work twice.
    async with client_of(store) as client:
        task = await client.submit("h", session_id=SESSION, task_id="t")
        for call, field in (
            (client.submit("h", session_id=SESSION, task_id=empty), "task_id"),
            (client.rerun(SESSION, task, new_task_id=empty), "new_task_id"),
            (client.steer(SESSION, task, SteeringEventType.CANCEL, event_id=empty), "event_id"),
            (client.signal(SESSION, task, "n", idempotency_key=empty), "idempotency_key"),
            (store.pauses.claim("token", idempotency_key=empty), "idempotency_key"),
            (
                store.contexts.update_context(SESSION, llm_context={}, idempotency_key=empty),
                "idempotency_key",
            ),
        ):
            with pytest.raises(InvalidField, match=field):
                await call
    assert [each.task_id for each in await store.list_tasks(SESSION)] == ["t"]
    assert await store.contexts.load(SESSION) is None


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        ("DANCE", {"text": "s3cret"}, "event_type"),
        (None, None, "event_type"),
        (SteeringEventType.USER_MESSAGE, "s3cret", "payload"),
        (SteeringEventType.USER_MESSAGE, 5, "payload"),
    ],
)
async def test_a_steering_event_that_cannot_be_is_refused_without_its_payload(
    store: RedisStateStore, kind: Any, payload: Any, field: str
) -> None:
    async with client_of(store) as client:
        with pytest.raises(InvalidField, match=field) as refused:
            await client.steer(SESSION, "one", kind, payload)
    assert "s3cret" not in str(refused.value)


async def test_submitting_a_task_twice_runs_it_once(store: RedisStateStore) -> None:
    ran: list[int] = []

    async def note(_: TaskContext) -> None:
        ran.append(1)

    async with client_of(store) as client:
        calls = [client.submit("note", session_id=SESSION, task_id="one") for _ in range(20)]
        assert set(await asyncio.gather(*calls)) == {"one"}
        assert len(await queued(store)) == 1
        async with serving(agent(store.settings, {"note": note})):
            await client.wait(SESSION, "one", timeout_s=60)
            await client.submit("note", session_id=SESSION, task_id="one")
            await eventually(lambda: is_idle(store), "nothing waits")
        assert ran == [1]
        assert await statuses(store, "one") == ["PENDING", "RUNNING", "COMPLETE"]


async def test_a_hosts_task_is_not_taken_for_a_workers(store: RedisStateStore) -> None:
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id="host")
    state = TaskState("host", SESSION, TaskStatus.PENDING, TaskType.FOREGROUND, 0, snapshot)
    await store.save_task(state)
    async with client_of(store) as client:
        with pytest.raises(InvalidField, match="task_id"):
            await client.submit("answer", session_id=SESSION, task_id="host")
    assert await queued(store) == []
    await forget_watched(store)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("handler", {"handler": "", "session_id": SESSION}),
        ("session_id", {"handler": "x", "session_id": None}),
        ("task_id", {"handler": "x", "session_id": SESSION, "task_id": 5}),
    ],
)
async def test_what_cannot_be_submitted_is_refused_by_name(
    store: RedisStateStore, field: str, arguments: dict[str, Any]
) -> None:
    async with client_of(store) as client:
        with pytest.raises(InvalidField) as caught:
            await client.submit(**arguments)
    assert caught.value.field == field
    assert await watched(store) == 0


@pytest.mark.parametrize("queue", [5, b"q", ["q"]])
async def test_a_queue_that_is_no_text_is_refused_by_name_and_nothing_is_written(
    store: RedisStateStore, queue: Any
) -> None:
    async with client_of(store) as client:
        task = await client.submit("h", session_id=SESSION)
        wait = timedelta(hours=1)
        for call in (
            partial(client.submit, "h", session_id=SESSION, queue=queue),
            partial(client.rerun, SESSION, task, queue=queue),
            partial(client.fork, SESSION, task, queue=queue),
            partial(client.batch, "h", 1, session_id=SESSION, after=wait, queue=queue),
            partial(client.debounce, "h", session_id=SESSION, wait=wait, queue=queue),
        ):
            with pytest.raises(InvalidField) as caught:
                await call()
            assert caught.value.field == "queue"
    assert [each.task_id for each in await store.list_tasks(SESSION)] == [task]
    assert await watched(store) == 1


async def test_ids_of_any_characters_stay_apart(store: RedisStateStore) -> None:
    ids = ["", "a:b", "a/b", "{x}", "*", "é\n", "\ud800", "x" * 10_000]

    async def name(ctx: TaskContext) -> list[str]:
        return [ctx.task.session_id, ctx.task.task_id]

    async with pool(store, {"name": name}) as client:
        for session in ids:
            task = await client.submit("name", session_id=session, task_id=session[::-1] or "e")
            ended = await client.wait(session, task, timeout_s=60)
            assert ended.result == [session, session[::-1] or "e"]


async def test_with_the_queue_away_the_task_is_written_and_watched(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://:secret@127.0.0.1:{unused_tcp_port}/0")
    other = RedisStateStore(settings.model_copy(update={"queue_url": away, **SHORT}))
    async with other, TaskClient(other, queue=queue_of(settings)) as client:
        with pytest.raises(BackendUnavailable) as caught:
            await client.submit("answer", session_id=SESSION, task_id="t")
        assert "secret" not in str(caught.value)
        assert str(unused_tcp_port) in str(caught.value)
    assert await watched(store) == 1
    async with pool(store, {"answer": answer}) as client:
        await client.submit("answer", session_id=SESSION, task_id="t")
        assert (await client.wait(SESSION, "t", timeout_s=60)).result == 42


async def test_a_damaged_task_is_failed_and_told(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other workers may be able to read it: the delays between them are another test's.
    monkeypatch.setattr("redis_state.worker.tasks.transitions.MOST_UNREAD", 1)
    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        key = store.base.keys.task(SESSION, task)
        await store.transport.sender.send("HSET", key, "job", b"{", repeatable=True)
        async with serving(agent(store.settings, {"answer": answer})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert "cannot be read" in (ended.error or "")
    await forget_watched(store)


@pytest.mark.role("any", why="the names of its jobs are no namespace's")
async def test_a_job_that_is_not_ours_is_dropped(store: RedisStateStore) -> None:
    queue = key_of_queue(store.settings)
    jobs = {
        "garbage": b"\x80\x04.",
        "foreign": serialize({"t": 1, "f": "run_task", "a": ["x"], "k": {}, "et": 1}),
    }
    for name, job in jobs.items():
        sender = store.transport.sender
        await sender.send("SET", f"arq:job:{queue}{name}", job, "PX", 60_000, repeatable=True)
        await sender.send("ZADD", queue, 1, f"{queue}{name}", repeatable=True)
    async with pool(store, {"answer": answer}) as client:
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        await eventually(lambda: is_off_queue(store), "both are gone")


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
async def test_an_id_belongs_to_the_handler_and_input_that_were_submitted_under_it(
    store: RedisStateStore, *, is_sealed: bool
) -> None:
    given = {"order": (1, 2.0), "who": "ann", 5: None}
    async with opened(store.settings, *KEYS[: int(is_sealed)]) as own, client_of(own) as client:

        async def send(handler: str = "h", task_input: Any = given) -> str:
            return await client.submit(handler, task_input, session_id=SESSION, task_id="order 7")

        assert [await send() for _ in range(2)] == ["order 7"] * 2
        assert await send(task_input={"5": None, "who": "ann", "order": [1, 2.0]}) == "order 7"
        for other in (partial(send, "other"), partial(send, task_input={"who": "a secret"})):
            with pytest.raises(KeyReused, match="the id 'order 7' of this task") as reused:
                await other()
            assert (reused.value.what, reused.value.key) == ("task", "order 7")
            assert "secret" not in str(reused.value)
        (job,) = await queued(own)
        assert "order%207" in str(job)
        # Of concurrent callers with different inputs one is told that its input counts.
        sent = await asyncio.gather(
            *(client.submit("h", n, session_id=SESSION, task_id="t") for n in range(4)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, KeyReused) for each in sent) == 3
        assert sent.count("t") == 1
    if is_sealed:
        # Who cannot read what was submitted does not know, and finds the task.
        async with opened(store.settings, KEYS[1]) as other_key, client_of(other_key) as client:
            found = await client.submit("h", "x", session_id=SESSION, task_id="order 7")
        assert found == "order 7"
