"""One embedded server for a whole pool: as many processes as like use its directory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from arq.connections import create_pool

from redis_state import RedisStateStore, Settings
from redis_state.embedded import socket
from redis_state.embedded.server import start_embedded
from redis_state.embedded.socket import EmbeddedSocket
from redis_state.embedded.supervisor import SOCKET, ask_server
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient
from redis_state.worker.arq.settings import arq_server
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.support.commands import cli
from tests.support.processes import children, forkserver
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool, queue_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.faults import importing, own_binary, short_directory, start_process

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def the_suites_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(own_binary()))


@pytest.fixture
def home() -> Generator[Path]:
    with short_directory() as directory:
        yield directory / "data"


@pytest.fixture
def own(home: Path) -> Settings:
    return Settings(url=SecretStr(f"embedded://{home}"), namespace="pool")


def server_of(home: Path) -> str | None:
    """Name the run of the directory's server, without using it."""
    facts = ask_server(home / SOCKET)
    return None if facts is None else facts["run_id"]


async def comes_to_its_end(home: Path) -> None:
    await eventually(lambda: server_of(home) is None, "the last user's end stops the server")
    await eventually(lambda: not (home / SOCKET).exists(), "its keeper has gone too")


class Api:
    """A process that submits tasks when it is told to."""

    def __init__(self, process: children.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self.process = process

    async def run(self, task_id: str) -> str:
        """Have a task run; give what the API answers."""
        self._in.write(f"{task_id}\n".encode())
        return await self.heard()

    async def heard(self) -> str:
        async with asyncio.timeout(60):
            return (await self._out.readline()).decode().strip().strip('"')

    async def leave(self) -> int:
        """Let it come to its end in good order."""
        self._in.close()
        async with asyncio.timeout(60):
            return await self.process.wait()


@asynccontextmanager
async def api(settings: Settings) -> AsyncGenerator[Api]:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
    }
    process = await start_process("serve_api", argument, stdin=True)
    try:
        serving = Api(process)
        assert await serving.heard() == "True"
        yield serving
    finally:
        await children.end(process)


@pytest.mark.slow
async def test_an_api_and_its_workers_share_a_directorys_server_whoever_stops_or_is_killed(
    own: Settings, home: Path
) -> None:
    ended: list[str] = []

    async def run(front: Api, name: str) -> None:
        assert await front.run(name) in ("one", "two", "three")
        ended.append(name)

    async with AsyncExitStack() as running:
        first = await running.enter_async_context(api(own))
        server = server_of(home)
        assert server is not None
        one, two, three = [
            await running.enter_async_context(worker_process(own, name, lease_s=1.0))
            for name in ("one", "two", "three")
        ]
        await run(first, "with all of them")
        # It has started the server.
        assert await stop(first.process, signal.SIGKILL) == -signal.SIGKILL
        second = await running.enter_async_context(api(own))
        await run(second, "after the death of the process that started the server")
        assert await stop(one) == 0
        await run(second, "after a worker has stopped")
        assert await stop(two, signal.SIGKILL) == -signal.SIGKILL
        await run(second, "after a worker was killed")
        assert await second.leave() == 0
        third = await running.enter_async_context(api(own))
        await run(third, "after the api has stopped")
        # One and the same all the time.
        assert server_of(home) == server
        assert await third.leave() == 0
        assert server_of(home) == server
        assert await stop(three) == 0
    await comes_to_its_end(home)
    async with RedisStateStore(own) as store, client_of(store) as client:
        for name in ended:
            state = await client.get(SESSION, name)
            assert state is not None
            assert state.status is TaskStatus.COMPLETE
    assert server_of(home) is None


