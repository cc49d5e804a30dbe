"""LangGraph on Redis or Valkey, without modules: checkpoints, and graphs as durable tasks.

async with RedisSaver.from_url("redis://localhost:6379/0") as saver:
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke(question, {"configurable": {"thread_id": "t"}})
"""

from __future__ import annotations

import re
from importlib.metadata import version

try:
    _found = tuple(map(int, re.findall(r"\d+", version("langgraph"))[:3]))
except ImportError:
    _found = ()
# Before, the interrupts of a node shared one id, so a decision answered each that came later.
if _found < (1, 2, 20):
    missing = "redis_state.integrations.langgraph needs langgraph from 1.2.20 on"
    raise ImportError(f"{missing}: pip install 'redis_state[langgraph]'")

from redis_state.integrations.agent_runs.scopes import branch, current_task
from redis_state.integrations.langgraph.handler.handler import graph_handler, resume_value
from redis_state.integrations.langgraph.importing.sources import source_of
from redis_state.integrations.langgraph.items import RedisStore
from redis_state.integrations.langgraph.saver import RedisSaver

__all__ = [
    "RedisSaver",
    "RedisStore",
    "branch",
    "current_task",
    "graph_handler",
    "resume_value",
    "source_of",
]
