"""Where nodes of a graph are, so that `current_task` gives each its own names.

LangGraph runs a node again from its start: after a crash, after an interrupt, and by its own retry
policy. It names each execution by a namespace of checkpoints: the node's name, and a hash of the
checkpoint that the step began with. So that is the same in each repetition. What a node records is
found by it: its steps, the keys of its effects, and the units of agents that it runs.
"""

from __future__ import annotations

from typing import Any, cast

from langgraph.runtime import Runtime, get_runtime

from redis_state.integrations.agent_runs.scopes import AgentScope, AgentsOfTask, Execution
from redis_state.worker import TaskContext


def graph_scope(ctx: TaskContext) -> AgentScope:
    """Make the scope of a task whose handler is a graph. Each execution of a node is one in it."""
    return AgentScope(AgentsOfTask(ctx, execution=_execution))


def _execution() -> Execution | None:
    """Return which execution of a node the caller is in, or None outside of one."""
    try:
        # None in a runnable of LangChain that no graph runs.
        runtime = cast("Runtime[Any] | None", get_runtime())
    except (RuntimeError, KeyError):
        return None
    info = None if runtime is None else runtime.execution_info
    if info is None:
        return None
    return Execution(info.checkpoint_ns, info.node_first_attempt_time, info.node_attempt)