@pytest.mark.slow
async def test_the_command_line_its_worker_and_arqs_use_the_directories_of_store_and_queue(
    own: Settings, home: Path
) -> None:
    if not (ROOT / "workers").is_dir():
        pytest.skip("the deployed pool is not beside the tests")
    queue = home.parent / "queue"
    apart = own.model_copy(update={"queue_url": SecretStr(f"embedded://{queue}")})
    environment = {
        "REDIS_STATE_URL": f"embedded://{home}",
        "REDIS_STATE_QUEUE_URL": f"embedded://{queue}",
        "REDIS_STATE_NAMESPACE": own.namespace,
    }

    def command(*arguments: str) -> AbstractAsyncContextManager[children.Process]:
        return children.running(
            *(sys.executable, *arguments),
            cwd=ROOT,
            env=importing(**environment),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    by_ann = ("--actor", "ann", "--json")
    async with RedisStateStore(apart) as store, TaskClient(store) as client:
        task = await client.submit("ask", "Ready?", session_id=SESSION)
        arguments = ("-m", "arq", "workers.settings.WorkerSettings", "--burst")
        async with command(*arguments) as arq, asyncio.timeout(60):
            assert await arq.wait() == 0
        token = await open_token(store, task)
        reported = await cli(
            apart, "approve", token, *by_ann, REDIS_STATE_QUEUE_URL=f"embedded://{queue}"
        )
        assert (reported.status, reported.document["status"]) == (0, "PENDING")
        worker_command = ("-m", "redis_state", "worker", "workers.settings:worker")
        async with forkserver.running(
            *worker_command, environment=importing(**environment), folder=ROOT
        ) as worker:
            ended = await client.result(SESSION, task, timeout_s=60)
            assert await stop(worker) == 0
        assert ended == {"approved": True, "value": None, "actor": "ann"}
        assert server_of(queue) != server_of(home)
    await comes_to_its_end(home)
    await comes_to_its_end(queue)


async def test_a_client_of_a_pool_that_nobody_could_share_is_refused_before_it_writes() -> None:
    store = RedisStateStore.from_url("embedded://", queue_url=None)
    with pytest.raises(ConfigError, match=r"name a directory, embedded:///path"):
        TaskClient(store)
    with pytest.raises(ConfigError, match="name a directory"):
        Queue(store)
    with pytest.raises(ConfigError, match="name a directory"):
        AgentWorker({}, settings=store.settings).arq_settings()
    await store.aclose()


async def test_a_server_that_is_killed_is_started_again_by_its_users(
    own: Settings, home: Path
) -> None:
    async def name(ctx: Any) -> str:
        return str(ctx.worker)

    async with (
        RedisStateStore(own) as store,
        pool(store, {"name": name}, name="w") as client,
    ):
        before = await client.submit("name", session_id=SESSION, task_id="before")
        await becomes(client, before, TaskStatus.COMPLETE)
        server = server_of(home)
        with start_embedded(home) as joined:
            os.kill(joined.pid, signal.SIGKILL)
        after = await eventually(lambda: submitted(client, "after"), "a submit is answered again")
        ended = await becomes(client, after or "", TaskStatus.COMPLETE)
        assert ended.result == "w"
        assert server_of(home) not in (None, server)
        kept = await client.get(SESSION, before)
        assert kept is not None
        assert kept.status is TaskStatus.COMPLETE
    await comes_to_its_end(home)


async def submitted(client: TaskClient, task_id: str) -> str | None:
    with suppress(BackendUnavailable):
        return await client.submit("name", session_id=SESSION, task_id=task_id)
    return None


async def test_each_client_of_the_queue_uses_the_server_until_it_is_closed(
    own: Settings, home: Path
) -> None:
    job = Job(SESSION, "t", 0, 0)
    stores = [RedisStateStore(own.model_copy(update={"queue_url": own.url})) for _ in range(2)]
    one, two = map(Queue, stores)
    assert server_of(home) is None
    await one.put(job)
    server = server_of(home)
    await two.put(job)
    await one.aclose()
    await two.put(job)
    assert server_of(home) == server
    await two.aclose()
    assert server_of(home) is None


async def test_what_arq_connects_with_starts_no_server_before_it_connects(
    own: Settings, home: Path
) -> None:
    settings = arq_server(own)
    assert str(home) in repr(settings)
    assert not await asyncio.to_thread(home.exists)
    client: Any = await create_pool(settings)
    assert await client.ping()
    await client.aclose(close_connection_pool=True)
    assert server_of(home) is not None
    socket: Any = settings.unix_socket_path
    socket.release()
    assert server_of(home) is None


async def test_a_directory_in_which_no_server_can_run_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(url=SecretStr(f"embedded://{tmp_path / 'file'}"), namespace="pool")
    with pytest.raises(ConfigError, match="file"):
        await AgentWorker({}, settings=settings).serve(handle_signals=False)


async def test_a_server_that_cannot_be_started_again_is_away_for_now(
    own: Settings, home: Path
) -> None:
    server: Any = arq_server(own)
    client: Any = await create_pool(server)
    assert await client.ping()
    socket = EmbeddedSocket(home)
    with start_embedded(home) as joined:
        assert socket.locate().pid == joined.pid
        os.kill(joined.pid, signal.SIGKILL)
        await eventually(lambda: not joined.lives(), "it is dead")
    (log,) = (home / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"nonsense\r\n")
    with pytest.raises(BackendUnavailable, match=r"(?s)embedded:///.*did not start"):
        socket.locate()

    log.write_bytes(b"")
    assert os.fspath(socket) == str(home / SOCKET)
    assert await client.ping()
    await client.aclose(close_connection_pool=True)
    server.unix_socket_path.release()
    socket.release()
    socket.release()
    assert server_of(home) is None


def test_a_server_that_is_late_is_away_for_now(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    slow = home / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(slow))
    monkeypatch.setattr(socket, "start_embedded", partial(start_embedded, deadline_s=0.5))
    with pytest.raises(BackendUnavailable, match="does not answer"):
        EmbeddedSocket(home).locate()
