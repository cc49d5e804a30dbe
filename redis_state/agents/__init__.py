"""An agent's state: one frozen value that survives processes and languages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.lazy import lazily

if TYPE_CHECKING:
    from redis_state.agents.runtime.limits import DEFAULT_BUDGET
    from redis_state.agents.runtime.llm import (
        Driver,
        Scope,
        ScriptedDriver,
        Steering,
        Tool,
        ToolRun,
        Turn,
    )
    from redis_state.agents.runtime.loop import AgentLoop
    from redis_state.agents.runtime.run import run_session
    from redis_state.agents.runtime.session_runtime import (
        SessionEvent,
        SessionEventType,
        SessionLease,
        SessionRuntime,
        SessionStage,
    )
    from redis_state.agents.runtime.subagents import SubAgents
    from redis_state.agents.state.agent_state import AgentState
    from redis_state.agents.state.budget import ExecutionBudget
    from redis_state.agents.state.context import AgentContext
    from redis_state.agents.state.execution import ExecutionState, ExecutionStatus
    from redis_state.agents.state.ids import (
        derived_id,
        execution_id_for,
        id_for,
        new_id,
        session_id_for,
    )
    from redis_state.agents.state.inference import (
        InferenceResponse,
        LlmConfig,
        ResponseData,
        ResponseFormat,
        Usage,
    )
    from redis_state.agents.state.messages import (
        Message,
        Messages,
        MessageStore,
        Section,
        ToolCall,
        ToolResult,
    )
    from redis_state.agents.state.session import (
        AgentDefinition,
        AgentSession,
        SessionHeader,
        SessionStatus,
    )
    from redis_state.agents.state.steps import (
        AgentStep,
        AgentStepType,
        StepError,
        StepExecution,
        StepExecutions,
        ToolExecution,
    )
    from redis_state.agents.state.stop_signals import (
        GUIDE_PRIORITIES,
        PRIORITIES,
        ExecutionContinuation,
        StopReason,
        StopSignal,
        StopSignals,
    )
    from redis_state.agents.state.wire.frozen import FrozenMap
    from redis_state.agents.storage.history import ExecutionHistory, summary_of
    from redis_state.agents.storage.raw import RawSession
    from redis_state.agents.storage.session_store import SessionPage, SessionStore
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "redis_state.agents.runtime.limits": "DEFAULT_BUDGET",
            "redis_state.agents.runtime.llm": (
                "Driver Scope ScriptedDriver Steering Tool ToolRun Turn"
            ),
            "redis_state.agents.runtime.loop": "AgentLoop",
            "redis_state.agents.runtime.run": "run_session",
            "redis_state.agents.runtime.session_runtime": (
                "SessionEvent SessionEventType SessionLease SessionRuntime SessionStage"
            ),
            "redis_state.agents.runtime.subagents": "SubAgents",
            "redis_state.agents.state.agent_state": "AgentState",
            "redis_state.agents.state.budget": "ExecutionBudget",
            "redis_state.agents.state.context": "AgentContext",
            "redis_state.agents.state.execution": "ExecutionState ExecutionStatus",
            "redis_state.agents.state.ids": (
                "derived_id execution_id_for id_for new_id session_id_for"
            ),
            "redis_state.agents.state.inference": (
                "InferenceResponse LlmConfig ResponseData ResponseFormat Usage"
            ),
            "redis_state.agents.state.messages": (
                "Message Messages MessageStore Section ToolCall ToolResult"
            ),
            "redis_state.agents.state.session": (
                "AgentDefinition AgentSession SessionHeader SessionStatus"
            ),
            "redis_state.agents.state.steps": (
                "AgentStep AgentStepType StepError StepExecution StepExecutions ToolExecution"
            ),
            "redis_state.agents.state.stop_signals": (
                "GUIDE_PRIORITIES PRIORITIES ExecutionContinuation StopReason "
                "StopSignal StopSignals"
            ),
            "redis_state.agents.state.wire.frozen": "FrozenMap",
            "redis_state.agents.storage.history": "ExecutionHistory summary_of",
            "redis_state.agents.storage.raw": "RawSession",
            "redis_state.agents.storage.session_store": "SessionPage SessionStore",
        },
    )

__all__ = [
    "DEFAULT_BUDGET",
    "GUIDE_PRIORITIES",
    "PRIORITIES",
    "AgentContext",
    "AgentDefinition",
    "AgentLoop",
    "AgentSession",
    "AgentState",
    "AgentStep",
    "AgentStepType",
    "Driver",
    "ExecutionBudget",
    "ExecutionContinuation",
    "ExecutionHistory",
    "ExecutionState",
    "ExecutionStatus",
    "FrozenMap",
    "InferenceResponse",
    "LlmConfig",
    "Message",
    "MessageStore",
    "Messages",
    "RawSession",
    "ResponseData",
    "ResponseFormat",
    "Scope",
    "ScriptedDriver",
    "Section",
    "SessionEvent",
    "SessionEventType",
    "SessionHeader",
    "SessionLease",
    "SessionPage",
    "SessionRuntime",
    "SessionStage",
    "SessionStatus",
    "SessionStore",
    "Steering",
    "StepError",
    "StepExecution",
    "StepExecutions",
    "StopReason",
    "StopSignal",
    "StopSignals",
    "SubAgents",
    "Tool",
    "ToolCall",
    "ToolExecution",
    "ToolResult",
    "ToolRun",
    "Turn",
    "Usage",
    "derived_id",
    "execution_id_for",
    "id_for",
    "new_id",
    "run_session",
    "session_id_for",
    "summary_of",
]
