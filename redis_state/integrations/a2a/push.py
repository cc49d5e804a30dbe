"""The SDK's PushNotificationConfigStore on Redis, and a sender that forgets no end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from a2a.server.context import ServerCallContext
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.server.tasks.push_notification_sender import PushNotificationSender
from a2a.types.a2a_pb2 import (
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.message import DecodeError

from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import protocol_errors


class RedisPushNotificationConfigStore(PushNotificationConfigStore):
    """Push configurations, each owner's of each tenant apart; dispatch sees those of all owners.

    Tokens and credentials stand in them as they were given: the server's own protection is theirs.
    """

    def __init__(self, backend: A2ABackend) -> None:
        self.backend: A2ABackend = backend
        self._configs = backend.tasks.configs

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        """Keep a configuration and return it as kept: with the task's id, and an id of its own.

        Errors: InvalidParamsError for one too large, or one too many; TaskNotFoundError for a task
        that was deleted.
        """
        kept = TaskPushNotificationConfig()
        kept.CopyFrom(notification_config)
        kept.task_id = task_id
        kept.id = kept.id or task_id
        config = kept.SerializeToString()
        if not task_id or len(config) > self.backend.options.max_bytes:
            problem = "too large" if task_id else "a task id is needed"
            raise InvalidParamsError(f"push configuration: {problem}")
        with protocol_errors():
            await self._configs.put(self.backend.scope(context), task_id, kept.id, config)
        return kept

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        """Return the caller's configurations of a task, in the order they were set."""
        scope = self.backend.scope(context)
        return self._read(scope, (await self._configs.list(scope, task_id)).values())

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Return the configurations of a task, of all owners."""
        find = partial(self._configs.list_all, task_id)
        # The SDK's sender sends nothing of what it cannot look up: so a stall is waited for.
        found = await self.backend.owner.repeat(find)
        return self._read("a2a-push", found)

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Delete one of the caller's configurations of a task, or all of them for None."""
        if config_id == "":
            return
        await self._configs.drop(self.backend.scope(context), task_id, config_id)

    async def aclose(self) -> None:
        """Close the backend."""
        await self.backend.aclose()

    def _read(self, scope: str, configs: Iterable[bytes]) -> list[TaskPushNotificationConfig]:
        found: list[TaskPushNotificationConfig] = []
        for config in configs:
            try:
                found.append(TaskPushNotificationConfig.FromString(config))
            except DecodeError as error:
                self.backend.store.base.set_aside(scope, "push configuration", config, error)
        return found


class SteadyPushSender(PushNotificationSender):
    """Another sender, and the end of a task is sent also if this server dies before.

    That it must be sent is written together with the end. If this server dies, or its sender
    raises, another one sends the task's last status, within two leases.
    """

    def __init__(self, backend: A2ABackend, inner: PushNotificationSender) -> None:
        backend.push_by(inner.send_notification)
        self.backend: A2ABackend = backend
        self.inner: PushNotificationSender = inner

    async def send_notification(
        self, task_id: str, event: Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
    ) -> None:
        """Send an event, then record that the end is sent, if it was that."""
        await self.inner.send_notification(task_id, event)
        await self.backend.owner.ends.announced(task_id)
