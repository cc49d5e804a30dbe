"""Checkpoints and history of Microsoft's Agent Framework in Redis. Needs the extra
``agent-framework``.

    workflow = WorkflowBuilder(..., checkpoint_storage=RedisStateCheckpointStorage(store)).build()
    agent = Agent(client, context_providers=[RedisStateHistoryProvider(store)])

A crash leaves whole checkpoints, and whole messages in order.
"""

from __future__ import annotations

from importlib import import_module

try:
    _needed = import_module("agent_framework").WorkflowCheckpoint
    # What came last of all that this needs.
    _encoding = import_module("agent_framework._workflows._checkpoint_encoding")
    _decode = _encoding.decode_checkpoint_value
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.agent_framework needs agent-framework-core from 1.23 on"
    raise ImportError(f"{missing}: pip install 'redis_state[agent-framework]'") from _error

from redis_state.integrations.agent_framework.checkpoints import RedisStateCheckpointStorage
from redis_state.integrations.agent_framework.history import RedisStateHistoryProvider

__all__ = ["RedisStateCheckpointStorage", "RedisStateHistoryProvider"]
