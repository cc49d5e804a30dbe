"""How one operation of pydantic-ai becomes a step of the task."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, TypeAlias, TypeGuard

from pydantic import TypeAdapter
from pydantic_ai.durable_exec import (
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    record_durable_unit,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage

from redis_state.errors import RedisStateError
from redis_state.integrations.agent_runs.running import Work, do_unit
from redis_state.integrations.agent_runs.scopes import AgentScope, needed_scope, part
from redis_state.integrations.pydantic_ai.events import event_parts, publishes_itself
from redis_state.worker import RetryPolicy, TaskHandedBack
from redis_state.worker.tasks.execution.exits import TaskPaused

UnitConfig: TypeAlias = RetryPolicy | None

# Requests of a model have no effects: a cancel cuts them short. Tools are let end.
_OF_MODELS = (ModelRequestId, ModelCompactMessagesId, ModelCancelSuspendedResponseId)
_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)
_LONGEST_NAME = 160


class StepBackend(JournalCallableOperationBackend[UnitConfig]):
    """Run each operation as a keyed step of the task that the caller is in."""

    def __init__(
        self,
        *,
        agent_name: str,
        default_model_id: str | None,
        config: RoleBasedOperationConfig[UnitConfig],
        handler: object,
    ) -> None:
        super().__init__(agent_name=agent_name, default_model_id=default_model_id, config=config)
        self._handler = handler

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Work,
        cache_key: tuple[object, ...],
        config: UnitConfig,
    ) -> object:
        """Run an operation once, or return its record. See `TaskContext.keyed_step`."""
        scope, about = needed_scope(), _context_of(cache_key)
        if isinstance(operation_id, EventStreamHandlerId) and publishes_itself(self._handler):
            # Its updates have keys of their own: a step for each would only double them.
            return await body()
        name = name if len(name) <= _LONGEST_NAME else part(name)
        place = _place_of(scope, operation_id, name, about, cache_key)
        if isinstance(operation_id, ToolsetCallToolId) and about is not None:
            found = await run_unit(scope, name, place, _with_usage(about, body), config)
            return _counted(about, found)
        if isinstance(operation_id, ModelCancelSuspendedResponseId) and not _is_of_run(scope):
            # No unit begins in a cancelled task. And what a later run waits for is left alone.
            return await body() if scope.ctx.inbox.cancelled else None
        cuts = isinstance(operation_id, _OF_MODELS)
        return await run_unit(scope, name, place, body, config, cuts=cuts)


async def run_unit(
    scope: AgentScope,
    name: str,
    place: str,
    work: Work,
    policy: UnitConfig = None,
    *,
    cuts: bool = False,
) -> Any:
    """Run some work as a step, and return what is recorded of it.

    With ``cuts`` the work is cancelled as soon as its task is. Errors: the work's own;
    TaskCancelled, LeaseLost.
    """
    try:
        found, ran = await do_unit(scope, name, place, work, policy, cuts=cuts)
    except BaseException as error:
        scope.raised = error
        raise
    scope.raised = None
    record_durable_unit(executed=ran)
    return found


async def wait_once(scope: AgentScope, delay_s: float) -> None:
    """Wait between two requests for a response that a provider works on, once for all runs."""

    async def wait() -> None:
        await asyncio.sleep(max(delay_s, 0.0))

    await run_unit(scope, "wait for the provider", scope.next("wait"), wait, cuts=True)


def tool_scope(scope: AgentScope, ctx: RunContext[Any], call: ToolCallPart) -> AgentScope:
    """Return the scope of a tool call: of its step, and of the agents that it runs."""
    # Its id is unique in its response: pydantic-ai refuses a response in which one is not.
    approved = ["approved"] if ctx.tool_call_approved else []
    place = scope.next(str(ctx.run_step), call.tool_call_id, *approved, kind="tool")
    return AgentScope(scope.run, place, of_call=True)


def _place_of(
    scope: AgentScope,
    operation_id: DurableOperationId,
    name: str,
    ctx: RunContext[Any] | None,
    cache_key: tuple[object, ...],
) -> str:
    if isinstance(operation_id, EventStreamHandlerId):
        return scope.next(*event_parts(cache_key[0]), kind=name)
    if isinstance(operation_id, ToolsetCallToolId) and scope.of_call:
        return scope.next("call")
    if ctx is None:
        return scope.next(kind=name)
    call = [] if ctx.tool_call_id is None else [ctx.tool_call_id]
    return scope.next(str(ctx.run_step), *call, kind=name)


def _is_of_run(scope: AgentScope) -> bool:
    """Return whether a response is given up because of the agent, and not of how this run ends."""
    inbox, ended = scope.ctx.inbox, (RedisStateError, TaskHandedBack, TaskPaused)
    over = inbox.leaving or inbox.cancelled or isinstance(inbox.over, ended)
    return not (over or isinstance(scope.raised, ended))


def _context_of(cache_key: tuple[object, ...]) -> RunContext[Any] | None:
    return next(filter(_is_context, cache_key), None)


def _is_context(value: object) -> TypeGuard[RunContext[Any]]:
    return isinstance(value, RunContext)


def _with_usage(ctx: RunContext[Any], body: Work) -> Work:
    """Record what a tool's own agents have used beside its result: a replay runs none of them."""

    async def work() -> dict[str, Any]:
        before = copy(ctx.usage)
        before.details = dict(ctx.usage.details)
        # Counted apart: parallel tools share the run's.
        shared, ctx.usage = ctx.usage, copy(before)
        ctx.usage.details = dict(before.details)
        try:
            value, used = await body(), ctx.usage - before
        finally:
            ctx.usage = shared
        usage = _USAGE.dump_python(used, mode="json") if used.has_values() else None
        return {"value": value, "usage": usage}

    return work


def _counted(ctx: RunContext[Any], found: dict[str, Any]) -> object:
    if found["usage"] is not None:
        ctx.usage.incr(_USAGE.validate_python(found["usage"]))
    return found["value"]
