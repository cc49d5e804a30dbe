"""The capability that makes an agent durable in tasks, on the public seam of pydantic-ai."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal, cast

from pydantic_ai import ToolsetTool
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.capabilities import ModelFallback, RequestInput
from pydantic_ai.capabilities.abstract import (
    CapabilityOrdering,
    WrapRunHandler,
    WrapToolExecuteHandler,
)
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
    external_event_scope,
    replay_scope,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolDefinition,
)

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.scopes import (
    AgentScope,
    current_scope,
    entered,
    named_once,
)
from redis_state.integrations.pydantic_ai.approvals import PauseTerms, check_terms, decided
from redis_state.integrations.pydantic_ai.backend import (
    StepBackend,
    UnitConfig,
    run_unit,
    tool_scope,
    wait_once,
)
from redis_state.integrations.pydantic_ai.waiting import PausingWaiter
from redis_state.worker import RetryPolicy, TaskCancelled
from redis_state.worker.tasks.execution.exits import TaskPaused

# The key of a tool's metadata: ``{"redis_state": {"retry": RetryPolicy(...)}}``, or False.
METADATA = "redis_state"


def _not_json(error: Exception) -> InvalidField:
    """Take the place of an error of pydantic's, which quotes the value."""
    return InvalidField("result", f"of a step cannot be written as JSON ({type(error).__name__})")


class RedisStateDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make an agent durable: in a task, its model requests and tool calls are steps.

    Outside of a task the agent runs as it does without this.

    ``retry`` is for model requests, ``tools`` for tool calls, by their name; without one the
    worker's policy for steps holds. A tool may say it itself, in its metadata:
    ``{"redis_state": {"retry": RetryPolicy(attempts=5)}}``. ``{"redis_state": False}`` runs a tool
    in the handler and not as a step: for one that only runs other agents, say.

    ``pauses`` are the terms of the pauses that deferred tool calls become: the options of
    `TaskContext.open_pause`, such as ``timeout``, ``tags`` or ``of``, or a function of the run's
    context and the call that returns them. False leaves deferred calls to pydantic-ai: the run then
    ends with `DeferredToolRequests`.

    ``models``, ``event_stream_handler`` and ``name`` are those of pydantic-ai's own engines. See
    `publish_events` for a handler. Errors: InvalidField; pydantic-ai's UserError for an agent
    without a name.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="redis_state",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        serialization_failure=_not_json,
        # Steps run in the process of the handler, so an MCP session may last for the run.
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-in-durable-unit",
        },
        # Of a run's own toolset the calls would be no steps.
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA,
        cancellation_error_types=(TaskCancelled, TaskPaused),
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        tools: Mapping[str, RetryPolicy | Literal[False]] | None = None,
        pauses: PauseTerms = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._retry = _checked("retry", retry)
        self._tools = {tool: _checked("tools", terms) for tool, terms in (tools or {}).items()}
        self._pauses: PauseTerms = check_terms(pauses)

    @property
    def in_durable_context(self) -> bool:
        """Whether the caller is in a task."""
        return current_scope() is not None

    def get_default_run_id(self) -> str | None:
        """Return the id of a run that is given none: the same in each run of its task."""
        scope = current_scope()
        if scope is None:
            return None
        path = scope.next(self.name, kind="run")
        # No run of a history has the id of another one.
        run_id = f"{scope.ctx.task.session_id}:{named_once(scope.ctx)}:{path}"
        scope.run.paths[run_id] = path
        return run_id

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a new conversation: the same in each run of its task."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when a run began, for its time limit: recorded, so a replay does not extend it.

        A fork has ids and times of its own.
        """
        scope = current_scope()
        if scope is None:
            return None

        async def begins() -> str:
            return datetime.now(UTC).isoformat()

        name = f"{self.name}__begins"
        if scope.ctx.forked:
            scope.ctx.pass_keyed_steps(name)
        place = scope.next("began", run_id, kind="began")
        began = await run_unit(scope, name, place, begins)
        return datetime.fromisoformat(began)

    def get_durable_operation_backend(self) -> StepBackend:
        """Return what runs an operation as a step."""
        return StepBackend(
            agent_name=self.name,
            default_model_id=self.default_model_id,
            config=RoleBasedOperationConfig[UnitConfig](
                model=cast("UnitConfig", self._retry),
                event=None,
                capability=None,
                tool=None,
                resolve_tool=self._tool_policy,
            ),
            handler=self._event_stream_handler,
        )

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Run in a scope of its own. Errors: InvalidField for a run that needs a `run_id`."""
        outer = current_scope()
        if outer is None:
            return await handler()
        run_id = str(ctx.run_id)
        path = outer.run.paths.pop(run_id, None)
        named = path is None
        running = (self.name, run_id if named else None)
        if running in outer.running:
            raise InvalidField(
                "run_id",
                f"of its own is needed: agent {self.name!r} runs here already, and which run comes "
                "first may be another in a replay. Give each a run_id, or a branch()",
            )
        if path is None:
            path = f"{outer.next(self.name, run_id)}~"
        scope = AgentScope(outer.run, path)
        outer.running.add(running)
        try:
            with ExitStack() as stack:
                stack.enter_context(entered(scope))
                stack.enter_context(replay_scope())
                stack.enter_context(external_event_scope(PausingWaiter(scope)))
                stack.enter_context(AbstractAgent.using_sleep(partial(wait_once, scope)))
                if self.agent is not None:
                    # Of parallel tools too, so that their updates have one order.
                    stack.enter_context(
                        self.agent.parallel_tool_call_execution_mode("parallel_ordered_events")
                    )
                return await super().wrap_run(ctx, handler=handler)
        finally:
            outer.running.discard(running)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - theirs
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a tool call in a scope of its own."""
        scope = current_scope()
        if scope is None:
            return await handler(args)
        with entered(tool_scope(scope, ctx, call)):
            return await handler(args)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Make each deferred call a pause, and wait for all of them."""
        scope, terms = current_scope(), self._pauses
        if scope is None or terms is False:
            return None
        return await decided(scope, ctx, requests, cast("PauseTerms", terms))

    def get_ordering(self) -> CapabilityOrdering:
        """Stand inside of all others: what answers a deferred call without a pause comes first."""
        return CapabilityOrdering(position="innermost", wrapped_by=(ModelFallback, RequestInput))

    def _tool_policy(
        self, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> UnitConfig | Literal[False]:
        metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
        terms: Any = (metadata or {}).get(METADATA)
        if isinstance(terms, Mapping):
            terms = cast("Mapping[str, Any]", terms).get("retry")
        if terms is None:
            terms = self._tools.get(tool_name)
        if terms is False and getattr(operation_id, "toolset_kind", None) == "mcp":
            raise InvalidField("tools", "a tool of an MCP server is always a step")
        return _checked("tools", terms)


def _checked(field: str, terms: object) -> RetryPolicy | Literal[False] | None:
    if terms is None or terms is False or isinstance(terms, RetryPolicy):
        return terms
    raise InvalidField(field, f"a RetryPolicy or False is needed, not {type(terms).__name__}")
