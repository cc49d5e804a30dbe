"""A handler in which agents run, and one unit of theirs as a step of its task."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias

from redis_state.errors import BackendError, CorruptState
from redis_state.integrations.agent_runs.scopes import AgentScope, AgentsOfTask, entered
from redis_state.integrations.agent_runs.units import ended_by
from redis_state.worker import Handler, RetryPolicy, TaskContext, TaskHandedBack, retried

# Not the handler's failure: a later run does it.
_HANDED_BACK = (BackendError, TaskHandedBack)

Work: TypeAlias = Callable[[], Awaitable[object]]

log: logging.Logger = logging.getLogger(__name__)


def _plain_scope(ctx: TaskContext) -> AgentScope:
    return AgentScope(AgentsOfTask(ctx))


def with_agents(
    handler: Callable[[TaskContext], Awaitable[Any]],
    *,
    scope: Callable[[TaskContext], AgentScope] = _plain_scope,
) -> Handler:
    """Make a handler the scope of the agents that it runs."""

    @wraps(handler)
    async def run(ctx: TaskContext) -> Any:
        try:
            with entered(scope(ctx)):
                result = await handler(ctx)
        except Exception as error:
            # An SDK may have made an error of its own of what ended the run.
            if isinstance(ctx.inbox.over, _HANDED_BACK):
                raise ctx.inbox.over from error
            raise
        # What ended the run may have been handled by a hook of an agent, as an error of its own.
        ctx.inbox.raise_if_over()
        return result

    return run


def warning_without_turn(agent: str) -> Callable[[TaskContext], None]:
    """Return what warns once, of tasks that share a history and do not run in turn."""
    warned = False

    def check(ctx: TaskContext) -> None:
        nonlocal warned
        if ctx.in_turn or warned:
            return
        warned = True
        log.warning(
            "tasks of agent %r keep the history of their session, but do not run in turn: two at "
            "once do not see each other's messages. Submit them with in_turn=True",
            agent,
        )

    return check


async def do_unit(
    scope: AgentScope,
    name: str,
    place: str,
    work: Work,
    policy: RetryPolicy | None = None,
    *,
    cuts: bool = False,
) -> tuple[Any, bool]:
    """Run some work as a step; return what is recorded of it, and whether it ran now.

    With ``cuts`` the work is cancelled as soon as its task is. Errors: the work's own;
    TaskCancelled, LeaseLost.
    """
    ran = False
    own: list[BaseException] = []

    async def attempt() -> object:
        nonlocal ran
        ran = True
        try:
            # Each attempt counts what is in it from the start.
            with entered(AgentScope(scope.run, place)):
                if not cuts:
                    return await work()
                async with ended_by(scope.ctx.inbox):
                    return await work()
        except BaseException as error:
            own.append(error)
            raise

    async with scope.run.units.one():
        try:
            found = await scope.ctx.keyed_step(
                name, place, attempt if policy is None else retried(attempt, policy)
            )
        except _HANDED_BACK as error:
            # Its record was refused. What an earlier run has failed with, the agent may handle.
            if ran and error not in own:
                end_run(scope, error)
            raise
    return found, ran


def end_run(scope: AgentScope, error: BackendError | TaskHandedBack) -> None:
    """End the run by what hands its task back, also if a framework makes something else of it.

    It may become a text for the model, or an error that would fail the task.
    """
    if not isinstance(error, CorruptState):
        scope.ctx.inbox.close(error)
