"""An agent's state: one frozen value that survives processes and languages."""

from redis_state.agents.budget import ExecutionBudget
from redis_state.agents.context import AgentContext
from redis_state.agents.execution import ExecutionState, ExecutionStatus
from redis_state.agents.history import ExecutionHistory, summary_of
from redis_state.agents.ids import new_id
from redis_state.agents.inference import (
    InferenceResponse,
    LlmConfig,
    ResponseData,
    ResponseFormat,
    Usage,
)
from redis_state.agents.messages import (
    Message,
    Messages,
    MessageStore,
    Section,
    ToolCall,
    ToolResult,
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
from redis_state.agents.wire import FrozenMap

__all__ = [
    "GUIDE_PRIORITIES",
    "PRIORITIES",
    "AgentContext",
    "AgentDefinition",
    "AgentSession",
    "AgentState",
    "AgentStep",
    "AgentStepType",
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
    "ResponseData",
    "ResponseFormat",
    "Section",
    "SessionHeader",
    "SessionPage",
    "SessionStatus",
    "SessionStore",
    "StepError",
    "StepExecution",
    "StepExecutions",
    "StopReason",
    "StopSignal",
    "StopSignals",
    "ToolCall",
    "ToolExecution",
    "ToolResult",
    "Usage",
    "new_id",
    "summary_of",
]
