"""LangGraph on Redis or Valkey, without modules: checkpoints, and graphs as durable tasks.

async with RedisSaver.from_url("redis://localhost:6379/0") as saver:
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke(question, {"configurable": {"thread_id": "t"}})
"""

from __future__ import annotations

try:
    import langgraph.checkpoint.base as _  # noqa: F401
except ImportError as _error:
    raise ImportError("this needs LangGraph: pip install 'redis_state[langgraph]'") from _error

from redis_state.integrations.langgraph.handler import graph_handler, resume_value
from redis_state.integrations.langgraph.importing.sources import source_of
from redis_state.integrations.langgraph.items import RedisStore
from redis_state.integrations.langgraph.saver import RedisSaver

__all__ = ["RedisSaver", "RedisStore", "graph_handler", "resume_value", "source_of"]
