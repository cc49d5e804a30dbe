"""What ends a worker, and what does not: signals, restarts, flushed scripts, garbage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.embedded.server import start_embedded
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from redis_state.worker.pool import process as services
from redis_state.worker.queue.jobs.job import ClaimedJob, Job
from redis_state.worker.queue.jobs.job_format import serialize
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    key_of_queue,
    open_token,
    pool,
    queue_of,
    queued,
    serving,
    statuses,
)
from tests.support.processes.worker_processes import begin, stop, worker_process
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.servers.sets.nodes import ask_each
from tests.support.sizes import sizes
from tests.support.timing import LONG_S

RUNNERS = ("ours", "arq")


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
async def test_on_sigterm_a_task_that_ends_within_the_grace_is_finished(
    store: RedisStateStore, settings: Settings, runner: str
) -> None:
    async with (
        client_of(store) as client,
        worker_process(settings, "one", runner=runner, grace_s=LONG_S) as process,
    ):
        task = await begin(client, store, "nap", 1.0)
        waits = await client.submit("nap", 0, session_id=SESSION, task_id="waits")
        await client.wait(SESSION, waits, timeout_s=60)
        # When its task has ended, and not when its grace has: that is long.
        assert await stop(process) == 0
        assert (await client.wait(SESSION, task)).result == "one"
        assert await statuses(store, task) == ["PENDING", "RUNNING", "COMPLETE"]
        # What is submitted once it drains is left to others.
        late = await client.submit("nap", 0, session_id=SESSION)
        assert await statuses(store, late) == ["PENDING"]
        await client.cancel(SESSION, late)
        await client.drop_queue()


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
async def test_on_sigterm_a_task_that_goes_on_past_the_grace_is_handed_over(
    store: RedisStateStore, settings: Settings, runner: str
) -> None:
    async with client_of(store) as client:
        async with worker_process(settings, "one", runner=runner, grace_s=0.5) as process:
            task = await begin(client, store, "linger")
            assert await stop(process) == 0
            assert await statuses(store, task) == ["PENDING", "RUNNING", "PENDING"]
            assert len(await queued(store)) == 1
        async with worker_process(settings, "two", runner=runner):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == "two"


@pytest.mark.slow
async def test_tasks_that_run_outlive_a_restart_of_the_server(
    settings: Settings, tmp_path: Path
) -> None:
    server = start_embedded(tmp_path / "data")
    own = settings.model_copy(update={"url": SecretStr(server.url)})
    async with (
        RedisStateStore(own) as store,
        TaskClient(store, queue=queue_of(own)) as client,
        worker_process(own, "one", lease_s=1.0, interval_s=0.3) as process,
    ):
        tasks = [await begin(client, store, "nap", 3.0) for _ in range(3)]
        await asyncio.to_thread(server.stop)
        server = await asyncio.to_thread(start_embedded, tmp_path / "data")
        for task in tasks:
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "one")
            assert await statuses(store, task) == ["PENDING", "RUNNING", "COMPLETE"]
        after = await client.submit("nap", 0, session_id=SESSION)
        assert (await client.wait(SESSION, after, timeout_s=60)).result == "one"

        async def heard() -> bool:
            return any(info.counters["completed"] == 4 for info in await client.workers())

        await eventually(heard, "it is listed again, with all that it counted")
        assert process.returncode is None
        assert await stop(process) == 0
    await asyncio.to_thread(server.stop)


@pytest.mark.slow
@pytest.mark.parametrize("flushes", sizes(15, 60))
@pytest.mark.parametrize("runner", RUNNERS)
async def test_scripts_that_are_flushed_all_the_time_harm_nobody(
    store: RedisStateStore, settings: Settings, runner: str, flushes: int
) -> None:
    flushed = 0

    async def flush() -> None:
        nonlocal flushed
        while True:
            await ask_each(store.transport, "SCRIPT", "FLUSH")
            flushed += 1
            await asyncio.sleep(0.05)

    async with (
        client_of(store) as client,
        worker_process(settings, "one", runner=runner, interval_s=0.1, heartbeat="thread"),
    ):
        flushing = asyncio.create_task(flush())
        done = 0
        while flushed < flushes or done < 20:
            tasks = [await client.submit("chatter", session_id=SESSION) for _ in range(10)]
            for task in tasks:
                ended = await client.wait(SESSION, task, timeout_s=60)
                assert (ended.status, ended.error, ended.result) == (TaskStatus.COMPLETE, None, 1)
            done += len(tasks)
        flushing.cancel()
        await asyncio.wait({flushing})
        (info,) = await client.workers()
        await eventually(lambda: _completed(client, done), "it counted each of them once")
        assert info.counters["failed"] == 0
        assert info.counters["handed_over"] == 0


async def _completed(client: TaskClient, number: int) -> bool:
    (info,) = await client.workers()
    return info.counters["completed"] == info.counters["started"] == number


# What is no job


GARBAGE: dict[str, bytes] = {
    "pickle": b"\x80\x04.",
    "no object": b"[1]",
    "a time that is none": serialize(
        {"t": None, "f": "run_task", "a": [{"session_id": "s", "task_id": "t"}], "k": {}, "et": "x"}
    ),
    "a time beyond all": serialize({"t": 1, "f": "run_task", "a": [{}], "k": {}, "et": 10**30}),
    "tries that are none": serialize({"t": "x", "f": "run_task", "a": [{}], "k": {}, "et": 1}),
    "no arguments": serialize({"t": 1, "f": "run_task", "a": 5, "k": {}, "et": 1}),
    "arguments by name": serialize({"t": 1, "f": "run_task", "a": [{}], "k": {"x": 1}, "et": 1}),
    "another function": serialize({"t": 1, "f": ["secret"], "a": [{}], "k": {}, "et": 1}),
    "a cron job with arguments": serialize(
        {"t": 1, "f": "cron:secret", "a": [{}], "k": {}, "et": 1}
    ),
    "no task": serialize({"t": 1, "f": "run_task", "a": ["secret"], "k": {}, "et": 1}),
    "ids that are none": serialize(
        {"t": 1, "f": "run_task", "a": [{"session_id": 1, "task_id": []}], "k": {}, "et": 1}
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.role("any", why="the names of its jobs are no namespace's")
async def test_a_job_that_is_garbage_is_dropped_with_a_warning(
    store: RedisStateStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, send = key_of_queue(store.settings), store.transport.sender.send
    job = f"{queue}-garbage"
    await send("SET", f"arq:job:{job}", GARBAGE[name], "PX", 60_000, repeatable=True)
    await send("ZADD", queue, 1, job, repeatable=True)
    await _is_dropped_and_others_run(store)
    assert "a job that names no task is dropped" in caplog.text
    assert "secret" not in caplog.text

    async def is_gone() -> bool:
        return not await send("EXISTS", f"arq:job:{job}", repeatable=True)

    await eventually(is_gone, "nothing is left of it")


@pytest.mark.role("any", why="the names of its jobs are no namespace's")
async def test_a_job_of_another_type_and_one_without_a_readable_name_are_dropped(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    queue, send = key_of_queue(store.settings), store.transport.sender.send
    job = f"{queue}-list"
    await send("RPUSH", f"arq:job:{job}", "x", repeatable=True)
    await send("PEXPIRE", f"arq:job:{job}", 60_000, repeatable=True)
    await send("ZADD", queue, 1, job, 1, b"\xff\xfe", repeatable=True)
    await _is_dropped_and_others_run(store)
    assert caplog.text.count("a job that names no task is dropped") == 2

    async def is_gone() -> bool:
        return not await send("EXISTS", f"arq:job:{job}", repeatable=True)

    await eventually(is_gone, "nothing is left of it")


async def _is_dropped_and_others_run(store: RedisStateStore) -> None:
    async def answer(_: TaskContext) -> int:
        return 42

    async def empty() -> bool:
        return not await store.transport.sender.send(
            "ZCARD", key_of_queue(store.settings), repeatable=True
        )

    async with client_of(store) as client, serving(agent(store.settings, {"answer": answer})) as on:
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        await eventually(empty, "the queue is empty")
        assert not on.done()


async def test_a_background_loop_that_fails_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "_AGAIN_S", 0.01)
    begun: list[int] = []

    async def fails() -> None:
        begun.append(1)
        raise ZeroDivisionError

    going = asyncio.create_task(services.run_forever(fails, "sweep"))
    await eventually(lambda: len(begun) >= 3, "it is begun again and again")
    going.cancel()
    await asyncio.wait({going})
    assert "'sweep' has failed" in caplog.text


async def test_a_background_loop_that_waits_for_its_server_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "_AGAIN_S", 0.01)
    begun: list[int] = []

    async def waits() -> None:
        begun.append(1)
        raise BackendUnavailable("redis://h:1", "refused")

    going = asyncio.create_task(services.run_forever(waits, "queues"))
    await eventually(lambda: len(begun) >= 3, "it is begun again and again")
    going.cancel()
    await asyncio.wait({going})
    (said,) = caplog.records
    assert (said.levelname, said.exc_info) == ("WARNING", None)
    assert "'queues' is begun again: redis://h:1: refused" in said.message


async def test_an_error_of_the_loops_own_does_not_end_the_worker(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim = Queue.claim
    fired: list[str] = []

    async def breaks_once(self: Queue, queue: str, *, limit: int) -> list[ClaimedJob]:
        if not fired:
            fired.append(queue)
            raise ZeroDivisionError
        return await claim(self, queue, limit=limit)

    monkeypatch.setattr(Queue, "claim", breaks_once)
    await _is_dropped_and_others_run(store)
    assert fired
    assert "the queue's loop has failed" in caplog.text


async def test_services_that_end_badly_are_logged_and_no_more(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Any) -> None:
        await aclose(self)
        raise ZeroDivisionError

    aclose = services.WorkerProcess.aclose
    monkeypatch.setattr(services.WorkerProcess, "aclose", broken)
    await _is_dropped_and_others_run(store)
    assert "did not end in good order" in caplog.text


# Options


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ({"queues": "high"}, "queues: a sequence"),
        ({"queues": ("a", "a")}, "named twice"),
        ({"queues": ("a", "")}, "needs a name"),
        ({"queues": ("a",), "queue": "b"}, "cannot both"),
        ({"queues": ("a",), "queue_limits": {"b": 1}}, "'b'"),
        ({"queues": ("a",), "queue_limits": {"a": 0}}, ">= 1"),
        ({"max_tasks": 0}, ">= 1"),
        ({"heartbeat": "nurse"}, "'nurse'"),
        ({"lease_s": 0}, "lease_s"),
        ({"poll_s": float("nan")}, "poll_s"),
        ({"grace_s": -1}, "grace_s"),
        ({"interval_s": float("inf")}, "interval_s"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], stated: str) -> None:
    with pytest.raises(ConfigError, match=stated):
        AgentWorker({}, **options)


@pytest.mark.parametrize(
    "options", [{"queues": ("a", "b")}, {"queues": ("a",), "queue_limits": {"a": 1}}]
)
def test_arqs_own_runner_serves_one_queue(options: dict[str, Any], settings: Settings) -> None:
    with pytest.raises(ConfigError, match="one queue"):
        AgentWorker({}, settings=settings, **options).arq_settings()


def test_arqs_own_runner_is_not_given_less_encryption_than_was_asked_for(
    settings: Settings,
) -> None:
    url = SecretStr("rediss://example.org/0?ssl_min_version=TLSv1_3")
    own = settings.model_copy(update={"queue_url": url})
    with pytest.raises(ConfigError, match="ssl_min_version"):
        AgentWorker({}, settings=own).arq_settings()


@pytest.mark.parametrize("name", ["IP:127.0.0.1", "DNS:elsewhere"])
async def test_the_queue_checks_who_its_server_is(
    store: RedisStateStore, tmp_path: Path, name: str
) -> None:
    cert, key = certificate(tmp_path, name)
    tls = tls_server_context(cert, key)
    async with Proxy(store.settings.url.get_secret_value(), tls=tls) as proxy:

        def through(query: str) -> Settings:
            url = SecretStr(f"rediss://127.0.0.1:{proxy.port}/0{query}")
            return store.settings.model_copy(update={"queue_url": url})

        async def put(query: str) -> str:
            queue = Queue(RedisStateStore(through(query)), name=queue_of(store.settings))
            try:
                await queue.put(Job(SESSION, "t", 0, 0))
            except BackendUnavailable:
                return "refused"
            finally:
                await queue.aclose()
            return "reached"

        assert await put("") == "refused"
        right = name == "IP:127.0.0.1"
        assert await put(f"?ssl_ca_certs={cert}") == ("reached" if right else "refused")
        lenient = f"?ssl_ca_certs={cert}&ssl_check_hostname=false"
        assert await put(lenient) == "reached"
        assert await put("?ssl_cert_reqs=none") == "reached"
        options = vars(AgentWorker({}, settings=through(lenient)).arq_settings())
        assert options["redis_settings"].ssl_check_hostname is False
        strict = vars(AgentWorker({}, settings=through("")).arq_settings())["redis_settings"]
        assert (strict.ssl_check_hostname, strict.ssl_cert_reqs) == (True, "required")
        await _runs_through(store, through(lenient if not right else f"?ssl_ca_certs={cert}"))


async def _runs_through(store: RedisStateStore, settings: Settings) -> None:
    """Run a task whose worker reaches its queue over TLS."""
    async with pool(RedisStateStore(settings), {"ask": _ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        await client.approve(token)
        await becomes(client, task, TaskStatus.COMPLETE)
        await client.store.aclose()


async def _ask(ctx: TaskContext) -> bool:
    return (await ctx.approval("?")).approved
