"""The client's side of the Tasks extension, for the SDK's `Client`.

`Client.call_tool` returns the tool's result when its task has ended. It asks for the task as often
as the server says, on whatever replica answers, and is patient while none does. What the task asks
goes to the client's callbacks for elicitation, sampling and roots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, TypeVar

import anyio
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    EmptyResult,
    ErrorData,
    InputRequest,
    Request,
    Result,
)

from redis_state import limits
from redis_state.integrations.mcp.tasks import TASKS, TaskParams, TaskUpdateParams

ResultT = TypeVar("ResultT", bound=Result)

_SHORTEST_S = 0.02
_DEFAULT_S = 1.0
_AGAIN_S = 0.2
_CANCEL_S = 5.0
_CANCELLED = -32800
_ENDS = ("completed", "failed", "cancelled")


class CreatedTask(Result):
    """What a call returns that has become a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    poll_interval_ms: int | None = None


class ReportedTask(Result):
    """A task as it is now."""

    task_id: str
    status: str
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: ErrorData | None = None
    input_requests: dict[str, InputRequest] | None = None


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """Ask for a task."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"


class UpdateTask(Request[TaskUpdateParams, Literal["tasks/update"]]):
    """Answer what a task asks."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    """Cancel a task."""

    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"


class TaskFollower(ClientExtension):
    """Wait for tasks in ``Client(extensions=[TaskFollower()])``.

    On a `SteadyTransport`, it repeats its requests for ``patience_s`` while no server answers. A
    call that ends before its task cancels it, also if the server refuses what a callback answers.
    ``on_task`` is called with the id of each task, once the client knows it: from then on the call
    outlives its server. Errors of the call: MCPError, if the task failed or was cancelled, an
    answer was refused, or no server was reached. Errors: InvalidField.
    """

    identifier = TASKS

    def __init__(
        self, *, patience_s: float = 60.0, on_task: Callable[[str], object] | None = None
    ) -> None:
        self._patience_s = limits.patience("patience_s", patience_s)
        self._on_task = on_task

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Take results that are tasks, for the SDK."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._follow)]

    async def _follow(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        if self._on_task is not None:
            self._on_task(created.task_id)
        try:
            ended = await self._end(created, context)
        except BaseException:
            # Nobody would answer what it asks: it would wait until it expires.
            cancelling = CancelTask(params=TaskParams(task_id=created.task_id))
            with anyio.move_on_after(_CANCEL_S, shield=True), suppress(Exception):
                await self._send(context, cancelling, EmptyResult)
            raise
        if ended.status == "completed":
            return CallToolResult.model_validate(ended.result)
        if ended.status == "failed":
            failed = ErrorData(code=_CANCELLED, message="The task has failed")
            raise MCPError.from_error_data(ended.error or failed)
        raise MCPError(_CANCELLED, "The task was cancelled")

    async def _end(self, created: CreatedTask, context: ClaimContext) -> ReportedTask:
        """Wait for the end, and answer what the task asks meanwhile."""
        params = TaskParams(task_id=created.task_id)
        pause_ms = created.poll_interval_ms
        answered: set[str] = set()
        while True:
            found = await self._send(context, GetTask(params=params), ReportedTask)
            if found.status in _ENDS:
                return found
            asked = found.input_requests or {}
            for key in asked.keys() - answered:
                await self._answer(context, created.task_id, key, asked[key])
                answered.add(key)
            pause_ms = found.poll_interval_ms or pause_ms
            pause_s = _DEFAULT_S if pause_ms is None else pause_ms / 1000
            await asyncio.sleep(max(_SHORTEST_S, pause_s))

    async def _answer(
        self, context: ClaimContext, task_id: str, key: str, request: InputRequest
    ) -> None:
        asking = ClientRequestContext(session=context.session, request_id=key, meta=None)
        answer = await context.session.dispatch_input_request(asking, request)
        if isinstance(answer, ErrorData):
            raise MCPError.from_error_data(answer)
        plain = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        params = TaskUpdateParams(task_id=task_id, input_responses={key: plain})
        await self._send(context, UpdateTask(params=params), EmptyResult)

    async def _send(
        self, context: ClaimContext, request: Request[Any, Any], kind: type[ResultT]
    ) -> ResultT:
        """Send what may be repeated, again and again while no server answers."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        while True:
            try:
                return await context.session.send_request(
                    request, kind, request_read_timeout_seconds=context.read_timeout_seconds
                )
            except MCPError as error:
                if error.error.code not in _SILENT or loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(_AGAIN_S)


_SILENT = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT})
