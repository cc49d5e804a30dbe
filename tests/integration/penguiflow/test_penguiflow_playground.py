"""PenguiFlow's playground and `penguiflow dev` on a store: what one process leaves, another has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")
pytest.importorskip("httpx", reason="asks the playground")
pytest.importorskip("penguiflow.cli.playground", reason="needs fastapi and PyYAML")
pytest.importorskip("uvicorn", reason="penguiflow dev needs it")
pytest.importorskip("click", reason="penguiflow dev needs it")

import httpx
from penguiflow.cli import playground as theirs
from penguiflow.sessions import SessionLimits, SessionManager, TaskResult, TaskRuntime
from penguiflow.state import TaskStatus

from redis_state import ConfigError, InvalidField, RedisStateStore, Settings
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.adapter.private_names import replaced
from redis_state.integrations.penguiflow.durable.durable_session import DurableSession
from redis_state.integrations.penguiflow.playground import (
    DurableSessionManager,
    create_playground,
)
from redis_state.integrations.penguiflow.sessions import WatchedStore
from redis_state.testing import eventually
from tests.support.processes import children, forkserver
from tests.support.servers.faults import importing

AGENT = """
import asyncio
import json

from penguiflow.catalog import build_catalog, tool
from penguiflow.node import Node
from penguiflow.planner import ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel


class Words(BaseModel):
    text: str


@tool(desc="wait for ever")
async def wait(args: Words, ctx: ToolContext) -> Words:
    await asyncio.Event().wait()
    return args


class ScriptedModel:
    async def complete(self, *, messages, **_):
        waits = any("please wait" in str(message["content"]) for message in messages[1:])
        name, args = ("wait", {"text": "so"}) if waits else (None, {"answer": "done"})
        return json.dumps({"thought": "", "next_node": name, "args": args})


def build_planner(state_store=None):
    registry = ModelRegistry()
    registry.register("wait", Words, Words)
    nodes = [Node(wait, name="wait")]
    catalog = build_catalog(nodes, registry)
    return ReactPlanner(llm_client=ScriptedModel(), catalog=catalog, state_store=state_store)
"""


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    url = settings.url.get_secret_value()
    async with create_store(url=url, namespace=settings.namespace) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give the folder of an agent as `penguiflow dev` finds it."""
    package = tmp_path / "playground_agent"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "planner.py").write_text(AGENT, encoding="utf-8")
    return tmp_path


@asynccontextmanager
async def dev(project: Path, settings: Settings) -> AsyncGenerator[Any]:
    """Run `penguiflow dev` as the guide has it; give the process and a client of it."""
    # PenguiFlow itself reads it, before it makes the app.
    env = f"REDIS_STATE_URL={settings.url.get_secret_value()}\n"
    (project / ".env").write_text(
        f"{env}REDIS_STATE_NAMESPACE={settings.namespace}\n", encoding="utf-8"
    )
    module = "redis_state.integrations.penguiflow.playground"
    options = ("--project-root", str(project), "--port", "0", "--no-browser")
    process = await forkserver.start("-m", module, *options, environment=importing())
    try:
        async with asyncio.timeout(30):
            while "running on" not in (stated := (await process.stderr.readline()).decode()):
                assert stated, "it has ended"
        url = stated.partition("running on ")[2].split()[0]
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield process, client
    finally:
        await children.end(process)


async def until(lines: AsyncIterator[str], wanted: str) -> str:
    """Return the first line of a stream with these words in it."""
    async with asyncio.timeout(60):
        while wanted not in (line := await anext(lines)):
            pass
    return line


async def statuses(client: Any) -> list[str]:
    found = await client.get("/tasks", params={"session_id": "s"})
    return [task["status"] for task in found.raise_for_status().json()]


async def test_a_playground_that_is_killed_leaves_its_sessions_to_the_next_and_to_others(
    project: Path, settings: Settings
) -> None:
    async with dev(project, settings) as (first, one), dev(project, settings) as (_, two):
        hello = {"query": "hello", "session_id": "s"}
        async with two.stream("GET", "/session/stream", params={"session_id": "s"}) as stream:
            lines = stream.aiter_lines()
            assert "connected" in await until(lines, "data:")
            stated = await one.post("/chat", json=hello)
            assert stated.raise_for_status().json()["answer"] == "done"
            assert '"created"' in await until(lines, '"STATUS_CHANGE"')
        given = {"llm_context": {"goal": "report"}, "tool_context": {}}
        assert (await one.patch("/sessions/s/context", json=given)).is_success
        task = {"session_id": "s", "query": "please wait", "task_type": "background"}
        spawned = (await one.post("/tasks", json=task)).raise_for_status().json()["task_id"]

        async def runs() -> bool:
            return await statuses(two) == ["COMPLETE", "RUNNING"]

        await eventually(runs, "the other playground sees both tasks")
        deleted = await two.delete(f"/tasks/{spawned}", params={"session_id": "s"})
        assert deleted.raise_for_status().json() == {"ok": True, "task_id": spawned}

        async def cancelled() -> bool:
            return await statuses(one) == await statuses(two) == ["COMPLETE", "CANCELLED"]

        await eventually(cancelled, "it is cancelled where it runs")
        about = (await one.get("/sessions/s")).json()
        first.kill()
        await first.wait()
        assert (await two.get("/sessions/s")).json() == about
        assert (about["task_count"], about["active_tasks"]) == (2, 0)
        assert about["context_hash"]


