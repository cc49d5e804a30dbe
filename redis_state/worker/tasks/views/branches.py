"""The tasks of a session that a branch may have: those of Redis, and of the archive if need be."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from redis_state.errors import ArchiveUnavailable
from redis_state.models import TaskState
from redis_state.models.tasks import parent_of
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.children.children import ChildTasks


async def tasks_of_branch(
    store: RedisStateStore, top: TaskState, *, archived: bool
) -> tuple[list[TaskState], bool]:
    """Return the tasks of a session in the order of their creation, with those below one of them,
    and whether archived ones are missing.

    The archive is read if the top is ``archived``, or if a child's name is all that Redis has of
    it. Large results stay in the store of claims. Of many archived tasks the newest are read.
    Errors: ArchiveUnavailable for an archived top; below a live one archived tasks are missing
    then.
    """
    session_id = top.session_id
    if not archived:
        live = await store.list_tasks(session_id)
        if not store.settings.has_archive or not await _misses(store, top, live):
            return live, False
    return await _with_archived(store, session_id, needed=archived)


async def tasks_of_session(store: RedisStateStore, session_id: str) -> tuple[list[TaskState], bool]:
    """Return the tasks of a session in the order of their creation, also those of the archive, and
    whether archived ones are missing: the archive cannot be read, or has too many.

    Errors: ArchiveUnavailable for a session of which Redis has no task.
    """
    if not store.settings.has_archive:
        return await store.list_tasks(session_id), False
    return await _with_archived(store, session_id)


async def _with_archived(
    store: RedisStateStore, session_id: str, *, needed: bool = False
) -> tuple[list[TaskState], bool]:
    reader = store.archive
    try:
        return await reader.soon(lambda: reader.tasks_or_more(session_id, fetch=False))
    except ArchiveUnavailable:
        live = [] if needed else await store.list_tasks(session_id)
        if not live:
            raise
        return live, True


async def reread_branch(store: RedisStateStore, known: Sequence[TaskState]) -> list[TaskState]:
    """Read the tasks of one branch again, and those that workers have spawned below them since.

    The cost is that of the branch, whatever its session has. A task that Redis lacks by now stays
    as it was. One that a host has placed in the branch since then is not found.
    """
    states = {state.task_id: state for state in known}
    left, children = list(states), ChildTasks(store)
    session_id = known[0].session_id
    while left:
        loaded = await asyncio.gather(*(store.tasks.load(session_id, each) for each in left))
        states |= {state.task_id: state for state in loaded if state is not None}
        named = await asyncio.gather(
            *(children.children(session_id, each) for each in left if each in states)
        )
        left = list({name: None for names in named for name in names if name not in states})
    return list(states.values())


def branch_of(top: TaskState, tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return a task and those of its session that are below it, in their order."""
    listed = [top, *(state for state in tasks if state.task_id != top.task_id)]
    below: defaultdict[str | None, list[str]] = defaultdict(list)
    for state in listed:
        below[parent_of(state)].append(state.task_id)
    found, left = {top.task_id}, [top.task_id]
    while left:
        new = set(below[left.pop()]) - found
        found |= new
        left += new
    return [state for state in listed if state.task_id in found]


async def _misses(store: RedisStateStore, top: TaskState, live: Sequence[TaskState]) -> bool:
    """Return whether a task of a branch names a child that Redis does not have."""
    known = {state.task_id for state in live}
    branch, children = branch_of(top, live), ChildTasks(store)
    named = await asyncio.gather(
        *(children.children(top.session_id, each.task_id) for each in branch)
    )
    return any(name not in known for names in named for name in names)
