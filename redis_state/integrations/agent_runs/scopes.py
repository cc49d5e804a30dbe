"""What identifies the units of an agent's run, in every run of its task.

A *scope* is a place where units are counted: the task, an agent's run, a tool call. Its path is
made of what the journal determines already: names, the run's step, ids of calls, and numbers of
what one asyncio task does in order. Neither time, nor chance, nor the speed of a parallel call is
part of it.

Ids that a model or a caller makes up are any text. A part of a path that is long, or has odd
characters, is replaced by its fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.units import Units
from redis_state.serialization import codec
from redis_state.worker import TaskContext
from redis_state.worker.tasks.execution.names import WORKING, NameScope

# Neither "/", which joins parts, nor "#" and "~", which are signs of ours.
_CLEAN = re.compile(r"[A-Za-z0-9_.:@+=-]{1,64}", re.ASCII)
_LONGEST_PATH = 160


class Execution(NamedTuple):
    """Which execution of a graph's node the caller is in: a namespace, and an attempt there."""

    namespace: str
    began: float | None
    attempt: int


def _in_no_graph() -> Execution | None:
    return None


@dataclass
class AgentsOfTask:
    """One run of a task, in which agents run."""

    ctx: TaskContext
    units: Units = field(default_factory=Units)
    # The paths of runs that were given their ids and have not begun.
    paths: dict[str, str] = field(default_factory=dict[str, str])
    # Finds the caller's execution, if the handler is a graph.
    execution: Callable[[], Execution | None] = _in_no_graph


@dataclass
class AgentScope:
    """A place where units are counted."""

    run: AgentsOfTask
    path: str = ""
    counts: Counter[str] = field(default_factory=Counter[str])
    # Whether it is that of one tool call.
    of_call: bool = False
    # Of a call that is made again for people: its path, the same each time.
    origin: str = ""
    # What the last unit of it that did not return has raised.
    raised: BaseException | None = None
    # The names of agents that run here, with the `run_id` that the caller gave.
    running: set[tuple[str, str | None]] = field(default_factory=set[tuple[str, str | None]])
    # The attempt at a step in whose work it is, if any, and the scopes of attempts in it.
    attempt: NameScope | None = field(default_factory=WORKING.get)
    _inner: dict[NameScope, AgentScope] = field(default_factory=dict[NameScope, "AgentScope"])
    # The node in which it was made, and executions in it: of the graph, or of a subgraph.
    _namespace: str | None = field(init=False)
    _nodes: dict[str, tuple[Execution, AgentScope]] = field(
        default_factory=dict[str, "tuple[Execution, AgentScope]"]
    )
    _found: dict[str, tuple[Execution, AgentScope]] = field(
        default_factory=dict[str, "tuple[Execution, AgentScope]"]
    )

    def __post_init__(self) -> None:
        """Keep where it is made: nodes of a subgraph are called deeper than that."""
        execution = self.run.execution()
        self._namespace = None if execution is None else execution.namespace

    @property
    def ctx(self) -> TaskContext:
        """The task's context."""
        return self.run.ctx

    def place(self, *parts: str) -> str:
        """Return the path of a place in this one, the same at each call."""
        return joined(self.path, *parts)

    def next(self, *parts: str, kind: str = "") -> str:
        """Return the path of the next place of these parts and this kind."""
        place = self.place(*parts)
        self.counts[f"{kind}/{place}"] += 1
        number = self.counts[f"{kind}/{place}"]
        return place if number == 1 else f"{place}#{number}"

    def here(self) -> AgentScope:
        """Return where the caller is: this scope, or a node or a step of the handler's own in it.

        A later run does not do that step's work again, and an attempt counts from the start. Nor
        does it run each node again, so each execution of one counts for itself.
        """
        execution = self.run.execution()
        if execution is not None and execution.namespace != self._namespace:
            return self._node(execution).here()
        attempt = WORKING.get()
        if attempt is None or attempt is self.attempt:
            return self
        if attempt not in self._inner:
            self._inner[attempt] = AgentScope(self.run, self.place(attempt.entry))
        return self._inner[attempt]

    def forget_nodes(self) -> None:
        """Forget what the last call of this has found: at the end of each step of a graph.

        The caller may learn of that end when nodes of the next step run already.
        """
        for namespace, found in self._found.items():
            # It may run again: then it has another scope.
            if self._nodes.get(namespace) is found:
                del self._nodes[namespace]
        self._found = dict(self._nodes)

    def _node(self, execution: Execution) -> AgentScope:
        namespace = execution.namespace
        found = self._nodes.get(namespace)
        if found is None or found[0] != execution:
            name = part(namespace.rpartition("|")[2].partition(":")[0])
            key = hashlib.sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            ctx = self.ctx.keyed_branch(name, key)
            run = AgentsOfTask(ctx, self.run.units, execution=self.run.execution)
            # Keys of pauses and of updates are the whole task's: the path keeps them apart.
            scope = AgentScope(run, self.place(f"{name}~{key}"), attempt=self.attempt)
            found = self._nodes[namespace] = execution, scope
        return found[1]


_SCOPE: ContextVar[AgentScope | None] = ContextVar("redis_state_agents", default=None)


def current_scope() -> AgentScope | None:
    """Return where the caller is, or None outside of a task."""
    scope = _SCOPE.get()
    return None if scope is None else scope.here()


def needed_scope() -> AgentScope:
    """Return where the caller is. Errors: InvalidField outside of a task."""
    scope = current_scope()
    if scope is None:
        raise InvalidField("task", "is needed: call this in a handler of `durable` or of an agent")
    return scope


def current_task() -> TaskContext:
    """Return the context of the task: for an agent's tools, hooks and validators, and for a node.

    In a node of a graph names are counted for each execution of that node. Errors: InvalidField
    outside of a task.
    """
    return needed_scope().ctx


def named_once(ctx: TaskContext) -> str:
    """Return a name of a task that a later task of the same id does not have.

    What a session keeps may live longer than the task that wrote it.
    """
    return f"{ctx.task.task_id}@{ctx.task.created_at.timestamp():.6f}"


@contextmanager
def entered(scope: AgentScope) -> Generator[AgentScope, None, None]:
    """Be in a scope for the length of the block."""
    token = _SCOPE.set(scope)
    try:
        yield scope
    finally:
        _SCOPE.reset(token)


@contextmanager
def branch(name: str) -> Generator[None, None, None]:
    """Give the agents that run in the block a place of its own.

    Use it for concurrent runs of one agent, whose order may differ in each run of the task: one
    name for each. Errors: InvalidField for a name that was used before at this place, or outside of
    a task.
    """
    scope = needed_scope()
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("name", f"text is needed, not {type(name).__name__}")
    place = f"{scope.place(name)}~"
    if scope.counts[place]:
        raise InvalidField("name", f"{name!r} names another branch of this place")
    scope.counts[place] += 1
    with entered(AgentScope(scope.run, place)):
        yield


def joined(*parts: str) -> str:
    """Join parts of a path, which is never long."""
    first, *others = parts
    path = "/".join(filter(None, (first, *map(part, others))))
    if len(path) <= _LONGEST_PATH:
        return path
    return f"{path[:48]}~{codec.fingerprint('path', path)}"


def part(text: str) -> str:
    """Return a part of a path: the text itself, or its fingerprint behind what can be read."""
    if _CLEAN.fullmatch(text):
        return text
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", text[:24])
    return f"{readable}~{codec.fingerprint('part', text)}"