async def test_one_process_has_one_session_of_an_id_and_its_options(host: Any) -> None:
    limits = SessionLimits(max_tasks_per_session=1)
    async with DurableSessionManager(state_store=host, limits=limits) as manager:
        found = await asyncio.gather(*(manager.get_or_create("s") for _ in range(5)))
        session = found[0]
        assert isinstance(session, DurableSession)
        assert all(each is session for each in found)
        assert await manager.get("s") is session
        assert session.limits is limits
        await session.spawn_task(hang, task_id="task")
        with pytest.raises(RuntimeError, match="task_limit_exceeded"):
            await session.spawn_task(hang)
        await manager.drop("s")
        await manager.drop("never was")
        assert await manager.get("s") is None
        (task,) = await host.list_tasks("s")
        assert task.status is TaskStatus.CANCELLED
        assert await manager.get_or_create("s") is not session
    assert await manager.get("s") is None


async def test_a_session_that_many_open_and_drop_at_once_is_open_once_at_a_time(
    host: Any,
) -> None:
    found: list[DurableSession] = []

    def still_open() -> int:
        stores: list[Any] = [getattr(each, "_state_store") for each in found]  # noqa: B009
        return len({id(each) for each in stores if each.bridges})

    async with DurableSessionManager(state_store=host) as manager:

        async def come_and_go() -> list[int]:
            seen: list[int] = []
            for _ in range(5):
                found.append(await manager.get_or_create("s"))
                seen.append(still_open())
                await manager.drop("s")
            return seen

        seen = await asyncio.gather(*(come_and_go() for _ in range(4)))
        found.append(await manager.get_or_create("s"))
        assert still_open() == 1
    assert still_open() == 0
    assert max(map(max, seen)) == 1


async def test_a_managed_session_is_steered_and_sees_the_context_of_others(host: Any) -> None:
    kept = WatchedStore(host)
    async with (
        DurableSessionManager(state_store=kept) as here,
        DurableSessionManager(state_store=host) as there,
    ):
        session, other = await here.get_or_create("s"), await there.get_or_create("s")
        session.update_context(llm_context={"n": 1})
        await session.save_context()
        assert (await there.get_or_create("s")).get_context()[0] == {"n": 1}
        await session.spawn_task(hang, task_id="task")
        assert await other.cancel_task("task")

        async def cancelled() -> bool:
            task = await other.get_task("task")
            return task is not None and task.status is TaskStatus.CANCELLED

        await eventually(cancelled, "it is cancelled")


@pytest.mark.filterwarnings("ignore:[^$]*on_event is deprecated:DeprecationWarning")
async def test_a_playground_is_made_with_durable_sessions_and_closes_them(host: Any) -> None:
    class Agent:
        """What a playground asks of an agent."""

        async def initialize(self) -> None:
            """Do nothing."""

        async def chat(self, query: str, **_: Any) -> Any:
            """Say nothing."""
            raise AssertionError(query)

        async def shutdown(self) -> None:
            """Do nothing."""

    app = create_playground(agent=Agent(), state_store=host)
    assert theirs.SessionManager is SessionManager
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        given = {"llm_context": {"goal": "report"}, "tool_context": {}}
        assert (await client.patch("/sessions/s/context", json=given)).is_success
    context = await host.contexts.load("s")
    assert context.llm_context == {"goal": "report"}
    # The store is its caller's.
    assert (await host.health()).ok


def test_what_cannot_be_a_durable_playground_is_refused(settings: Settings) -> None:
    plain: Any = RedisStateStore(settings)
    with pytest.raises(InvalidField, match="state_store"):
        DurableSessionManager(state_store=plain)
    with (
        pytest.raises(ConfigError, match=r"has no penguiflow\.cli\.playground\.Gone"),
        replaced("penguiflow.cli.playground", "Gone", None),
    ):
        raise AssertionError("not reached")


def test_a_playground_that_makes_no_sessions_of_ours_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: Any, **__: Any) -> None:
        """Make no sessions."""

    store = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    monkeypatch.setattr(theirs, "create_playground_app", make)
    with pytest.raises(ConfigError, match="sessions otherwise"):
        create_playground(state_store=store)


async def hang(runtime: TaskRuntime) -> TaskResult:
    await asyncio.Event().wait()
    raise AssertionError(runtime)
