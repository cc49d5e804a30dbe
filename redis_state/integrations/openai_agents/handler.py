"""An agent as the handler of a task, and any handler that runs agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import isawaitable
from typing import Any, TypeAlias, cast

from agents import Agent, Runner, TResponseInputItem

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.outputs import plain_output
from redis_state.integrations.agent_runs.running import warning_without_turn, with_agents
from redis_state.integrations.openai_agents.runner import install
from redis_state.integrations.openai_agents.session import RedisStateSession
from redis_state.integrations.openai_agents.terms import (
    AgentsOfRun,
    PauseTerms,
    Terms,
    ToolTerms,
    agents_in,
)
from redis_state.worker import Handler, RetryPolicy, TaskContext

ContextFactory: TypeAlias = Callable[[TaskContext], Any]


def durable(
    handler: Callable[[TaskContext], Awaitable[Any]],
    *,
    retry: RetryPolicy | None = None,
    tools: Mapping[str, ToolTerms] | None = None,
    pauses: PauseTerms = None,
    publish: bool = False,
    steering: bool = False,
) -> Handler:
    """Make the agents durable that a handler runs by `Runner.run`.

    The handler may run several, and one several times. It is replayed like any other.

    ``retry`` is for model requests, ``tools`` for tool calls, by their name; without one the
    worker's policy for steps holds. False runs a tool in the handler and not as a step: for one
    that only runs other agents, say. ``pauses`` are the terms of the pauses that approvals become:
    the options of `TaskContext.open_pause`, such as ``timeout``, ``tags`` or ``of``, or a function
    of the SDK's `ToolApprovalItem` that returns them. False leaves interruptions to the handler.
    ``publish`` puts what models write and which tools they call into the session's log. With
    ``steering`` messages of `TaskClient.steer` reach the model before its next request.

    Errors: InvalidField.
    """
    terms = Terms(retry, dict(tools or {}), pauses, publish=publish, steering=steering)
    install()

    @wraps(handler)
    async def run(ctx: TaskContext) -> Any:
        # Another library may have set a runner of its own since.
        install()
        with agents_in(AgentsOfRun(terms)):
            return await handler(ctx)

    return with_agents(run)


def openai_handler(
    agent: Agent[Any],
    *,
    context: ContextFactory | None = None,
    history: bool = False,
    retry: RetryPolicy | None = None,
    tools: Mapping[str, ToolTerms] | None = None,
    pauses: PauseTerms = None,
    publish: bool = False,
    steering: bool = True,
    **options: Any,
) -> Handler:
    """Return the handler of a task that runs an agent once; its result is the final output.

    The task's input is a text, or a list of input items of the SDK. ``context`` makes the context
    of the run, in each run of the task, so it has no effects. ``history`` continues with the items
    of the task's session, and adds those of this run: see `RedisStateSession`. Submit such tasks
    with ``in_turn``: two at once do not see each other's items.

    ``retry``, ``tools``, ``pauses``, ``publish`` and ``steering`` are those of `durable`. Other
    ``options`` are those of `Runner.run`, such as ``max_turns`` or ``run_config``. Errors:
    InvalidField. The task fails with it for an input that is none.
    """
    name = _name_of(agent)
    if context is not None and not callable(context):
        raise InvalidField("context", f"a function is needed, not {type(context).__name__}")
    if pauses is False:
        raise InvalidField("pauses", "False is for `durable`: here nobody reads interruptions")
    if own := {"input", "starting_agent"} & options.keys():
        raise InvalidField(min(own), "comes with each task")
    if history and "session" in options:
        raise InvalidField("session", "is the task's, with history=True")

    check_turn = warning_without_turn(name)

    async def run(ctx: TaskContext) -> Any:
        given = _read_input(ctx.input)
        made = None if context is None else context(ctx)
        made = await made if isawaitable(made) else made
        if history:
            check_turn(ctx)
            session = RedisStateSession(ctx.task.session_id, store=ctx.store)
            result = await Runner.run(agent, given, context=made, session=session, **options)
        else:
            result = await Runner.run(agent, given, context=made, **options)
        return plain_output(result.final_output)

    run.__name__ = run.__qualname__ = name
    return durable(run, retry=retry, tools=tools, pauses=pauses, publish=publish, steering=steering)


def openai_handlers(*agents: Agent[Any], **options: Any) -> dict[str, Handler]:
    """Return the handlers of several agents, by their names, for `AgentWorker`.

    Errors: those of `openai_handler`; InvalidField for two agents of one name.
    """
    made: dict[str, Handler] = {}
    for agent in agents:
        name = _name_of(agent)
        if name in made:
            raise InvalidField("agents", f"two of them are named {name!r}")
        made[name] = openai_handler(agent, **options)
    return made


def _name_of(agent: Agent[Any]) -> str:
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("agent", f"an Agent is needed, not {type(agent).__name__}")
    if not agent.name:
        raise InvalidField("agent", "needs a name, which identifies its steps: Agent(name=...)")
    return agent.name


def _read_input(given: Any) -> str | list[TResponseInputItem]:
    """Read a task's input. Errors: InvalidField says what is wrong, and quotes nothing of it."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise InvalidField("input", f"a text or items are needed, not {type(given).__name__}")
    items = cast("list[object]", given)
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            kind = type(item).__name__
            raise InvalidField("input", f"item {number}: an object is needed, not {kind}")
    return cast("list[TResponseInputItem]", items)
