"""A2A servers on Redis, as many replicas as you like: the SDK's stores for tasks, their events,
push configurations and queues.

    backend = connect("redis://localhost:6379/0")
    handler = DefaultRequestHandler(
        agent_executor=create_agent_executor(MyAgent(), backend),
        task_store=create_versioned_task_store(backend),
        event_stream=create_event_stream(backend),
        push_config_store=create_push_config_store(backend),
        agent_card=card,
    )

For SDK 1.1 to 1.3; versions and events need ``a2a.server.cluster``, which came with 1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2a.server.agent_execution import AgentExecutor
from a2a.server.tasks.push_notification_sender import PushNotificationSender

from redis_state.errors import ConfigError
from redis_state.integrations.a2a.backend import A2ABackend, A2AOptions, connect, shared
from redis_state.integrations.a2a.executor import InterruptibleExecutor
from redis_state.integrations.a2a.push import (
    RedisPushNotificationConfigStore,
    SteadyPushSender,
)
from redis_state.integrations.a2a.queues import RedisQueueManager
from redis_state.integrations.a2a.task_store import RedisTaskStore
from redis_state.integrations.embabel.task_state_manager import TaskStateManager
from redis_state.store import RedisStateStore

if TYPE_CHECKING:
    from redis_state.integrations.a2a.versioned import (
        RedisTaskEventStream,
        RedisVersionedTaskStore,
    )

At = A2ABackend | RedisStateStore | str | None


def create_task_store(
    at: At = None,
    options: A2AOptions | None = None,
    *,
    holds_lease: bool = False,
    **settings: Any,
) -> RedisTaskStore:
    """Make the plain TaskStore. Arguments as of `connect`.

    Parts that are made in one process for the same store, or URL and settings, share one backend;
    so do those that the other functions here make. Errors: ConfigError if their options differ.

    ``holds_lease`` if the agents of these tasks run in this process.
    """
    return RedisTaskStore(shared(at, options, **settings), holds_lease=holds_lease)


def create_versioned_task_store(
    at: At = None, options: A2AOptions | None = None, **settings: Any
) -> RedisVersionedTaskStore:
    """Make the VersionedTaskStore. Arguments as of `connect`. Errors: ConfigError on an old SDK."""
    _need_cluster()
    from redis_state.integrations.a2a.versioned import RedisVersionedTaskStore  # noqa: PLC0415

    return RedisVersionedTaskStore(shared(at, options, **settings))


def create_event_stream(
    at: At = None, options: A2AOptions | None = None, **settings: Any
) -> RedisTaskEventStream:
    """Make the TaskEventStream. Arguments as of `connect`. Errors: ConfigError on an old SDK."""
    _need_cluster()
    from redis_state.integrations.a2a.versioned import RedisTaskEventStream  # noqa: PLC0415

    return RedisTaskEventStream(shared(at, options, **settings))


def create_push_config_store(
    at: At = None, options: A2AOptions | None = None, **settings: Any
) -> RedisPushNotificationConfigStore:
    """Make the PushNotificationConfigStore. Arguments as of `connect`."""
    return RedisPushNotificationConfigStore(shared(at, options, **settings))


def create_push_sender(
    inner: PushNotificationSender, backend: At, **settings: Any
) -> SteadyPushSender:
    """Make a sender by which the end of a task is sent at least once, also if this server dies.

    ``backend`` is the one of the task store, or what that was made for. All servers need it.
    """
    return SteadyPushSender(shared(backend, None, **settings), inner)


def create_queue_manager(
    at: At = None, options: A2AOptions | None = None, **settings: Any
) -> RedisQueueManager:
    """Make the QueueManager of the legacy request handler. Arguments as of `connect`.

    A server has one. Errors: ConfigError for a second one on the same backend.
    """
    return RedisQueueManager(shared(at, options, **settings))


def create_agent_executor(
    inner: AgentExecutor, backend: At, **settings: Any
) -> InterruptibleExecutor:
    """Make an executor that stops when another server ends its task.

    ``backend`` is the one of the task store, by which a server knows its own writes, or what that
    was made for.
    """
    return InterruptibleExecutor(shared(backend, None, **settings), inner)


def _need_cluster() -> None:
    try:
        import a2a.server.cluster  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise ConfigError("versioned tasks need a2a-sdk 1.2 or later") from None


__all__ = [
    "A2ABackend",
    "A2AOptions",
    "InterruptibleExecutor",
    "RedisPushNotificationConfigStore",
    "RedisQueueManager",
    "RedisTaskStore",
    "SteadyPushSender",
    "TaskStateManager",
    "connect",
    "create_agent_executor",
    "create_event_stream",
    "create_push_config_store",
    "create_push_sender",
    "create_queue_manager",
    "create_task_store",
    "create_versioned_task_store",
]
