"""A child that a task asks for, and its handle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.models import TaskType
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.serialization import codec
from redis_state.worker.queue.limits import flow_key
from redis_state.worker.tasks.started import StartedRun


@dataclass(frozen=True, slots=True)
class ChildTask:
    """A task that another one has spawned, in the same session.

    ``place`` is its name and its order among those of that name.
    """

    session_id: str
    task_id: str
    parent_id: str
    place: str


class SpawnOptions(TypedDict, total=False):
    """What every child may be given. See `TaskContext.spawn`."""

    isolate: bool
    queue: str | None
    priority: int
    limit_key: str | None
    task_type: TaskType
    description: str | None
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A child that is to be: what it runs, and how it hangs on its parent.

    ``flow`` is what it is limited under, as queues write it; "" for nothing.
    """

    handler: str
    task_input: Any = field(repr=False)
    isolate: bool
    queue: str | None
    priority: int
    flow: str
    task_type: TaskType
    description: str | None
    attributes: Attributes

    @property
    def asks(self) -> str:
        """The content of the request, to distinguish it from others."""
        return codec.fingerprint("asks", self.handler, self.task_input)

    @classmethod
    def read(
        cls, started: StartedRun, handler: str, task_input: Any, options: SpawnOptions
    ) -> SpawnRequest:
        """Check what a handler asks for. Errors: InvalidField."""
        limits.known_options(SpawnOptions, options)
        limits.name("handler", handler)
        isolate = options.get("isolate", False)
        if type(isolate) is not bool:
            raise InvalidField("isolate", "True or False is needed")
        return cls(
            handler=handler,
            task_input=task_input,
            isolate=isolate,
            queue=limits.name_or("queue", options.get("queue"), started.queue),
            priority=options.get("priority", started.state.priority),
            flow=flow_key(options.get("limit_key")),
            task_type=options.get("task_type", TaskType.BACKGROUND),
            description=options.get("description"),
            attributes=check_attributes("attributes", options.get("attributes", {})),
        )
