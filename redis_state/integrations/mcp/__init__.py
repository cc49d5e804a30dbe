"""Servers of the Model Context Protocol on Redis, as many replicas as you like: tools whose calls
are durable tasks, streams that resume on any replica, changes that all of them announce. Needs the
extra ``mcp``.

    @durable_tool
    async def book(ctx: TaskContext, city: str) -> str: ...

    worker = AgentWorker(mcp_handlers(book))
    server = MCPServer("trips", extensions=[RedisTasks(client, [book])])

- A call of a tool becomes a task (SEP-2663): see `tasks`. It outlives server and worker.
- What a tool asks its client is a pause: see `inputs`.
- `TaskFollower` is the other side: the SDK's client waits for such a task, on any replica.
- `RedisEventStore` keeps what a client of Streamable HTTP missed (wires up to 2025-11-25).
- `RedisSubscriptionBus` carries changes of lists and resources (wire 2026-07-28).

A crash leaves what is recorded.

- Of the server, before the task is written: no task. After it: the task, whose id nobody knows. It
  runs, and its result expires.
- Of a worker: another one takes the task over, and replays the tool over its recorded steps.
- Between two answers of one update: the first is taken. The update may be repeated.
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _needed = import_module("mcp.server.extension").MethodBinding
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.mcp needs the MCP SDK from 2.3 on"
    raise ImportError(f"{missing}: pip install 'redis_state[mcp]'") from _error

from redis_state.integrations.mcp.bus import RedisSubscriptionBus
from redis_state.integrations.mcp.events import RedisEventStore, SessionEventStore
from redis_state.integrations.mcp.following import TaskFollower
from redis_state.integrations.mcp.inputs import (
    ask_client,
    elicit,
    form_request,
    input_of,
    open_input,
    read_form,
)
from redis_state.integrations.mcp.principals import current_principal
from redis_state.integrations.mcp.steady import SteadyTransport
from redis_state.integrations.mcp.tasks import TASKS, RedisTasks
from redis_state.integrations.mcp.tools import DurableTool, durable_tool, mcp_handlers

__all__ = [
    "TASKS",
    "DurableTool",
    "RedisEventStore",
    "RedisSubscriptionBus",
    "RedisTasks",
    "SessionEventStore",
    "SteadyTransport",
    "TaskFollower",
    "ask_client",
    "current_principal",
    "durable_tool",
    "elicit",
    "form_request",
    "input_of",
    "mcp_handlers",
    "open_input",
    "read_form",
]
