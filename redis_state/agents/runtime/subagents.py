"""Agents that agents call: each has a session of its own, below that of its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from redis_state import limits
from redis_state.agents.runtime.llm import Driver, Scope, Steering, Tool, ToolRun
from redis_state.agents.runtime.loop import AgentLoop
from redis_state.agents.runtime.run import run_session
from redis_state.agents.runtime.session_runtime import SessionRuntime
from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.context import AgentContext
from redis_state.agents.state.execution import ExecutionStatus
from redis_state.agents.state.ids import derived_id
from redis_state.agents.state.inference import LlmConfig
from redis_state.agents.state.session import AgentDefinition, AgentSession
from redis_state.agents.state.stop_signals import StopSignal
from redis_state.agents.state.wire.frozen import FrozenMap
from redis_state.errors import SessionConflict
from redis_state.models.steering import SteeringEvent

TOOL_NAME = "spawn_subagent"
_SCHEMA = {
    "type": "object",
    "properties": {
        "subagent": {"type": "string", "description": "Which one to call."},
        "prompt": {"type": "string", "description": "What it is to do, and all it must know."},
    },
    "required": ["subagent", "prompt"],
}


class SubAgentError(Exception):
    """A sub-agent cannot be called, or has failed. The model that called it receives this."""


@dataclass(frozen=True, slots=True)
class SubAgents:
    """The tool by which an agent calls others and waits for their answers.

    A sub-agent's session is derived from the call, so it continues after a crash. It has its
    definition's budget and tools. ``drivers`` gives each definition its model. Below ``max_depth``
    there are none. A stop of the first agent stops all below it.
    """

    runtime: SessionRuntime
    definitions: Mapping[str, AgentDefinition]
    drivers: Callable[[AgentDefinition], Driver]
    tools: Sequence[Tool] = ()
    max_depth: int = 3
    lease_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what cannot be. Errors: ConfigError."""
        with limits.options():
            limits.count("max_depth", self.max_depth, least=0)
            limits.seconds("lease_s", self.lease_s)

    @property
    def tool(self) -> Tool:
        """The tool."""
        known = "; ".join(f"{name}: {each.description}" for name, each in self.definitions.items())
        return Tool(TOOL_NAME, self._call, f"Have another agent work. {known}", FrozenMap(_SCHEMA))

    async def _call(self, run: ToolRun) -> str:
        name, prompt = run.arguments.get("subagent"), run.arguments.get("prompt")
        definition = self.definitions.get(name) if isinstance(name, str) else None
        if definition is None or not isinstance(prompt, str):
            known = ", ".join(self.definitions)
            raise SubAgentError(f"needs a subagent, one of {known}, and a prompt")
        depth = run.scope.depth + 1
        if depth > self.max_depth:
            raise SubAgentError(f"no agent may be called below depth {self.max_depth}")
        child_id = derived_id(run.id, "session")
        with suppress(SessionConflict):  # from before a crash
            await self.runtime.create(_child(run, definition, child_id))
        loop = AgentLoop(self.drivers(definition), tools=(*self.tools, self.tool))
        scope = Scope(child_id, depth, _StopsOnly(run.scope.steering))
        # A dead owner holds it for the rest of its lease.
        async with self.runtime.holding(
            child_id, lease_s=self.lease_s, wait_s=3 * self.lease_s
        ) as lease:
            session = await run_session(
                self.runtime,
                child_id,
                loop,
                message=prompt,
                execution_id=derived_id(child_id, "execution"),
                scope=scope,
                fence=lease.fence,
            )
        return _answer(session)


def _child(run: ToolRun, definition: AgentDefinition, child_id: str) -> AgentSession:
    config = definition.llm_config
    state = AgentState(
        agent_id=derived_id(child_id, "agent"),
        parent_agent_id=run.state.agent_id,
        context=AgentContext(system_prompt=definition.system_prompt),
        llm_config=config if isinstance(config, LlmConfig) else run.state.llm_config,
    )
    parent_id = run.scope.session_id or None
    return AgentSession.fresh(definition, session_id=child_id, parent_id=parent_id, state=state)


def _answer(session: AgentSession) -> str:
    state = session.state
    if state.status is not ExecutionStatus.COMPLETED:
        raise SubAgentError(f"the subagent ended as {state.status}: {state.stop_signal() or ''}")
    return state.final_response.strip()


class _StopsOnly:
    """Messages go to the first agent only; a stop is for all."""

    def __init__(self, steering: Steering) -> None:
        self._steering = steering

    async def checkpoint(self) -> StopSignal | None:
        return await self._steering.checkpoint()

    def take(self) -> Sequence[SteeringEvent]:
        return ()
