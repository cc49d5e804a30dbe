"""Agents of pydantic-ai as durable tasks: their model calls and tool calls are steps, and what a
person decides is a pause that frees the worker. Needs the extra ``pydantic-ai``.

    agent = Agent("openai:gpt-5.2", name="clerk", capabilities=[RedisStateDurability()])
    worker = AgentWorker({"clerk": pydantic_handler(agent)})

Units, and what identifies each. All are found again whatever the order, see `identity`:

| unit | record | identity in its task |
| --- | --- | --- |
| run of an agent | none | its `run_id`: where it starts, the agent's name, its number there |
| model request, streamed or not | step | run, its step, number of the request in it |
| tool call | step | run, step, id of the call, whether it was approved |
| discovery, other operations | step | run, step, number of the operation in it |
| approval, external result | pause | run, step, id of the call |
| event of `RequestInput` | pause, and a step | run, name of the event, its number |
| text of a model | text of its step | the step, its number; a generation for each attempt |
| tool event | update with a key | run, step, kind of the event, id of the call |

A crash leaves what is recorded. What was in flight is done again: a model request, and each tool
call that ran. A tool whose effect must not happen twice gives `current_task().effect_id()` away.

| crash | what the next run does |
| --- | --- |
| during a model request, before its record | makes it again; its text is a new generation |
| after the response's record | starts the response's tools |
| between two parallel tools | returns the recorded one's result, and calls the other |
| in an agent that a tool runs | starts the tool again; the inner agent's records are returned |
| between the pauses of one response | opens those that are missing |
| while paused, also after a decision | waits for those that are undecided |
| after the history's save | saves nothing: it remembers the tasks that it has |
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _ = import_module("pydantic_ai.durable_exec").record_durable_unit
except (ImportError, AttributeError) as error:
    missing = "redis_state.integrations.pydantic_ai needs pydantic-ai from 2.60 on"
    raise ImportError(f"{missing}: pip install 'redis_state[pydantic-ai]'") from error

from redis_state.integrations.pydantic_ai.durability import RedisStateDurability
from redis_state.integrations.pydantic_ai.events import publish_events
from redis_state.integrations.pydantic_ai.handler import (
    durable,
    pydantic_handler,
    pydantic_handlers,
)
from redis_state.integrations.pydantic_ai.identity import branch, current_task

__all__ = [
    "RedisStateDurability",
    "branch",
    "current_task",
    "durable",
    "publish_events",
    "pydantic_handler",
    "pydantic_handlers",
]
