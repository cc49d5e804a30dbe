"""The Tasks extension of MCP (SEP-2663): a call of a tool is a task of ours, on any worker.

| MCP | here |
| --- | --- |
| ``working`` | PENDING, RUNNING, or PAUSED for an operator |
| ``input_required`` | open pauses that `open_input` made |
| ``completed``, ``failed``, ``cancelled`` | COMPLETE, FAILED, CANCELLED |

A task's session is made of its caller and its id. So a caller who asks for another's task asks for
one that does not exist.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ErrorData,
    MissingRequiredClientCapabilityErrorData,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from redis_state import limits
from redis_state.errors import (
    BackendError,
    InvalidDecision,
    InvalidField,
    InvalidTransition,
    RedisStateError,
    TokenResolved,
    TokenUnknown,
)
from redis_state.integrations.mcp.inputs import request_of, response_of
from redis_state.integrations.mcp.principals import current_principal
from redis_state.integrations.mcp.tools import DurableTool, task_error
from redis_state.models import TaskState, TaskStatus
from redis_state.serialization import codec
from redis_state.serialization.sealed import unreadable_of
from redis_state.stores.base import ms
from redis_state.worker import OpenPause, TaskClient

TASKS = "io.modelcontextprotocol/tasks"

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
_ENDS = {
    TaskStatus.COMPLETE: "completed",
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "cancelled",
}
_UNKNOWN = "Unknown task"
_UNREADABLE = "This server lacks the key of the task's result"
_GONE = "its caller has gone"
_CANCEL_S = 5.0
_ACK: dict[str, Any] = {"resultType": "complete"}


class TaskParams(RequestParams):
    """Which task."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Which task, and the answers to its questions."""

    input_responses: dict[str, Any]


@dataclass
class _Call:
    """One call of a tool, as its interceptor knows it."""

    as_task: bool
    owner: str
    arguments: dict[str, Any]
    created: str | None = None


_CALL: ContextVar[_Call | None] = ContextVar("redis_state_mcp_call", default=None)


