"""An agent's state: one frozen value that survives processes and languages."""

from redis_state.agents.budget import ExecutionBudget
from redis_state.agents.context import AgentContext
from redis_state.agents.driver import Driver, Scope, ScriptedDriver, Steering, Tool, ToolRun, Turn
from redis_state.agents.execution import ExecutionState, ExecutionStatus
from redis_state.agents.frozen import FrozenMap
from redis_state.agents.guards import DEFAULT_BUDGET
from redis_state.agents.history import ExecutionHistory, summary_of
from redis_state.agents.ids import (
    derived_id,
    execution_id_for,
    id_for,
    new_id,
    session_id_for,
)
from redis_state.agents.inference import (
    InferenceResponse,
    LlmConfig,
    ResponseData,
    ResponseFormat,
    Usage,
)
from redis_state.agents.loop import AgentLoop
from redis_state.agents.messages import (
    Message,
    Messages,
    MessageStore,
    Section,
    ToolCall,
    ToolResult,
)
from redis_state.agents.raw import RawSession
from redis_state.agents.run import run_session
from redis_state.agents.runtime import (
    SessionEvent,
    SessionEventType,
    SessionLease,
    SessionRuntime,
    SessionStage,
)
from redis_state.agents.session import AgentDefinition, AgentSession, SessionHeader, SessionStatus
from redis_state.agents.session_store import SessionPage, SessionStore
from redis_state.agents.signals import (
    GUIDE_PRIORITIES,
    PRIORITIES,
    ExecutionContinuation,
    StopReason,
    StopSignal,
    StopSignals,
)
from redis_state.agents.state import AgentState
from redis_state.agents.steps import (
    AgentStep,
    AgentStepType,
    StepError,
    StepExecution,
    StepExecutions,
    ToolExecution,
)
from redis_state.agents.subagents import SubAgents

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
