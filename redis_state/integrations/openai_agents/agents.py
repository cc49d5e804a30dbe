"""The durable form of an agent: a copy whose model, tools, guardrails and handoffs are steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import replace
from functools import cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from agents import (
    Agent,
    GuardrailFunctionOutput,
    Handoff,
    InputGuardrail,
    Model,
    OutputGuardrail,
    RunContextWrapper,
    Tool,
)
from agents.sandbox import SandboxAgent
from pydantic_core import PydanticSerializationError, to_jsonable_python

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.running import do_unit
from redis_state.integrations.openai_agents.models import as_steps
from redis_state.integrations.openai_agents.terms import AgentsOfRun, current_run
from redis_state.integrations.openai_agents.tools import as_step

Guardrail = TypeVar("Guardrail", InputGuardrail[Any], OutputGuardrail[Any])
AnyAgent: TypeAlias = Agent[Any]

if TYPE_CHECKING:
    _Base = Agent[Any]
else:
    _Base = object


class StepAgent(_Base):
    """What the durable form of any class of agents does in its own way."""

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        """Return the tools of the agent's MCP servers, whose calls are steps."""
        return [as_step(tool) for tool in await super().get_mcp_tools(run_context)]

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        """Return the agent's tools. The SDK asks at the beginning of each turn of the agent."""
        run = current_run()
        if run is not None:
            run.agent = self.name
        return await super().get_all_tools(run_context)


def durable_form(agent: AnyAgent, agents: AgentsOfRun) -> AnyAgent:
    """Return the durable form of an agent and of all that it hands off to.

    Errors: InvalidField for a tool that cannot be a step, and for an agent in a sandbox.
    """
    if isinstance(agent, StepAgent):
        return agent
    if id(agent) in agents.forms:
        return agents.forms[id(agent)][1]
    if isinstance(agent, SandboxAgent):
        raise InvalidField("agent", "of a sandbox cannot be durable: what it does is not a step")
    form = _form_of(cast("Hashable", type(agent)))
    # As a copy is made: a class of the application's may have a constructor of its own.
    made = form.__new__(form)
    vars(made).update(vars(agent))
    # Before its handoffs, which may lead back to it.
    agents.forms[id(agent)] = agent, made
    made.tools = [as_step(tool) for tool in agent.tools]
    if isinstance(agent.model, Model):
        made.model = as_steps(agent.model)
    made.input_guardrails = [checked(each) for each in agent.input_guardrails]
    made.output_guardrails = [checked(each) for each in agent.output_guardrails]
    made.handoffs = [
        durable_form(each, agents) if isinstance(each, Agent) else _handoff(each, agents)
        for each in agent.handoffs
    ]
    return made


@cache
def _form_of(of: Hashable) -> type[AnyAgent]:
    kind = cast("type[AnyAgent]", of)
    return type(kind.__name__, (StepAgent, kind), {"__module__": kind.__module__})


def _handoff(handoff: Handoff[Any, Any], agents: AgentsOfRun) -> Handoff[Any, Any]:
    made, invoke = copy(handoff), handoff.on_invoke_handoff

    async def invoke_durably(ctx: RunContextWrapper[Any], arguments: str) -> Any:
        return durable_form(await invoke(ctx, arguments), agents)

    made.on_invoke_handoff = invoke_durably
    # By this reference the SDK finds the agents that an approval may be of.
    leads_to = getattr(handoff, "_agent_ref", None)
    agent: AnyAgent | None = leads_to() if leads_to is not None else None
    if agent is not None:
        form = durable_form(agent, agents)
        vars(made)["_agent_ref"] = weakref.ref(form)
    return made


def checked(guardrail: Guardrail) -> Guardrail:
    """Return a guardrail whose checks are steps."""
    if getattr(guardrail.guardrail_function, "is_step", False):
        return guardrail
    name, check = guardrail.get_name(), cast("Callable[..., Any]", guardrail.guardrail_function)

    async def check_once(
        ctx: RunContextWrapper[Any], agent: AnyAgent, about: Any
    ) -> GuardrailFunctionOutput:
        run = current_run()

        async def work() -> dict[str, Any]:
            made = check(ctx, agent, about)
            output: GuardrailFunctionOutput = await made if isawaitable(made) else made
            return {"info": _plain(output.output_info), "trips": output.tripwire_triggered}

        if run is None:
            found = await work()
        else:
            place = run.scope.next("guardrail", agent.name, name)
            found, _ = await do_unit(run.scope, "guardrail", place, work, cuts=True)
        return GuardrailFunctionOutput(found["info"], found["trips"])

    check_once.is_step = True  # type: ignore[attr-defined]
    return replace(guardrail, guardrail_function=check_once, name=name)


def _plain(info: Any) -> Any:
    try:
        return to_jsonable_python(info)
    except PydanticSerializationError:
        return str(info)
