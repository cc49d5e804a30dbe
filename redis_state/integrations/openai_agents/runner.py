"""The SDK's runner in a task: its agents are durable, and its interruptions are pauses.

`Runner.run` and `Agent.as_tool` call the SDK's default runner. `install` puts this one in front of
it. Outside of a task it passes calls on: a run of a `RedisStateSession` in the session's block.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any, cast

from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunResult,
    RunResultStreaming,
    RunState,
    TResponseInputItem,
)
from agents.models.interface import Model
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.scopes import AgentScope, current_scope, joined
from redis_state.integrations.openai_agents.agents import checked, durable_form
from redis_state.integrations.openai_agents.approvals import decide
from redis_state.integrations.openai_agents.history import history_of
from redis_state.integrations.openai_agents.models import StepProvider, as_steps
from redis_state.integrations.openai_agents.session import session_in, turn_in
from redis_state.integrations.openai_agents.terms import (
    AgentRun,
    AgentsOfRun,
    StreamedRun,
    current_agents,
    current_run,
    within,
)

log: logging.Logger = logging.getLogger(__name__)

# They end a run in each replay, for reasons that are recorded. The SDK keeps such a run's items.
_ENDS = (InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered, MaxTurnsExceeded)
# What a run that resumes has in its state already.
_OF_START = ("previous_response_id", "auto_previous_response_id", "conversation_id")


def install() -> None:
    """Put the durable runner in front of the SDK's default one."""
    default = get_default_agent_runner()
    if not isinstance(default, DurableRunner):
        set_default_agent_runner(DurableRunner(default))


class DurableRunner(AgentRunner):
    """Run agents durably in a task, and as another runner does outside of one."""

    def __init__(self, runner: AgentRunner) -> None:
        self._runner = runner

    async def run(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002 - theirs
        **options: Any,
    ) -> RunResult:
        """Run an agent. In a task it pauses for approvals, and continues once all are decided.

        Outside of one it waits for its turn in a `RedisStateSession`. Errors: those of the SDK;
        InvalidField; SessionBusy; TaskCancelled, LeaseLost.
        """
        scope, agents = current_scope(), current_agents()
        if scope is None or agents is None:
            async with turn_in(options.get("session")):
                return await self._runner.run(starting_agent, input, **options)
        name = starting_agent.name
        _check_alone(scope, agents, name)
        scope.running.add((name, None))
        try:
            return await self._run(scope, agents, starting_agent, input, options)
        finally:
            scope.running.discard((name, None))

    async def _run(
        self,
        scope: AgentScope,
        agents: AgentsOfRun,
        starting_agent: Agent[Any],
        given: str | list[TResponseInputItem] | RunState[Any],
        options: dict[str, Any],
    ) -> RunResult:
        run, owned = _begin(scope, agents, starting_agent, options)
        # `Agent.as_tool` hands its interruptions to the run that calls it, which pauses for all.
        waits = not scope.of_call and agents.terms.pauses is not False
        try:
            agent = durable_form(starting_agent, agents)
            with within(run):
                result = await self._runner.run(agent, given, **options)
                while waits and result.interruptions:
                    state = result.to_state()
                    await decide(run, state, result.interruptions)
                    result = await self._runner.run(agent, state, **_resuming(options))
                run.approvals.hand(result.interruptions, run.origin)
                # Also with interruptions: who gets them goes on in a run with a history of its own.
                if run.history is not None:
                    await run.history.save()
        except _ENDS:
            if run.history is not None:
                with within(run):
                    await run.history.save()
            raise
        else:
            return result
        finally:
            run.hand_on(agents)
            if owned is not None:
                await owned.aclose()

    def run_sync(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002 - theirs
        **options: Any,
    ) -> RunResult:
        """Run an agent outside of an event loop, where no task is. See `run`."""
        if session_in(options.get("session")) is None:
            return self._runner.run_sync(starting_agent, input, **options)
        # It calls `run` on the loop of this thread, so the session's turn is waited for.
        return super().run_sync(starting_agent, input, **options)

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],  # noqa: A002 - theirs
        **options: Any,
    ) -> RunResultStreaming:
        """Run an agent and stream its items. In a task it ends at an approval, as the SDK does.

        Errors: InvalidField for a session, which only `run` writes as a whole. And while the agent
        has another run at this place, unless that was cancelled.
        """
        scope, agents = current_scope(), current_agents()
        if scope is None or agents is None:
            return self._runner.run_streamed(starting_agent, input, **options)
        if options.get("session") is not None:
            raise InvalidField("session", "is for Runner.run in a task, and not for run_streamed")
        _check_alone(scope, agents, starting_agent.name)
        run, owned = _begin(scope, agents, starting_agent, options)
        try:
            with within(run):
                agent = durable_form(starting_agent, agents)
                result = self._runner.run_streamed(agent, input, **options)
        except BaseException:
            run.hand_on(agents)
            _begin_close(agents, owned)
            raise
        # It goes on in an asyncio task of its own, whatever becomes of its reader.
        if result.run_loop_task is not None:
            streamed = StreamedRun(run, result, scope)
            agents.streamed[scope.path, starting_agent.name] = streamed
            result.run_loop_task.add_done_callback(partial(_end, streamed, agents, owned))
        return result


