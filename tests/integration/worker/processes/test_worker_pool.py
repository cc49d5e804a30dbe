"""Workers as processes of their own: what another one does when one of them is gone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.embedded.server import start_embedded
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.pages import block_of
from tests.support.processes import children, forkserver
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    open_token,
    queue_of,
    statuses,
    updates_of,
)
from tests.support.servers.faults import importing, needs_arqs_runner, start_process

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]


@asynccontextmanager
async def worker(
    settings: Settings, name: str, **options: float
) -> AsyncGenerator[children.Process, None]:
    """Run a worker process for the length of the block, whatever state it is left in."""
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "name": name,
        **options,
    }
    process = await start_process("pool_worker", argument)
    try:
        yield process
    finally:
        await children.end(process)


async def stop(process: children.Process, how: signal.Signals) -> int:
    process.send_signal(how)
    async with asyncio.timeout(60):
        return await process.wait()


async def progress_of(store: RedisStateStore, task: str) -> list[str]:
    return [
        update.content["message"]
        for update in await updates_of(store, task)
        if update.update_type.value == "PROGRESS"
    ]


async def test_a_task_paused_in_one_process_goes_on_in_another_when_the_first_was_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one"))
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        await stop(one, signal.SIGKILL)
        await running.enter_async_context(worker(settings, "two"))
        await client.approve(token)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == {"began": "one", "ended": "two", "approved": True}


async def test_a_worker_process_leaves_its_modules_out_of_garbage_collection(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, worker(settings, "one") as process:
        task = await client.submit("frozen", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result is True
        # What its host had frozen stays so.
        assert await stop(process, signal.SIGTERM) == 0
        assert process.stdout is not None
        assert (await process.stdout.readline()).split() == [b"frozen", b"True"]


async def test_a_worker_process_freezes_no_garbage_and_nothing_for_longer_than_it_runs(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        client_of(store) as client,
        worker(settings, "one", begins_with_garbage=True) as process,
    ):
        task = await client.submit("collected", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result is True
        assert await stop(process, signal.SIGTERM) == 0
        assert process.stdout is not None
        assert (await process.stdout.readline()).split() == [b"frozen", b"False"]


async def test_on_sigterm_a_worker_hands_its_task_to_another(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one"))
        task = await client.submit("linger", session_id=SESSION)
        await eventually(lambda: progress_of(store, task), "it runs")
        await running.enter_async_context(worker(settings, "two"))
        assert await stop(one, signal.SIGTERM) == 0
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == "two"
        reported = ["PENDING", "RUNNING", "PENDING", "RUNNING", "COMPLETE"]
        assert await statuses(store, task) == reported


async def test_a_second_ctrl_c_hands_the_tasks_off_without_waiting_for_them(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one", grace_s=3600.0))
        task = await client.submit("linger", session_id=SESSION)
        await eventually(lambda: progress_of(store, task), "it runs")
        one.send_signal(signal.SIGINT)

        async def drains() -> bool:
            return any(each.draining for each in await client.workers())

        await eventually(drains, "it takes no more tasks")
        assert one.returncode is None

        drains_since = monotonic()
        await eventually(lambda: monotonic() - drains_since > 0.6, "it is no longer the same one")
        # Long before its grace.
        assert await stop(one, signal.SIGINT) == 0
        await running.enter_async_context(worker(settings, "two"))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "two"


async def test_a_worker_that_was_frozen_past_its_lease_writes_nothing_more(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one", lease_s=0.5))
        task = await client.submit("zombie", session_id=SESSION)
        await eventually(lambda: progress_of(store, task), "it runs")
        one.send_signal(signal.SIGSTOP)
        life = TaskTransitions(store)

        async def take() -> StartedRun | None:
            found = await life.start(SESSION, task, owner="us", lease_ms=60_000, worker="us")
            return found if isinstance(found, StartedRun) else None

        taken = await eventually(take, "its lease has run out")
        assert taken is not None
        assert taken.attempts == 2
        before = await progress_of(store, task)
        one.send_signal(signal.SIGCONT)
        assert one.stdout is not None
        async with asyncio.timeout(60):
            reported = (await one.stdout.readline()).split()
        assert reported[::2] == [b"refused", b"by"]
        assert int(reported[1]) < int(reported[3]) == taken.held.epoch
        assert await progress_of(store, task) == before
        await life.finish_run(taken, TaskStatus.COMPLETE, result="ours")
        assert await stop(one, signal.SIGTERM) == 0
        assert (await client.wait(SESSION, task)).result == "ours"
        assert (await statuses(store, task))[-2:] == ["RUNNING", "COMPLETE"]


async def test_workers_live_through_a_restart_of_the_server(
    settings: Settings, tmp_path: Path
) -> None:
    server = start_embedded(tmp_path / "data")
    own = settings.model_copy(update={"url": SecretStr(server.url)})
    async with (
        RedisStateStore(own) as store,
        TaskClient(store, queue=queue_of(own)) as client,
        worker(own, "one", lease_s=1.0),
    ):
        tasks = [await client.submit("ask", session_id=SESSION) for _ in range(3)]
        tokens = [await open_token(store, task) for task in tasks]
        await asyncio.to_thread(server.stop)
        server = await asyncio.to_thread(start_embedded, tmp_path / "data")
        assert server.url == own.url.get_secret_value()
        for task in tasks:
            await becomes(client, task, TaskStatus.PAUSED)
        for token in tokens:
            await client.approve(token)
        for task in tasks:
            result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
            assert result["ended"] == "one"
    await asyncio.to_thread(server.stop)


async def test_arqs_own_command_runs_the_deployed_pool(
    store: RedisStateStore, settings: Settings
) -> None:
    if not (ROOT / "workers").is_dir():
        pytest.skip("the deployed pool is not beside the tests")
    needs_arqs_runner(settings.url.get_secret_value())
    async with TaskClient(store) as client:
        task = await client.submit("ask", "Ready?", session_id=SESSION)
        assert await _burst(settings, "workers.settings") == 0
        token = await open_token(store, task)
        await client.approve(token, actor="ann")
        assert await _burst(settings, "workers.settings") == 0
        ended = await client.wait(SESSION, task)
        assert ended.result == {"approved": True, "value": None, "actor": "ann"}


async def test_arqs_own_command_runs_the_pool_of_the_guide(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    needs_arqs_runner(settings.url.get_secret_value())
    folder = tmp_path / "my_pool"
    folder.mkdir()
    code = block_of("workers.md", "worker.arq_settings()")
    (folder / "arq_settings.py").write_text(code, encoding="utf-8")
    (folder / "settings.py").write_text(_POOL, encoding="utf-8")
    async with TaskClient(store) as client:
        task = await client.submit("double", 21, session_id=SESSION)
        assert await _burst(settings, "my_pool.arq_settings", folder=tmp_path) == 0
        assert (await client.wait(SESSION, task)).result == 42


_POOL = """
from redis_state.worker import AgentWorker


async def double(ctx):
    return 2 * ctx.input


worker = AgentWorker({"double": double})
"""


async def _burst(settings: Settings, module: str, *, folder: Path = ROOT) -> int:
    process = await forkserver.start(
        *("-m", "arq", f"{module}.WorkerSettings", "--burst"),
        environment=importing(
            REDIS_STATE_URL=settings.url.get_secret_value(),
            REDIS_STATE_NAMESPACE=settings.namespace,
        ),
        folder=folder,
    )
    async with asyncio.timeout(60):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode
