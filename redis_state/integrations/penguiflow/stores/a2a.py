"""PenguiFlow's A2A task store on Redis: `A2AService(flow, ..., store=create_a2a_task_store())`.

An update in one process reaches the subscribers of all, in order, each once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

from penguiflow_a2a.models import (
    Artifact,
    ListTaskPushNotificationConfigResponse,
    ListTasksResponse,
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from redis_state.errors import (
    ConfigError,
    CursorGap,
    NoConnection,
    RedisStateError,
)
from redis_state.integrations.penguiflow.adapter.standalone import StandaloneStore
from redis_state.integrations.penguiflow.stores.a2a_tasks import (
    Filter,
    FoundTask,
    PenguiflowTasks,
    TaskChange,
)
from redis_state.serialization.fields import choice, dumped, text
from redis_state.settings import Settings, make_settings

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 0.5
PATIENCE_S = 15.0

Unsubscribe = Callable[[], Coroutine[Any, Any, None]]


class PenguiflowA2ATaskStore(StandaloneStore):
    """Tasks of A2A servers, shared by all processes.

    An unknown task is a KeyError everywhere. Each change is one atomic step: no message, artifact
    or part of one is lost to another writer. A task is kept `a2a_task_ttl` after its last change.

    PenguiFlow ends the run of a task at the first call of this store that fails, and leaves the
    task in work. So a change is made again, once under its id, for ``reconnect_timeout_s`` while
    the server does not reply.
    """

    def __init__(self, settings: Settings, *, reconnect_timeout_s: float = PATIENCE_S) -> None:
        if not 0 <= reconnect_timeout_s < inf:
            raise ConfigError("reconnect_timeout_s: a number of seconds of at least 0 is needed")
        super().__init__(settings)
        self._tasks = PenguiflowTasks(self.base, reconnect_timeout_s=reconnect_timeout_s)
        self._followers: set[asyncio.Task[None]] = set()

    async def create_task(self, task: Task) -> Task:
        """Create a task. Errors: ValueError if there is one of its id."""
        made = await self._tasks.create(
            text("id", task.id),
            dumped("task", partial(task.model_dump, exclude={"status"}))
            | {
                # Empty and absent differ; what is in them are entries of their own.
                "history": None if task.history is None else [],
                "artifacts": None if task.artifacts is None else [],
            },
            context_id=text("context_id", task.context_id),
            state=_state(task.status),
            status=dumped("status", task.status.model_dump),
            history=[dumped("history", each.model_dump) for each in task.history or []],
            artifacts=[dumped("artifacts", each.model_dump) for each in task.artifacts or []],
        )
        if not made:
            raise ValueError(f"Task '{task.id}' already exists")
        return task.model_copy(deep=True)

    async def add_history(self, task_id: str, message: Message) -> None:
        """Append a message to a task's history."""
        _known(
            task_id, await self._tasks.add_message(task_id, dumped("message", message.model_dump))
        )

    async def update_status(
        self,
        task_id: str,
        status: TaskStatus,
        *,
        final: bool,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a task's status and publish it to every subscriber."""
        done = await self._tasks.set_status(
            task_id,
            state=_state(status),
            status=dumped("status", status.model_dump),
            final=final,
            metadata=dict(metadata or {}),
        )
        _known(task_id, done)

    async def add_artifact(
        self,
        task_id: str,
        artifact: Artifact,
        *,
        append: bool,
        last_chunk: bool,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an artifact, or with ``append`` its parts to the first of its id, and publish it."""
        done = await self._tasks.add_artifact(
            task_id,
            dumped("artifact", artifact.model_dump),
            append=append,
            last_chunk=last_chunk,
            metadata=dict(metadata or {}),
        )
        _known(task_id, done)

    async def get_task(self, task_id: str, history_length: int | None = None) -> Task:
        """Return a task as it stands at one moment, with its newest messages.

        All for None; with 0 or less the history is None.
        """
        found = await self._tasks.load(task_id, messages=history_length)
        if found is None:
            raise KeyError(task_id)
        return _task(found, history_length)

    async def list_tasks(
        self,
        *,
        context_id: str | None,
        status: TaskState | None,
        page_size: int,
        page_token: str | None,
        history_length: int | None,
        status_timestamp_after: datetime | None,
        include_artifacts: bool,
    ) -> ListTasksResponse:
        """Return tasks, the last updated first.

        A page's token names where the page ended, not how many there were: tasks that are made or
        updated meanwhile neither repeat nor hide the others. One that was not listed yet and is
        updated moves before the token: the next listing has it first. Errors: ValueError for a
        token that is none.
        """
        state = None if status is None else choice("status", status, TaskState)
        wanted = Filter(context_id, state, status_timestamp_after)
        page = await self._tasks.list(wanted, size=page_size, token=page_token)
        loaded = await asyncio.gather(
            *(
                self._tasks.load(task_id, messages=history_length, artifacts=include_artifacts)
                for task_id in page.ids
            )
        )
        tasks = [_task(found, history_length) for found in loaded if found is not None]
        if not include_artifacts:
            tasks = [task.model_copy(update={"artifacts": None}) for task in tasks]
        return ListTasksResponse(
            tasks=tasks,
            next_page_token=page.next_token,
            page_size=page_size,
            total_size=page.total,
        )

    async def subscribe(self, task_id: str) -> tuple[asyncio.Queue[StreamResponse], Unsubscribe]:
        """Return a queue of a task's updates from now on, in any process, and a function that stops
        it.

        Updates come in order, each once, through lost connections and restarts of the server. If
        updates were dropped before they could be read, the task itself comes in their place. A task
        that has ended already delivers its end at once, so nobody waits for an end that came just
        before. The queue is fed until ``unsubscribe`` is called, or this store or its loop is
        closed.
        """
        found = await self._tasks.load(task_id, messages=0, artifacts=False)
        if found is None:
            raise KeyError(task_id)
        queue: asyncio.Queue[StreamResponse] = asyncio.Queue()
        if found.final:
            queue.put_nowait(_ended(found))
        follower = asyncio.create_task(
            self._feed(task_id, found, queue), name="redis_state a2a subscription"
        )
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

        async def unsubscribe() -> None:
            follower.cancel()
            await asyncio.wait({follower})

        return queue, unsubscribe

    async def set_push_config(
        self, task_id: str, config_id: str, config: TaskPushNotificationConfig
    ) -> TaskPushNotificationConfig:
        """Save a push configuration; one of the same id is replaced."""
        saved = await self._tasks.save_push(
            task_id, text("config_id", config_id), dumped("config", config.model_dump)
        )
        _known(task_id, saved)
        return config.model_copy(deep=True)

    async def get_push_config(self, task_id: str, config_id: str) -> TaskPushNotificationConfig:
        """Return a push configuration. Errors: KeyError for an unknown one too."""
        configs = await self._tasks.push_configs(task_id)
        if configs is None:
            raise KeyError(task_id)
        return TaskPushNotificationConfig.model_validate(configs[config_id])

    async def list_push_configs(
        self, task_id: str, *, page_size: int, page_token: str | None
    ) -> ListTaskPushNotificationConfigResponse:
        """Return push configurations by name, those of one name by id.

        A page's token names where the page ended. Errors: ValueError for a page size below 1, and
        for a token that is none.
        """
        if page_size < 1:
            raise ValueError("page_size must be >= 1")
        configs, token = await self._tasks.push_page(task_id, size=page_size, token=page_token)
        return ListTaskPushNotificationConfigResponse(
            configs=[TaskPushNotificationConfig.model_validate(config) for config in configs],
            next_page_token=token,
        )

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Delete a push configuration, if there is one."""
        _known(task_id, await self._tasks.delete_push(task_id, text("config_id", config_id)))

    async def aclose(self) -> None:
        """End the running loop's subscriptions, finish what was called, and disconnect the loop."""
        loop = asyncio.get_running_loop()
        ending = [follower for follower in self._followers if follower.get_loop() is loop]
        for follower in ending:
            follower.cancel()
        if ending:
            await asyncio.wait(ending)
        await super().aclose()

    async def _feed(
        self, task_id: str, found: FoundTask, queue: asyncio.Queue[StreamResponse]
    ) -> None:
        context_id: str = found.document["context_id"]
        cursor, gap = found.cursor, None
        while True:
            try:
                if gap is not None:
                    cursor, gap = await self._catch_up(task_id, gap, queue), None
                updates = self._tasks.follow(task_id, after=cursor)
                async with aclosing(updates):
                    async for reported in updates:
                        self._hand_on(task_id, context_id, reported, queue)
                        cursor = reported.cursor
            except CursorGap as found_gap:
                gap = found_gap
                log.warning("updates of A2A task %r are gone: %s", task_id, gap.reason)
            except NoConnection as error:
                log.warning("a subscription to an A2A task waits for its server: %s", error)
                await asyncio.sleep(_AGAIN_S)
            except (RedisStateError, KeyError) as error:
                log.error("a subscription to A2A task %r has ended: %s", task_id, error)  # noqa: TRY400 - our errors say it all
                return

    def _hand_on(
        self,
        task_id: str,
        context_id: str,
        reported: TaskChange,
        queue: asyncio.Queue[StreamResponse],
    ) -> None:
        place = f"a2a update {reported.cursor} of {task_id}"
        event = self.base.attempt("a2a", place, b"", lambda: _event(task_id, context_id, reported))
        if event is not None:
            queue.put_nowait(event)

    async def _catch_up(
        self, task_id: str, gap: CursorGap, queue: asyncio.Queue[StreamResponse]
    ) -> str:
        """Queue the task itself, in place of updates that are gone; return where to read on.

        A task that is still where the cursor is has had no update: only its earlier ones are lost.
        Errors: KeyError.
        """
        now = await self._tasks.load(task_id)
        if now is None:
            raise KeyError(task_id)
        if now.cursor == gap.cursor:
            return gap.resume_after
        queue.put_nowait(StreamResponse(task=_task(now, None)))
        if now.final:
            queue.put_nowait(_ended(now))
        return now.cursor


def create_a2a_task_store(
    *, url: str | None = None, reconnect_timeout_s: float = PATIENCE_S, **options: Any
) -> PenguiflowA2ATaskStore:
    """Make the A2A task store. No I/O; the first call connects.

    The server is ``url``, else ``REDIS_STATE_URL``; options are the fields of `Settings`, among
    them ``a2a_task_ttl`` and ``max_updates_per_a2a_task``. ``reconnect_timeout_s`` is how long a
    change is repeated while the server does not reply. Errors: ConfigError names an option that
    cannot be used.
    """
    return PenguiflowA2ATaskStore(
        make_settings(url, **options), reconnect_timeout_s=reconnect_timeout_s
    )


def _known(task_id: str, there: bool) -> None:  # noqa: FBT001 - read as: known, if it is there
    if not there:
        raise KeyError(task_id)


def _state(status: TaskStatus) -> str:
    return choice("status.state", status.state, TaskState)


def _task(found: FoundTask, history_length: int | None) -> Task:
    document = found.document | {"status": found.status}
    if found.history:
        document["history"] = found.history
    if history_length is not None:
        # As upstream has it: a length turns no history into an empty one, and 0 any into none.
        document["history"] = found.history if history_length > 0 else None
    if found.artifacts:
        document["artifacts"] = found.artifacts
    task: Task = Task.model_validate(document)
    return task


def _event(task_id: str, context_id: str, reported: TaskChange) -> StreamResponse | None:
    ids = {"task_id": task_id, "context_id": context_id}
    match reported.kind, *reported.values:
        case "status", status, final, metadata:
            event = {"status": status, "final": final, "metadata": metadata}
            return StreamResponse(status_update=TaskStatusUpdateEvent.model_validate(ids | event))
        case "artifact", artifact, append, last_chunk, metadata:
            event = {"artifact": artifact, "append": append, "last_chunk": last_chunk}
            return StreamResponse(
                artifact_update=TaskArtifactUpdateEvent.model_validate(
                    ids | event | {"metadata": metadata}
                )
            )
        case _:
            return None


def _ended(found: FoundTask) -> StreamResponse:
    reported = TaskChange("status", [found.status, True, found.metadata], found.cursor)
    event = _event(found.document["id"], found.document["context_id"], reported)
    assert event is not None  # noqa: S101 - a status is always published
    return event