def _check_alone(scope: AgentScope, agents: AgentsOfRun, name: str) -> None:
    """Refuse a second run of an agent at a place. Errors: InvalidField."""
    for place, streamed in list(agents.streamed.items()):
        # A cancelled one begins nothing more, and what begins where it began has another path.
        if streamed.has_ended or (streamed.place is scope and streamed.is_cancelled):
            streamed.hand_on(agents)
            del agents.streamed[place]
    if (name, None) in scope.running or (scope.path, name) in agents.streamed:
        raise InvalidField(
            "agent",
            f"{name!r} runs here already, and which run comes first may be another in a "
            "replay: give each a branch()",
        )


def _end(
    streamed: StreamedRun, agents: AgentsOfRun, owned: StepProvider | None, _: asyncio.Task[Any]
) -> None:
    """End a run whose end nobody here waits for."""
    streamed.hand_on(agents)
    _begin_close(agents, owned)


def _begin_close(agents: AgentsOfRun, owned: StepProvider | None) -> None:
    """Close a run's own provider of models, without waiting for it."""
    if owned is not None:
        closing = asyncio.ensure_future(_close_quietly(owned))
        agents.closing.add(closing)
        closing.add_done_callback(agents.closing.discard)


async def _close_quietly(provider: StepProvider) -> None:
    try:
        await provider.aclose()
    except Exception as error:  # noqa: BLE001 - a foreign provider, any failure
        log.warning("a provider of models could not be closed: %s", type(error).__name__)


def _begin(
    scope: AgentScope, agents: AgentsOfRun, agent: Agent[Any], options: dict[str, Any]
) -> tuple[AgentRun, StepProvider | None]:
    """Make a run, and change its options; return the provider of models that is the run's own."""
    path = f"{scope.next(agent.name, kind='run')}~"
    outer = current_run()
    # What a person says is for the agent of the task, not for those in its tools.
    steers = agents.terms.steering and outer is None
    # An agent in a tool that waits for people runs again: at another path, and it is the same one.
    origin = f"{joined(scope.origin, agent.name)}~" if scope.origin else path
    run = AgentRun(
        AgentScope(scope.run, path), agents.terms, agent.name, steers=steers, origin=origin
    )
    if scope.of_call and outer is not None:
        run.approvals = outer.approvals
    config, owned = _config(options.get("run_config"))
    options["run_config"] = config
    if options.get("session") is not None:
        run.history = options["session"] = history_of(options["session"], run.scope)
    # Last: behind it the caller hands on what no model gets.
    if steers:
        run.unrecorded, agents.left = agents.left, []
    return run, owned


def _config(given: RunConfig | dict[str, Any] | None) -> tuple[RunConfig, StepProvider | None]:
    config = RunConfig(**(given or {})) if not isinstance(given, RunConfig) else given
    provider = config.model_provider
    changes: dict[str, Any] = {}
    if not isinstance(provider, StepProvider):
        changes["model_provider"] = StepProvider(provider)
    if isinstance(config.model, Model):
        changes["model"] = as_steps(config.model)
    if config.input_guardrails:
        changes["input_guardrails"] = [checked(each) for each in config.input_guardrails]
    if config.output_guardrails:
        changes["output_guardrails"] = [checked(each) for each in config.output_guardrails]
    made = replace(config, **changes)
    is_own = given is None or (isinstance(given, dict) and "model_provider" not in given)
    return made, cast("StepProvider", made.model_provider) if is_own else None


def _resuming(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _OF_START}