class RedisTasks(Extension):
    """Tools whose calls are tasks on workers, for ``MCPServer(extensions=[...])``.

    The workers have the handlers of the same tools: see `mcp_handlers`. A client that has declared
    the extension gets a task. Any other waits for the result in its call, and the tool runs on a
    worker all the same; a tool that asks its client fails. Any replica answers for any task.

    ``principal`` says who calls; by default the user of the SDK's authentication, and the same for
    all without one. Then who knows a task's id, 128 random bits, has the task. Clients
    ask again after ``poll_s``. ``hard_cancel`` also cancels a tool between two of its checkpoints.
    Errors: InvalidField.
    """

    identifier = TASKS

    def __init__(
        self,
        client: TaskClient,
        tools: Sequence[DurableTool],
        *,
        principal: Callable[[], str] = current_principal,
        poll_s: float = 1.0,
        hard_cancel: bool = False,
        queue: str | None = None,
    ) -> None:
        self.client: TaskClient = client
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise InvalidField("tools", "two of them have one name")
        self._principal = principal
        self._poll_ms = round(limits.seconds("poll_s", poll_s) * 1000)
        self._hard = hard_cancel
        self._queue = queue
        settings = client.store.settings
        self._ttl_ms = min(ms(settings.active_task_ttl), ms(settings.finished_task_ttl))

    def tools(self) -> Sequence[ToolBinding]:
        """Return the tools, for the SDK."""
        return [self._binding(tool) for tool in self._tools.values()]

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of the extension, for the SDK."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get, _MODERN),
            MethodBinding("tasks/update", TaskUpdateParams, self._update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        """Return the task of a call, if the client takes tasks; else what the call returns."""
        tool = self._tools.get(params.name)
        if tool is None:
            return await call_next(ctx)
        if tool.required:
            require_client_extension(ctx, TASKS)
        owner = codec.fingerprint("mcp caller", self._principal())
        call = _Call(_takes_tasks(ctx), owner, params.arguments or {})
        token = _CALL.set(call)
        try:
            result = await call_next(ctx)
            if call.created is None or not call.as_task:
                return result
            state = await self._needed(call.created, call.owner)
        except BaseException:
            if call.created is not None and call.as_task:
                await self._give_up(call.owner, call.created)
            raise
        finally:
            _CALL.reset(token)
        return {**self._task(state, "working"), "resultType": "task"}

    def _binding(self, tool: DurableTool) -> ToolBinding:
        async def run(arguments: Any) -> CallToolResult:
            call = _CALL.get()
            sent = {} if call is None else call.arguments
            return await self._run(tool, tool.task_input(arguments, sent))

        return ToolBinding(
            tool.facade(run),
            kwargs={
                "name": tool.name,
                "title": tool.title,
                "description": tool.description,
                "annotations": tool.annotations,
            },
        )

    async def _run(self, tool: DurableTool, given: dict[str, Any]) -> CallToolResult:
        """Submit a call; without a client for tasks, wait for its result here."""
        call = _CALL.get()
        if call is None:
            owner = codec.fingerprint("mcp caller", self._principal())
            call = _Call(as_task=False, owner=owner, arguments={})
        task_id = secrets.token_urlsafe(16)
        session_id = session_of(call.owner, task_id)
        try:
            await self.client.submit(
                tool.name,
                given,
                session_id=session_id,
                task_id=task_id,
                queue=self._queue,
                attributes={"mcp_caller": call.owner},
            )
            call.created = task_id
            if call.as_task:
                # Replaced by the task. An error is what the SDK does not check against the schema.
                return CallToolResult(content=[], is_error=True)
            state = await self._ended(tool, session_id, task_id)
        except BaseException:
            await self._give_up(call.owner, task_id)
            raise
        _need_readable(state)
        if state.status is TaskStatus.COMPLETE:
            return CallToolResult.model_validate(state.result)
        raise MCPError.from_error_data(_error_of(state))

    async def _give_up(self, owner: str, task_id: str) -> None:
        """Cancel a task whose id nobody has. What ended its call is not replaced by an error."""
        session_id = session_of(owner, task_id)
        with anyio.move_on_after(_CANCEL_S, shield=True), suppress(RedisStateError):
            await self.client.cancel(session_id, task_id, reason=_GONE, hard=self._hard)

    async def _ended(self, tool: DurableTool, session_id: str, task_id: str) -> TaskState:
        """Wait for a task's end. Errors: MCPError once it asks its client, which cannot answer."""
        waiting = asyncio.ensure_future(self.client.wait(session_id, task_id))
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=self._poll_ms / 1000)
                if not waiting.done() and await self._asks(session_id, task_id):
                    raise MCPError.from_error_data(_unasked(tool))
            return waiting.result()
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})

    async def _asks(self, session_id: str, task_id: str) -> bool:
        with suppress(BackendError):
            state = await self.client.get(session_id, task_id)
            if state is not None and state.status is TaskStatus.PAUSED:
                return bool(await self._open(state))
        return False

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        state = await self._task_of(ctx, params)
        status = _ENDS.get(state.status)
        more: dict[str, Any] = {}
        _need_readable(state)
        if status == "completed":
            more["result"] = state.result
        elif status == "failed":
            more["error"] = _error_of(state).model_dump(by_alias=True, exclude_none=True)
        elif status is None:
            asked = {key: request for key, (_, request) in (await self._open(state)).items()}
            status = "input_required" if asked else "working"
            more = {"inputRequests": asked} if asked else {}
        return {**self._task(state, status or "working"), **more, **_ACK}

    async def _update(
        self, ctx: ServerRequestContext[Any, Any], params: TaskUpdateParams
    ) -> HandlerResult:
        """Decide the pauses that are answered. Answers to what is not open are left aside."""
        state = await self._task_of(ctx, params)
        opened = await self._open(state)
        answers: list[tuple[str, dict[str, Any]]] = []
        for key, response in params.input_responses.items():
            if key in opened:
                pause, request = opened[key]
                try:
                    answers.append((str(pause.pause_id), response_of(request, response)))
                except ValidationError:
                    raise MCPError(
                        INVALID_PARAMS, "An answer is not of its request's kind"
                    ) from None
        for pause_id, response in answers:
            await self._answer(pause_id, response, self._principal() or "mcp client")
        return _ACK

    async def _answer(self, pause_id: str, response: dict[str, Any], actor: str) -> None:
        try:
            await self.client.resolve(pause_id, approved=True, value=response, actor=actor)
        except InvalidDecision:
            raise MCPError(INVALID_PARAMS, "An answer does not fit the requested schema") from None
        except (TokenResolved, TokenUnknown, InvalidTransition):
            return  # another replica took the same answer, or the task ended

    async def _cancel(
        self, ctx: ServerRequestContext[Any, Any], params: TaskParams
    ) -> HandlerResult:
        state = await self._task_of(ctx, params)
        await self.client.cancel(
            state.session_id, state.task_id, reason="cancelled by its client", hard=self._hard
        )
        return _ACK

    async def _task_of(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> TaskState:
        """Return the task of a request, if it is its caller's. Errors: MCPError."""
        require_client_extension(ctx, TASKS)
        _check_name(ctx, params.task_id)
        return await self._needed(
            params.task_id, codec.fingerprint("mcp caller", self._principal())
        )

    async def _needed(self, task_id: str, owner: str) -> TaskState:
        try:
            state = await self.client.get(session_of(owner, task_id), task_id)
        except InvalidField:  # no text of ours
            state = None
        if state is None:
            raise MCPError(INVALID_PARAMS, _UNKNOWN)
        return state

    async def _open(self, state: TaskState) -> dict[str, tuple[OpenPause, dict[str, Any]]]:
        """Return what a task asks its client and has no answer yet, by the key of each."""
        found: dict[str, tuple[OpenPause, dict[str, Any]]] = {}
        for pause in await self.client.pauses(state.session_id):
            request = request_of(pause)
            if request is not None and pause.task_id == state.task_id:
                found[str(pause.pause_id).rpartition(":")[2]] = pause, request
        return found

    def _task(self, state: TaskState, status: str) -> dict[str, Any]:
        progress: Any = state.progress
        # A sealed one is no dict: this server lacks its key.
        readable = cast("dict[str, Any]", progress) if isinstance(progress, dict) else {}
        message: object = readable.get("message")
        return {
            "taskId": state.task_id,
            "status": status,
            **({"statusMessage": message} if isinstance(message, str) else {}),
            "createdAt": _moment(state.created_at),
            "lastUpdatedAt": _moment(state.updated_at),
            "ttlMs": self._ttl_ms,
            "pollIntervalMs": self._poll_ms,
        }


def session_of(owner: str, task_id: str) -> str:
    """Return the session of a task of a caller."""
    return f"mcp/{owner}/{task_id}"


def _takes_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = (capabilities.extensions if capabilities else None) or {}
    return ctx.protocol_version in _MODERN and TASKS in declared


def _check_name(ctx: ServerRequestContext[Any, Any], task_id: str) -> None:
    """Refuse a request over HTTP whose routing header names another task, or none."""
    headers = getattr(ctx.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} does not name the request's task")


def _need_readable(state: TaskState) -> None:
    """Refuse a task whose end this server cannot read. Errors: MCPError."""
    if state.status is not TaskStatus.CANCELLED and unreadable_of(state):
        raise MCPError(INTERNAL_ERROR, _UNREADABLE)


def _unasked(tool: DurableTool) -> ErrorData:
    """Return what a client lacks for a tool that asks it: nobody else may answer."""
    needed = ClientCapabilities(extensions={TASKS: {}})
    data = MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
    return ErrorData(
        code=MISSING_REQUIRED_CLIENT_CAPABILITY,
        message=f"Tool {tool.name!r} asks its client, which did not declare {TASKS!r}",
        data=data.model_dump(by_alias=True, mode="json", exclude_none=True),
    )


def _error_of(state: TaskState) -> ErrorData:
    if state.status is TaskStatus.CANCELLED:
        return ErrorData(code=_CANCELLED, message=state.error or "The task was cancelled")
    return task_error(state.error)


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_CANCELLED = -32800
