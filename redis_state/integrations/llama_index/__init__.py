"""A store for the server of LlamaIndex's workflows in Redis. Needs the extra ``llama-index``.

    server = WorkflowServer(workflow_store=RedisStateWorkflowStore(store))

- Events reach subscribers in any process as they are appended: nobody polls.
- A run's ticks are kept whole, so that another process replays the run and continues it.
- Two processes that edit one state at once: the second one is refused, and loses no change.

A crash leaves whole handlers, events, ticks and states.
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _needed = import_module("workflows.context.state_store_integration").StateStoreFacade
    _stored = import_module("llama_agents.server._store.abstract_workflow_store")
    _decode = _stored.decode_persistent_handler
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.llama_index needs llama-agents-server from 0.8 on"
    raise ImportError(f"{missing}: pip install 'redis_state[llama-index]'") from _error

from redis_state.integrations.llama_index.workflow_store import RedisStateWorkflowStore

__all__ = ["RedisStateWorkflowStore"]
