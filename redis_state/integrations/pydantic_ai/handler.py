"""An agent as the handler of a task, and any handler that runs agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, TypeAlias, cast

from pydantic import ValidationError
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.outputs import plain_output
from redis_state.integrations.agent_runs.running import warning_without_turn, with_agents
from redis_state.integrations.pydantic_ai.durability import RedisStateDurability
from redis_state.integrations.pydantic_ai.history import MOST_MESSAGES, History
from redis_state.worker import Handler, TaskContext

DepsFactory: TypeAlias = Callable[[TaskContext], Any]


def durable(handler: Callable[[TaskContext], Awaitable[Any]]) -> Handler:
    """Make the agents durable that a handler runs: those with a `RedisStateDurability`.

    The handler may run several, and one several times. It is replayed like any other.
    """
    return with_agents(handler)


def pydantic_handler(
    agent: AbstractAgent[Any, Any],
    *,
    deps: DepsFactory | None = None,
    history: bool = False,
    max_messages: int = MOST_MESSAGES,
    **options: Any,
) -> Handler:
    """Return the handler of a task that runs an agent once; its result is the agent's output.

    The task's input is the prompt, or ``{"prompt": ..., "message_history": [...]}`` with messages
    as pydantic-ai writes them. ``deps`` makes the dependencies of a run. It runs in each run of the
    task, so it has no effects. ``history`` continues with the messages of the session's earlier
    tasks with this agent, and keeps those of this one: the newest ``max_messages``, in whole runs,
    for `memory_ttl`. Submit such tasks with ``in_turn``: two at once do not see each other's. An
    input with a ``message_history`` continues with that.

    ``options`` are those of `Agent.run`, such as ``usage_limits``. An agent without a
    `RedisStateDurability` gets one. Errors: InvalidField for an agent without a name, and for other
    arguments that cannot be used. The task fails with it for an input that is no prompt.
    """
    name = _name_of(agent)
    if deps is not None and not callable(deps):
        raise InvalidField("deps", f"a function is needed, not {type(deps).__name__}")
    limits.count("max_messages", max_messages)
    if own := {"deps", "message_history", "user_prompt"} & options.keys():
        raise InvalidField(min(own), "comes with each task")
    added = [] if RedisStateDurability.from_agent(agent) else [RedisStateDurability[Any]()]
    if added or "capabilities" in options:
        options["capabilities"] = [*options.get("capabilities", ()), *added]
    keeps = History(name, max_messages) if history else None
    check_turn = warning_without_turn(name)

    async def run(ctx: TaskContext) -> Any:
        prompt, messages = _read_input(ctx.input)
        made = None if deps is None else deps(ctx)
        made = await made if isawaitable(made) else made
        if keeps is not None:
            check_turn(ctx)
        before = await keeps.load(ctx) if keeps is not None and messages is None else None
        result = await agent.run(
            prompt,
            message_history=messages if before is None else before.messages,
            deps=made,
            **options,
        )
        output = plain_output(result.output)
        if keeps is not None:
            await keeps.save(ctx, before, result)
        return output

    run.__name__ = run.__qualname__ = name
    return durable(run)


def pydantic_handlers(*agents: AbstractAgent[Any, Any], **options: Any) -> dict[str, Handler]:
    """Return the handlers of several agents, by their names, for `AgentWorker`.

    Errors: those of `pydantic_handler`; InvalidField for two agents of one name.
    """
    made: dict[str, Handler] = {}
    for agent in agents:
        name = _name_of(agent)
        if name in made:
            raise InvalidField("agents", f"two of them are named {name!r}")
        made[name] = pydantic_handler(agent, **options)
    return made


def _name_of(agent: AbstractAgent[Any, Any]) -> str:
    if not isinstance(agent, AbstractAgent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("agent", f"an Agent is needed, not {type(agent).__name__}")
    if not agent.name:
        raise InvalidField("agent", "needs a name, which identifies its steps: Agent(name=...)")
    return agent.name


def _read_input(given: Any) -> tuple[str, list[ModelMessage] | None]:
    """Read a task's input. Errors: InvalidField says what is wrong, and quotes nothing of it."""
    if isinstance(given, str):
        return given, None
    if not isinstance(given, Mapping):
        raise InvalidField("input", f"a prompt is needed, not {type(given).__name__}")
    fields = cast("Mapping[str, Any]", given)
    if unknown := fields.keys() - {"prompt", "message_history"}:
        raise InvalidField("input", f"{len(unknown)} fields are unknown: prompt, message_history")
    prompt, messages = fields.get("prompt"), fields.get("message_history")
    if not isinstance(prompt, str):
        raise InvalidField("input.prompt", f"text is needed, not {type(prompt).__name__}")
    return prompt, None if messages is None else read_messages("input.message_history", messages)


def read_messages(field: str, messages: Any) -> list[ModelMessage]:
    """Read messages as pydantic-ai writes them. Errors: InvalidField."""
    try:
        return ModelMessagesTypeAdapter.validate_python(messages)
    except ValidationError as error:
        place = ".".join(str(each) for each in error.errors(include_input=False)[0]["loc"][:1])
    raise InvalidField(field, f"message {place or 0} is none of pydantic-ai's")
