"""On what terms agents run in a task, and the run of an agent that the caller is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agents import Agent, RunResultStreaming, TResponseInputItem
from agents.items import ToolApprovalItem

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.pause_terms import check_pause_terms
from redis_state.integrations.agent_runs.scopes import AgentScope, entered
from redis_state.worker import Decision, RetryPolicy

if TYPE_CHECKING:
    from redis_state.integrations.openai_agents.history import RunHistory

PauseTerms: TypeAlias = (
    Mapping[str, Any] | Callable[[ToolApprovalItem], Any] | Literal[False] | None
)
ToolTerms: TypeAlias = RetryPolicy | Literal[False] | None

# What each pause of a tool call has of its own.
_OURS = frozenset({"reason", "payload", "key", "name", "reveal", "default"})


@dataclass(frozen=True)
class Terms:
    """How the units of agents become steps and pauses. See `durable`."""

    retry: RetryPolicy | None = None
    tools: Mapping[str, ToolTerms] = field(default_factory=dict[str, ToolTerms])
    pauses: PauseTerms = None
    publish: bool = False
    steering: bool = False

    def __post_init__(self) -> None:
        """Refuse terms that make no sense. Errors: InvalidField."""
        if self.retry is not None:
            _check_policy("retry", self.retry)
        for policy in self.tools.values():
            if policy is not None and policy is not False:
                _check_policy("tools", policy)
        check_pauses(self.pauses)


@dataclass
class AgentsOfRun:
    """One run of a task: the terms, and the durable form of each agent that ran in it.

    The forms are kept, because the state of an interrupted run refers to them.
    """

    terms: Terms
    forms: dict[int, tuple[Agent[Any], Agent[Any]]] = field(
        default_factory=dict[int, tuple[Agent[Any], Agent[Any]]]
    )
    # What earlier runs have taken from the inbox and no model has got, for the next run.
    left: list[TResponseInputItem] = field(default_factory=list[TResponseInputItem])
    # Streamed runs that may go on, by the path of their place and the name of their agent.
    streamed: dict[tuple[str, str], StreamedRun] = field(
        default_factory=dict[tuple[str, str], "StreamedRun"]
    )
    # A loop refers to its tasks weakly.
    closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


@dataclass
class Approvals:
    """Decisions on calls of tools, of a run and of the agents in its tools, for which it waits.

    Two of these agents may give two calls one id, so a call is found by its agent's origin too.
    """

    decisions: dict[tuple[str, str], Decision] = field(
        default_factory=dict[tuple[str, str], Decision]
    )
    # The calls that agents in tools have handed to the run that waits, with their origins.
    _handed: list[tuple[ToolApprovalItem, str]] = field(
        default_factory=list[tuple[ToolApprovalItem, str]]
    )

    def hand(self, calls: Sequence[ToolApprovalItem], origin: str) -> None:
        """Note whose calls these are, unless an agent within has handed them."""
        new = [(call, origin) for call in calls if self.origin(call) is None]
        self._handed += new

    def origin(self, call: ToolApprovalItem) -> str | None:
        """Return the origin of the agent in a tool that has made a call; None for any other."""
        return next((origin for each, origin in self._handed if each is call), None)


@dataclass
class AgentRun:
    """One call of `Runner.run` in a task."""

    scope: AgentScope
    terms: Terms
    # The agent whose turn it is: a handoff changes it.
    agent: str
    steers: bool
    # Where it runs, the same when an agent in a tool is called again to continue.
    origin: str
    history: RunHistory | None = None
    requests: int = 0
    approvals: Approvals = field(default_factory=Approvals)
    # What steering has added to the input, with its places.
    steered: list[tuple[int, TResponseInputItem]] = field(
        default_factory=list[tuple[int, TResponseInputItem]]
    )
    # What was taken from the inbox, and is in no recorded request yet.
    unrecorded: list[TResponseInputItem] = field(default_factory=list[TResponseInputItem])

    def hand_on(self, agents: AgentsOfRun) -> None:
        """Hand on what was taken from the inbox and no model has got. May be repeated."""
        agents.left += self.unrecorded
        self.unrecorded = []


@dataclass
class StreamedRun:
    """A streamed run. Its reader may leave it, and may learn of its end first."""

    run: AgentRun
    result: RunResultStreaming
    # Where it began.
    place: AgentScope

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        task = self.result.run_loop_task
        return task is None or task.done()

    @property
    def is_cancelled(self) -> bool:
        """Whether it is to end: by `cancel`, or because its reader was cancelled."""
        task = self.result.run_loop_task
        return task is not None and task.cancelling() > 0

    def hand_on(self, agents: AgentsOfRun) -> None:
        """Hand on what it leaves to other runs. May be repeated."""
        self.run.hand_on(agents)
        self.run.approvals.hand(self.result.interruptions, self.run.origin)


_AGENTS: ContextVar[AgentsOfRun | None] = ContextVar("redis_state_openai_agents", default=None)
_DECISION: ContextVar[Decision | None] = ContextVar("redis_state_openai_decision", default=None)
_RUN: ContextVar[AgentRun | None] = ContextVar("redis_state_openai_run", default=None)


def current_decision() -> Decision | None:
    """Return the decision on the tool call that the caller is: for what an approval's value says.

    None for a call that needed no approval, and outside of a task.
    """
    return _DECISION.get()


@contextmanager
def decided_by(decision: Decision | None) -> Generator[None, None, None]:
    """Be in a tool call with this decision for the length of the block."""
    token = _DECISION.set(decision)
    try:
        yield
    finally:
        _DECISION.reset(token)


def current_agents() -> AgentsOfRun | None:
    """Return the agents of the task that the caller is in, or None outside of a task."""
    return _AGENTS.get()


def current_run() -> AgentRun | None:
    """Return the run of an agent that the caller is in, or None."""
    return _RUN.get()


@contextmanager
def agents_in(agents: AgentsOfRun) -> Generator[None, None, None]:
    """Make agents durable that begin in the block."""
    token = _AGENTS.set(agents)
    try:
        yield
    finally:
        _AGENTS.reset(token)


@contextmanager
def within(run: AgentRun) -> Generator[None, None, None]:
    """Be in a run for the length of the block."""
    token = _RUN.set(run)
    try:
        with ExitStack() as stack:
            stack.enter_context(entered(run.scope))
            yield
    finally:
        _RUN.reset(token)


def check_pauses(terms: PauseTerms) -> None:
    """Refuse terms that cannot be those of a pause. Errors: InvalidField."""
    if terms is not False:
        check_pause_terms("pauses", terms, own=_OURS)


def _check_policy(name: str, policy: object) -> None:
    if not isinstance(policy, RetryPolicy):
        raise InvalidField(name, f"a RetryPolicy is needed, not {type(policy).__name__}")
