"""Versions of a handler: a task keeps the version under which it began, to its end.

    AgentWorker({"publish": versioned({"1": publish_v1, "2": publish_v2}, default="2")})

A new task begins with the default, and its journal keeps that as an entry of its own. Every later
run takes the same version. A task that began before there were versions takes the one that is named
for it. A worker that lacks a task's version leaves it to others: see `queue.parked`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_state.errors import InvalidField
from redis_state.store import RedisStateStore
from redis_state.worker.handler.guards import guarded, unguarded
from redis_state.worker.observe.registry import WorkerRegistry
from redis_state.worker.queue.jobs.parked import lane_of
from redis_state.worker.tasks.execution.code_changes import VERSION
from redis_state.worker.tasks.started import StartedRun

if TYPE_CHECKING:
    from redis_state.worker.handler.context import TaskContext


class VersionedHandler:
    """The versions of one handler. Called by itself, it runs the default."""

    def __init__(
        self,
        codes: Mapping[str, Callable[[TaskContext], Awaitable[Any]]],
        default: str,
        unversioned: str,
    ) -> None:
        self.codes: Mapping[str, Callable[[TaskContext], Awaitable[Any]]] = dict(codes)
        self.default: str = default
        self.unversioned: str = unversioned

    def __call__(self, ctx: TaskContext) -> Awaitable[Any]:
        """Call the default."""
        return self.codes[self.default](ctx)

    async def release(self, store: Any) -> None:
        """Close what the versions keep between tasks. Called when the worker stops."""
        for code in {id(each): each for each in self.codes.values()}.values():
            release: Callable[[Any], Awaitable[None]] | None = getattr(code, "release", None)
            if release is not None:
                await release(store)


def versioned(
    codes: Mapping[str, Callable[[TaskContext], Awaitable[Any]]],
    *,
    default: str,
    unversioned: str | None = None,
) -> VersionedHandler:
    """Make a handler of several versions, of which each task keeps the one that it began with.

    New tasks begin with ``default``. ``unversioned`` is for tasks that began when the handler had
    no versions: the first of ``codes`` unless it is given. Errors: InvalidField.
    """
    if not codes:
        raise InvalidField("codes", "a version is needed")
    given: Mapping[Any, Any] = codes
    for version, code in given.items():
        if not version or not isinstance(version, str):
            raise InvalidField("codes", f"a version is a text, not {version!r}")
        if not callable(code) or isinstance(unguarded(code)[0], VersionedHandler):
            raise InvalidField("codes", f"version {version!r} needs a handler")
    before = next(iter(codes)) if unversioned is None else unversioned
    for field, version in (("default", default), ("unversioned", before)):
        if version not in codes:
            raise InvalidField(field, f"there is no version {version!r}")
    return VersionedHandler(codes, default, before)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The code of a run. ``code`` is None if a worker has no such handler, or not this version.

    ``is_new`` is a version that the task's journal does not have yet.
    """

    code: Callable[[Any], Awaitable[Any]] | None
    version: str | None = None
    is_new: bool = False

    @property
    def lacks(self) -> str | None:
        """The version that the worker lacks."""
        return self.version if self.code is None else None


def choose(handlers: Mapping[str, Any], started: StartedRun) -> Chosen:
    """Choose the code of a started run: that of the task's version, if it has one."""
    given = handlers.get(started.handler)
    handler, guards = unguarded(given)
    recorded: str | None = started.journal.get(VERSION)
    if not isinstance(handler, VersionedHandler):
        # Code without versions serves tasks without one: the other may be newer, or older.
        return Chosen(given) if recorded is None else Chosen(None, recorded)
    if recorded is not None:
        known = handler.codes.get(recorded)
        return Chosen(known and guarded(*guards)(known), recorded)
    began = started.replay.known > 0
    version = handler.unversioned if began else handler.default
    return Chosen(guarded(*guards)(handler.codes[version]), version, is_new=True)


def versions_of(handlers: Mapping[str, Any]) -> dict[str, list[str]]:
    """List the versions that handlers have, for those that have some."""
    found = {name: unguarded(handler)[0] for name, handler in handlers.items()}
    return {
        name: list(handler.codes)
        for name, handler in found.items()
        if isinstance(handler, VersionedHandler)
    }


def lanes_of(handlers: Mapping[str, Any]) -> list[str]:
    """List the lanes that a worker with these handlers serves, see `ParkedJobs`."""
    lanes = [lane_of(name, None) for name in handlers]
    return lanes + [
        lane_of(name, version)
        for name, versions in versions_of(handlers).items()
        for version in versions
    ]


async def is_served_elsewhere(store: RedisStateStore, handler: str, queue: str) -> bool:
    """Return whether a worker of a queue has a handler, or had it within ten minutes.

    Errors: BackendError.
    """
    registry = WorkerRegistry(store)
    if await registry.was_served(queue, handler):
        return True
    # Workers of an earlier version write their record alone.
    return any(
        handler in info.handlers and queue in info.queues and not info.draining
        for info in await registry.list()
    )
