"""All keys of a namespace in one class."""

from __future__ import annotations

from redis_state.transport.key_groups import A2AKeys
from redis_state.transport.keys.a2a import A2ALayout
from redis_state.transport.keys.agents import AgentLayout
from redis_state.transport.keys.hosts import HostLayout
from redis_state.transport.keys.pools import PoolLayout
from redis_state.transport.keys.sessions import SessionLayout
from redis_state.transport.keys.tasks import TaskLayout


class Keys(SessionLayout, TaskLayout, PoolLayout, AgentLayout, HostLayout, A2ALayout):
    """The key layout under one namespace."""

    __slots__ = ()


def a2a_keys(keys: Keys, scope: str, task_id: str) -> A2AKeys:
    """Return all keys of one A2A task."""
    return A2AKeys(
        task_id,
        keys.a2a_task(scope, task_id),
        keys.a2a_books(scope),
        keys.a2a_events(scope, task_id),
        keys.a2a_lease(scope, task_id),
        keys.a2a_configs(scope, task_id),
        keys.a2a_history(scope, task_id),
        keys.a2a_artifacts(scope, task_id),
    )
