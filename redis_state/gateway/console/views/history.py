"""What a task's page keeps while it is streamed: rows, steps and tree are read once, then on.

A page that reads all of them for each row that comes costs the more the longer the task runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

from redis_state.errors import RedisStateError, TaskUnknown
from redis_state.gateway.answers import problem_of
from redis_state.gateway.calls import Operation, authorise
from redis_state.gateway.console.operations import READ_ROWS, READ_TIMELINE, READ_TREE
from redis_state.gateway.console.pages import PageCall
from redis_state.gateway.showing.documents import branch_documents
from redis_state.gateway.streaming.reading import LiveEvent
from redis_state.models import TaskState
from redis_state.worker.tasks.views.branches import branch_of, reread_branch, tasks_of_branch

_PAGE, _MOST_PAGES = 1_000, 50
# A page of rows may be many parts of an archive: no more are begun after so long.
_LONGEST_S = 5.0
_SHOWN_ROWS = 30
_BESIDE = ("steps", "compensations", "pauses")
# What the waterfall is drawn from: so many rows, and so much of each.
_MOST_MARKS = 5_000
_DRAWN = frozenset({"STATUS_CHANGE", "CHECKPOINT"})
_MARKED = ("status", "worker", "pause", "reason", "actor", "approved", "notice", "entry")
# Rows that may be about children, pauses and runs. Others come often: the tree is read again after
# so long.
_MOVES = frozenset({"STATUS_CHANGE", "CHECKPOINT", "NOTIFICATION"})
_TREE_EVERY_S = 2.0


class ShownRows:
    """What one page shows of a task's rows: the newest, and those of its waterfall."""

    def __init__(self, call: PageCall) -> None:
        self._call = call
        self._cursor: str | None = None
        # What the last whole timeline had beside rows, and what its journal had counted by then.
        self._beside: dict[str, Any] = {}
        self._counted: list[bytes | None] | None = None
        self._marks: deque[dict[str, Any]] = deque(maxlen=_MOST_MARKS)
        self._newest: deque[dict[str, Any]] = deque(maxlen=_SHOWN_ROWS)
        self._missed = 0
        self._incomplete = False

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The newest rows, oldest first."""
        return list(self._newest)

    async def read(self, *, fresh: bool = True) -> dict[str, Any]:
        """Read on, and return the timeline with the rows of its waterfall. Errors: HttpProblem.

        It may end before the newest row, and then says so. The next read begins there. Its steps
        and pauses are read again if that is to be ``fresh``, or if there are other steps.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONGEST_S
        counted = await self._count()
        if fresh or counted != self._counted:
            timeline = await self._page(READ_TIMELINE)
            self._beside, self._counted = {name: timeline[name] for name in _BESIDE}, counted
        else:
            timeline = await self._page(READ_ROWS)
        for _ in range(_MOST_PAGES - 1):
            if timeline["at_end"] or loop.time() >= until:
                break
            timeline = await self._page(READ_ROWS)
        whole = {"missed": self._missed, "incomplete": self._incomplete}
        return self._beside | timeline | whole | {"rows": list(self._marks)}

    async def _count(self) -> list[bytes | None]:
        """Read how many entries the task's journal has, and of which version the last step is."""
        store, path = (await self._call.backstage.services()).store, self._call.task
        authorise(READ_TIMELINE, self._call.principal, path)
        key = store.tasks.keys(path["session"], path["task"]).journal
        try:
            counted: list[bytes | None] = await store.transport.commands.hmget(
                key, "entries", "versions"
            )
        except RedisStateError as error:
            raise problem_of(error) from error
        return counted

    async def _page(self, operation: Operation) -> dict[str, Any]:
        query = {"limit": _PAGE, "after": self._cursor}
        timeline: dict[str, Any] = await self._call.perform(
            operation, path=self._call.task, query=query
        )
        self._cursor = timeline["cursor"]
        self._missed += timeline["missed"] or 0
        self._incomplete = self._incomplete or timeline["incomplete"]
        self._newest.extend(timeline["rows"])
        self._marks.extend(mark for row in timeline["rows"] if (mark := _mark(row)) is not None)
        return timeline


class ShownTree:
    """A task and those below it. The session is read once, then the tasks of the tree alone."""

    def __init__(self, call: PageCall) -> None:
        self._call = call
        self._known: list[TaskState] | None = None
        self._incomplete = False
        self._read_at = 0.0
        self._document: dict[str, Any] = {}

    async def read(self, *, fresh: bool = True) -> dict[str, Any]:
        """Return the tree; one of the last seconds will do if it needs not be ``fresh``.

        Errors: HttpProblem.
        """
        now = asyncio.get_running_loop().time()
        if self._known is None or fresh or now - self._read_at >= _TREE_EVERY_S:
            self._document, self._read_at = await self._read(), now
        return self._document

    async def _read(self) -> dict[str, Any]:
        path, services = self._call.task, await self._call.backstage.services()
        authorise(READ_TREE, self._call.principal, path)
        try:
            if self._known is None:
                self._known, self._incomplete = await _whole(services, **path)
            else:
                self._known = await reread_branch(services.store, self._known)
        except RedisStateError as error:
            raise problem_of(error) from error
        (branch,), is_cut = branch_documents(self._known[:1], self._known)
        return branch | {"incomplete": self._incomplete or is_cut}


async def _whole(services: Any, session: str, task: str) -> tuple[list[TaskState], bool]:
    view = await services.client.inspect(session, task)
    if view is None:
        raise TaskUnknown(task)
    tasks, incomplete = await tasks_of_branch(services.store, view.state, archived=view.archived)
    return branch_of(view.state, tasks), incomplete


def may_be_moves(events: Iterable[LiveEvent]) -> bool:
    """Return whether events are more than what a task says while it runs."""
    return any(each.cursor is None or each.name in _MOVES for each in events)


def _mark(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the waterfall shows of a row; None for a row that it does not show."""
    given = row["content"]
    content = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if row["type"] not in _DRAWN and content.get("notice") != "attempt_failed":
        return None
    kept = {name: content[name] for name in _MARKED if name in content}
    return {"type": row["type"], "at": row["at"], "content": kept}
