"""Agents of pydantic-ai as durable tasks: their model calls and tool calls are steps, and what a
person decides is a pause that frees the worker. Needs the extra ``pydantic-ai``.

    agent = Agent("openai:gpt-5.2", name="clerk", capabilities=[RedisStateDurability()])
    worker = AgentWorker({"clerk": pydantic_handler(agent)})

Each unit is found again whatever the order of the calls, by an identity that `agent_runs.scopes`
explains.

- A run of an agent has its `run_id`: where it starts, the agent's name, its number there.
- A model request is a step of its run: the run's step, and the number of the request in it.
- A tool call is a step too: the run's step, the id of the call, whether it was approved.
- The list of a toolset's tools is a step: the run's step, and its number there.
- A deferred call is a pause: the run's step, and the id of the call.
- An event of `RequestInput` is a pause: the name of the event, and its number in the run.
- A text of a model belongs to its step. Each attempt writes a new generation.
- A tool's call and its result are updates with keys: their kind, and the id of the call.

A crash leaves what is recorded. What was in flight is done again: the model request, or the tools.

- During a model request: it is made again. After its record: its tools begin.
- Between two parallel tools: the recorded one's result is returned, and the other is called.
- In an agent that a tool runs: the tool begins again, with the records of that agent.
- Between two pauses of one response: the missing ones are opened.
- While paused, or after a decision: a later run waits for what is undecided.
- After the save of a session's messages: it is not made again, see `history`.
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _needed = import_module("pydantic_ai.durable_exec").record_durable_unit
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.pydantic_ai needs pydantic-ai from 2.68 on"
    raise ImportError(f"{missing}: pip install 'redis_state[pydantic-ai]'") from _error

from redis_state.integrations.agent_runs.scopes import branch, current_task
from redis_state.integrations.pydantic_ai.durability import RedisStateDurability
from redis_state.integrations.pydantic_ai.events import publish_events
from redis_state.integrations.pydantic_ai.handler import (
    durable,
    pydantic_handler,
    pydantic_handlers,
)

__all__ = [
    "RedisStateDurability",
    "branch",
    "current_task",
    "durable",
    "publish_events",
    "pydantic_handler",
    "pydantic_handlers",
]
