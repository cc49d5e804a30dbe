"""Where nodes of a graph are, so that `current_task` gives each its own names.

LangGraph runs a node again from its start: after a crash, after an interrupt, and by its own retry
policy. It names each execution by a namespace of checkpoints: the node's name, and a hash of the
checkpoint that the step began with. So that is the same in each repetition. What a node records is
found by it: its steps, the keys of its effects, and the units of agents that it runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from langgraph.runtime import Runtime, get_runtime

from redis_state.integrations.agent_runs.scopes import AgentScope, AgentsOfTask, part

# A namespace, and one of the attempts at what runs there.
_Execution: TypeAlias = tuple[str, float | None, int]


@dataclass
class GraphScope(AgentScope):
    """The scope of a task whose handler is a graph. Each execution of a node is one in it."""

    _nodes: dict[str, tuple[_Execution, AgentScope]] = field(
        default_factory=dict[str, tuple[_Execution, AgentScope]]
    )

    def here(self) -> AgentScope:
        """Return where the caller is: in a node, else in the handler itself."""
        execution = _execution()
        if execution is None:
            return super().here()
        namespace = execution[0]
        found = self._nodes.get(namespace)
        if found is None or found[0] != execution:
            found = self._nodes[namespace] = execution, self._node(namespace)
        return found[1].here()

    def _node(self, namespace: str) -> AgentScope:
        name = part(namespace.rpartition("|")[2].partition(":")[0])
        key = hashlib.sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        run = AgentsOfTask(self.ctx.keyed_branch(name, key), self.run.units)
        # Keys of pauses and of updates are the whole task's: the path keeps them apart.
        return AgentScope(run, self.place(f"{name}~{key}"), attempt=self.attempt)


def _execution() -> _Execution | None:
    """Return which execution of a node the caller is in, or None outside of one."""
    try:
        # None in a runnable of LangChain that no graph runs.
        runtime = cast("Runtime[Any] | None", get_runtime())
    except (RuntimeError, KeyError):
        return None
    info = None if runtime is None else runtime.execution_info
    if info is None:
        return None
    return info.checkpoint_ns, info.node_first_attempt_time, info.node_attempt
