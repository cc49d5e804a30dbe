"""Agents of the OpenAI Agents SDK as durable tasks: their model requests and tool calls are steps,
and an approval is a pause that frees the worker. Needs the extra ``openai-agents``.

    agent = Agent("clerk", model="gpt-5.2", tools=[pay])
    worker = AgentWorker({"clerk": openai_handler(agent)})

Each unit is found again by an identity that `agent_runs.scopes` explains.

- A run of an agent has a path: where it starts, the agent's name, its number there.
- A model request is a step: the number of the request in its run. A failed one takes no number.
- A tool call is a step: the id of the call, in its run.
- A check of a guardrail is a step: its agent, its name, its number in the run.
- A tool that `Agent.as_tool` made is no step: the requests and the calls of its run are.
- An interruption is a pause: the id of the call. All of one result are open at once.
- A session is loaded in one step, and what a run adds to it is saved in one step at its end.
- A text of a model belongs to its step. Each attempt writes a new generation.
- A tool's call and its result are updates with keys: their kind, and the place of the call.

Nothing of the SDK's `RunState` is stored. A replay makes it from the records.

A crash leaves what is recorded. What was in flight is done again: the model request, or the tools.

- During a model request: it is made again, with the steering that it was given.
- Between two parallel tools: the recorded one's result is returned, and the other is called.
- Between two pauses of one result: the missing ones are opened.
- While paused, or after a decision: a later run waits for what is undecided.
- During the save of a session: a `RedisStateSession` completes it, row by row of the same ids.
"""

from __future__ import annotations

from importlib import import_module

try:
    _needed = import_module("agents.run").set_default_agent_runner
    # What came last of all that this needs.
    _serialize = import_module("agents.usage").serialize_usage
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.openai_agents needs openai-agents from 0.24 on"
    raise ImportError(f"{missing}: pip install 'redis_state[openai-agents]'") from _error

from redis_state.integrations.agent_runs.scopes import branch, current_task
from redis_state.integrations.openai_agents.handler import (
    durable,
    openai_handler,
    openai_handlers,
)
from redis_state.integrations.openai_agents.runner import install
from redis_state.integrations.openai_agents.session import RedisStateSession
from redis_state.integrations.openai_agents.terms import current_decision

__all__ = [
    "RedisStateSession",
    "branch",
    "current_decision",
    "current_task",
    "durable",
    "openai_handler",
    "openai_handlers",
]

# A run of a session is alone in it, in a process without handlers too.
install()
