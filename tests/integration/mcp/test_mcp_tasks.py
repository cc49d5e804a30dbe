"""The Tasks extension: calls of tools that are tasks, with the SDK's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

from mcp.client.client import Client
from mcp.client.extension import advertise
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, EmptyResult

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidField
from redis_state.integrations.mcp import (
    TASKS,
    DurableTool,
    RedisSubscriptionBus,
    RedisTasks,
    TaskFollower,
    durable_tool,
    mcp_handlers,
)
from redis_state.integrations.mcp.following import (
    CancelTask,
    CreatedTask,
    GetTask,
    ReportedTask,
    UpdateTask,
)
from redis_state.integrations.mcp.tasks import TaskParams, TaskUpdateParams
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.mcp.servers import mcp_client, serving_mcp
from tests.support.mcp.tools import TOOLS, echo
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import pool

pytestmark = pytest.mark.worker


class Caller:
    """A client that sees tasks as they are."""

    def __init__(self, client: Client) -> None:
        self.session = client.session

    async def begin(self, tool: str, **arguments: Any) -> str:
        """Call a tool; return the id of its task."""
        created: Any = await self.session.call_tool(tool, arguments, allow_claimed=True)
        assert isinstance(created, CreatedTask), created
        assert created.status == "working"
        return created.task_id

    async def get(self, task_id: str) -> ReportedTask:
        """Ask for a task."""
        params = TaskParams(task_id=task_id)
        return await self.session.send_request(GetTask(params=params), ReportedTask)

    async def becomes(self, task_id: str, status: str) -> ReportedTask:
        """Wait until a task has a status."""

        async def found() -> ReportedTask | None:
            task = await self.get(task_id)
            return task if task.status == status else None

        task: ReportedTask | None = await eventually(found, f"the task is {status}", timeout_s=30)
        assert task is not None
        return task

    async def answer(self, task_id: str, **answers: Any) -> None:
        """Answer what a task asks."""
        params = TaskUpdateParams(task_id=task_id, input_responses=answers)
        await self.session.send_request(UpdateTask(params=params), EmptyResult)

    async def cancel(self, task_id: str) -> None:
        """Cancel a task."""
        params = TaskParams(task_id=task_id)
        await self.session.send_request(CancelTask(params=params), EmptyResult)


def accept(*, ok: Any = True) -> dict[str, Any]:
    """Make an answer."""
    return {"action": "accept", "content": {"ok": ok}}


@asynccontextmanager
async def served(store: RedisStateStore, **options: Any) -> AsyncGenerator[MCPServer]:
    """Serve the tools, and run them."""
    async with pool(store, mcp_handlers(*TOOLS)) as client:
        tasks = RedisTasks(client, TOOLS, poll_s=0.03, **options)
        yield MCPServer("tests", extensions=[tasks], log_level="CRITICAL")


@asynccontextmanager
async def calling(server: MCPServer, **options: Any) -> AsyncGenerator[Caller]:
    """Connect a client that knows of tasks."""
    async with Client(server, extensions=[TaskFollower()], **options) as client:
        yield Caller(client)


async def refused(code: int, call: Any) -> None:
    """Expect an error."""
    with pytest.raises(MCPError) as found:
        await call
    assert found.value.error.code == code


async def test_a_call_becomes_a_task_with_a_result(store: RedisStateStore) -> None:
    values: list[Any] = ["plain", None, 2**70, {"\u00e9\n": ["", {}]}, "x" * 300_000]
    async with served(store) as server, calling(server) as caller:
        for value in values:
            task = await caller.begin("echo", value=value)
            done = await caller.becomes(task, "completed")
            assert done.result is not None
            assert done.result["structuredContent"] == {"value": value}
            assert (done.input_requests, done.error) == (None, None)
        task = await caller.begin("odd.name-1", place={"from": "here"})
        done = await caller.becomes(task, "completed")
        assert done.result is not None
        assert done.result["content"][0]["text"] == "here x 3"
        # The SDK checks the arguments before there is a task.
        unfit: list[dict[str, Any]] = [{"place": {}}, {"place": {"from": "x"}, "count": 0}]
        for wrong in unfit:
            result: Any = await caller.session.call_tool("odd.name-1", wrong, allow_claimed=True)
            assert result.is_error


async def test_a_server_without_the_key_of_a_result_says_so(settings: Settings) -> None:
    async with opened(settings, KEYS[0]) as store, opened(settings) as other:
        async with served(store) as server, calling(server) as caller:
            task = await caller.begin("echo", value="secret")
            await caller.becomes(task, "completed")
        async with TaskClient(other) as client:
            server = MCPServer(
                "tests", extensions=[RedisTasks(client, TOOLS)], log_level="CRITICAL"
            )
            async with calling(server) as caller:
                with pytest.raises(MCPError, match="lacks the key of the task's result"):
                    await caller.get(task)


async def test_errors_of_tools_and_of_protocols(store: RedisStateStore) -> None:
    async with served(store) as server, calling(server) as caller:
        task = await caller.begin("fail", how="tool")
        told = (await caller.becomes(task, "completed")).result
        assert told is not None
        assert told["isError"]
        assert told["content"][0]["text"].endswith("the model may read this")
        task = await caller.begin("fail", how="crash")
        told = (await caller.becomes(task, "completed")).result
        assert told is not None
        assert told["isError"]
        assert "secret" not in str(told)
        for how, code, message in (
            ("protocol", -32050, "the client reads this\nall"),
            ("pause", -32603, "The task has failed"),
        ):
            failed = await caller.becomes(await caller.begin("fail", how=how), "failed")
            assert failed.error is not None
            assert (failed.error.code, failed.error.message) == (code, message)
            assert failed.result is None


async def test_a_task_asks_several_things_and_takes_each_answer_once(
    store: RedisStateStore,
) -> None:
    async with served(store) as server, calling(server) as caller:
        task = await caller.begin("ask_twice")
        first = (await caller.becomes(task, "input_required")).input_requests or {}
        await eventually(lambda: _asked(caller, task, 2), "both are asked")
        first = (await caller.get(task)).input_requests or {}
        assert {str(each.method) for each in first.values()} == {"elicitation/create"}
        one, two = first
        unfit: list[Any] = [
            accept(ok="not a bool"),
            {"action": "accept"},
            {"action": "x"},
            [],
            None,
        ]
        for wrong in unfit:
            await refused(-32602, caller.answer(task, **{one: wrong}))
        await caller.answer(task, **{one: accept(), "unknown": accept()})
        left = await caller.get(task)
        assert (left.status, list(left.input_requests or {})) == ("input_required", [two])
        # A late answer, or the same one again, changes nothing.
        await caller.answer(task, **{one: {"action": "decline"}})
        await caller.answer(task, **{two: {"action": "decline"}})

        async def third() -> str | None:
            found = (await caller.get(task)).input_requests or {}
            return next((key for key in found if key not in first), None)

        key = await eventually(third, "the third is asked")
        await caller.answer(task, **{str(key): {"action": "cancel"}})
        done = await caller.becomes(task, "completed")
        assert done.result is not None
        assert done.result["content"][0]["text"] == "accept decline cancel"
        await caller.answer(task, **{two: accept()})


async def _asked(caller: Caller, task: str, number: int) -> bool:
    return len((await caller.get(task)).input_requests or {}) == number


async def test_cancelling_is_final_and_may_be_repeated(store: RedisStateStore) -> None:
    async with served(store) as server, calling(server) as caller:
        for tool, arguments in (("sleep", {"seconds": 600}), ("ask_twice", {})):
            task = await caller.begin(tool, **arguments)
            await caller.cancel(task)
            await caller.becomes(task, "cancelled")
            await caller.cancel(task)
            await caller.answer(task, x=accept())
        done = await caller.begin("echo", value=1)
        await caller.becomes(done, "completed")
        await caller.cancel(done)
        assert (await caller.get(done)).status == "completed"
        for odd in ("", "nobody's", "\u00e9\n{}*", "x" * 5000, f"{done} "):
            await refused(-32602, caller.get(odd))
            await refused(-32602, caller.cancel(odd))
            await refused(-32602, caller.answer(odd, x=accept()))


async def test_what_operators_decide_is_not_shown_to_clients(store: RedisStateStore) -> None:
    async with served(store) as server, calling(server) as caller:
        task = await caller.begin("approve")
        async with TaskClient(store) as client:

            async def opened() -> Any:
                return await client.pauses()

            pause = (await eventually(opened, "the pause is open"))[0]
            found = await caller.get(task)
            assert (found.status, found.input_requests) == ("working", None)
            await caller.answer(task, **{str(pause.pause_id).rpartition(":")[2]: accept()})
            assert len(await client.pauses()) == 1
        await caller.cancel(task)


async def test_the_sdks_client_follows_a_task_and_answers_it(store: RedisStateStore) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        del context
        asked.append(params.message)
        return ElicitResult(action="accept", content={"ok": True})

    async with served(store) as server:
        follower = TaskFollower()
        async with Client(server, extensions=[follower], elicitation_callback=elicit) as client:
            result = await client.call_tool("ask_twice", {})
            assert result.content[0].text == "accept accept accept"  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            assert sorted(asked) == ["question 1", "question 2", "question 3"]
            result = await client.call_tool("resolved", {})
            assert result.structured_content == {"result": "ok=True"}
            assert asked[3:] == ["before the task"]
            with pytest.raises(MCPError, match="the client reads this"):
                await client.call_tool("fail", {"how": "protocol"})
            # Nobody waits any more: the task ends too.
            waiting = asyncio.create_task(client.call_tool("sleep", {"seconds": 600}))
            async with TaskClient(store) as tasks:
                state = (await eventually(tasks.unfinished, "the task is there"))[0]
                waiting.cancel()
                await asyncio.wait({waiting})
                ended = await tasks.wait(state.session_id, state.task_id, timeout_s=30)
                assert ended.status is TaskStatus.CANCELLED


async def test_a_call_whose_answer_is_refused_cancels_its_task(store: RedisStateStore) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        del context, params
        return ElicitResult(action="accept", content={"ok": "perhaps"})

    async with served(store) as server, TaskClient(store) as tasks:
        follower = TaskFollower()
        async with Client(server, extensions=[follower], elicitation_callback=elicit) as client:
            with pytest.raises(MCPError, match="does not fit"):
                await client.call_tool("ask_twice", {})
        (found,) = (await tasks.find()).tasks
        ended = await tasks.wait(found.session_id, found.task_id, timeout_s=30)
        assert ended.status is TaskStatus.CANCELLED


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_without_tasks_waits_in_its_call(store: RedisStateStore, mode: str) -> None:
    async with served(store) as server, Client(server, mode=mode) as client:
        result = await client.call_tool("echo", {"value": {"a": [1]}})
        assert result.structured_content == {"value": {"a": [1]}}
        with pytest.raises(MCPError) as found:
            await client.call_tool("fail", {"how": "tool"})
        assert found.value.error.code == -32021
        waiting = asyncio.create_task(client.call_tool("sleep", {"seconds": 600}))
        async with TaskClient(store) as tasks:
            state = (await eventually(tasks.unfinished, "the task is there"))[0]
            waiting.cancel()
            await asyncio.wait({waiting})
            ended = await tasks.wait(state.session_id, state.task_id, timeout_s=30)
            assert ended.status is TaskStatus.CANCELLED


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_tool_that_asks_a_client_without_tasks_ends_its_call(
    store: RedisStateStore, mode: str
) -> None:
    async with served(store) as server, Client(server, mode=mode) as client:
        with pytest.raises(MCPError, match="'ask_twice' asks its client") as found:
            async with asyncio.timeout(30):
                await client.call_tool("ask_twice", {})
        assert found.value.error.code == -32021
        async with TaskClient(store) as tasks:
            # Not left to wait for an answer.
            (task,) = (await tasks.find()).tasks
            ended = await tasks.wait(task.session_id, task.task_id, timeout_s=30)
            assert ended.status is TaskStatus.CANCELLED
        # What an operator decides is waited for.
        calling = asyncio.create_task(client.call_tool("approve", {}))
        async with TaskClient(store) as tasks:
            pause = (await eventually(tasks.pauses, "an operator is asked"))[0]
            await tasks.resolve(str(pause.pause_id), approved=True, actor="ann")
        assert (await calling).structured_content == {"result": "yes"}


async def test_methods_of_the_extension_need_it(store: RedisStateStore) -> None:
    async with served(store) as server, Client(server) as client:
        plain = Caller(client)
        await refused(-32021, plain.get("x"))
        await refused(-32021, plain.cancel("x"))
        await refused(-32021, plain.answer("x"))
    assert advertise(TASKS).identifier == TASKS


async def test_40_callers_get_their_own_results(store: RedisStateStore) -> None:
    async with served(store) as server, Client(server, extensions=[TaskFollower()]) as client:

        async def call(number: int) -> None:
            result = await client.call_tool("echo", {"value": number})
            assert result.structured_content == {"value": number}

        await client.list_tools()
        await asyncio.gather(*map(call, range(40)))


async def test_no_user_reaches_the_tasks_of_another(store: RedisStateStore) -> None:
    follower = {"extensions": [TaskFollower()]}
    async with (
        pool(store, mcp_handlers(*TOOLS)),
        serving_mcp(store, users=True) as port,
        mcp_client(port, user="ann", **follower) as one,
        mcp_client(port, user="ann/renewed", **follower) as again,
        mcp_client(port, user="bob", **follower) as other,
    ):
        ann, ann_again, bob = Caller(one), Caller(again), Caller(other)
        task = await ann.begin("ask_twice")
        await ann.becomes(task, "input_required")
        await refused(-32602, bob.get(task))
        await refused(-32602, bob.cancel(task))
        key = next(iter((await ann_again.get(task)).input_requests or {}))
        await refused(-32602, bob.answer(task, **{key: accept()}))
        await ann_again.cancel(task)
        await ann.becomes(task, "cancelled")


async def test_changes_reach_the_listeners_of_all_replicas(store: RedisStateStore) -> None:
    async with (
        serving_mcp(store) as first,
        serving_mcp(store) as second,
        mcp_client(first) as one,
        mcp_client(second) as two,
    ):
        uri = "test://\u00e9/1"
        async with two.listen(resource_subscriptions=[uri]) as heard:
            await one.call_tool("change", {"uri": "test://other"})
            await one.call_tool("change", {"uri": uri})
            async with asyncio.timeout(20):
                event: Any = await anext(aiter(heard))
            assert event.uri == uri


async def test_tools_and_options_are_checked(store: RedisStateStore) -> None:
    async def without_context(value: int) -> int:
        return value

    async def with_more(ctx: TaskContext, **more: Any) -> Any:
        return ctx, more

    async def by_place(ctx: TaskContext, value: int, /) -> int:
        return value

    def not_async(ctx: TaskContext) -> Any:
        return ctx

    for wrong in (without_context, with_more, by_place, not_async):
        with pytest.raises(InvalidField, match="function"):
            durable_tool(wrong)
    with pytest.raises(InvalidField, match="tools"):
        mcp_handlers(echo, echo)
    async with TaskClient(store) as client:
        with pytest.raises(InvalidField, match="tools"):
            RedisTasks(client, [echo, DurableTool(echo.function)])
        with pytest.raises(InvalidField, match="poll_s"):
            RedisTasks(client, [echo], poll_s=0)
    with pytest.raises(InvalidField, match="patience_s"):
        TaskFollower(patience_s=-1)
    with pytest.raises(InvalidField, match="name"):
        RedisSubscriptionBus(store, name="")
    assert repr(echo) == "<DurableTool 'echo'>"
