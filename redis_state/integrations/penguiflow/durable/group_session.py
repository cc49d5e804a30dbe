"""A StreamingSession whose groups of tasks are the store's: of all processes one ends a group."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Literal

from penguiflow.sessions.models import ContextPatch, MergeStrategy, TaskGroup

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.integrations.penguiflow.durable.shared_session import SharedSession
from redis_state.stores.contexts.groups import GroupStep
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_OVER = ("complete", "failed")
# Another process may end a group that is waited for here.
_CHECK_S = 0.5


class GroupSession(SharedSession):
    """PenguiFlow's session with groups that any number of processes share."""

    async def resolve_or_create_group(
        self,
        *,
        group_name: str | None = None,
        group_id: str | None = None,
        turn_id: str | None = None,
        merge_strategy: MergeStrategy | None = None,
        report_strategy: Literal["all", "any", "none"] | None = None,
        retain_turn: bool = False,
    ) -> TaskGroup:
        """Return the open group of an id, or of a name and turn, made if there is none."""
        if group_id is not None:
            group = await self._group(group_id)
            if group is None:
                raise RuntimeError(f"group_not_found: {group_id}")
            if group.status != "open":
                raise RuntimeError(f"group_not_joinable: {group_id} is {group.status}")
            return group
        return self._show(
            await self._kept.groups.open(
                self.session_id,
                name=group_name,
                turn_id=turn_id,
                merge_strategy=merge_strategy or MergeStrategy.APPEND,
                report_strategy=report_strategy or "all",
                retain_turn=retain_turn,
            )
        )

    async def add_task_to_group(self, group_id: str, task_id: str) -> bool:
        """Make a task a member; False if the group is not open, or there is none."""
        joined: bool = await self._kept.groups.join(self.session_id, group_id, task_id)
        await self._group(group_id)
        return joined

    async def seal_group(self, group_id: str) -> bool:
        """Close the group to new members; False if this call did not seal it."""
        step = await self._kept.groups.seal(self.session_id, group_id)
        await self._stepped(group_id, step)
        return step is not None

    async def get_group(
        self,
        group_id: str | None = None,
        *,
        group_name: str | None = None,
        turn_id: str | None = None,
    ) -> TaskGroup | None:
        """Return a group by its id, or by name and turn."""
        await self._read_groups()
        return await super().get_group(group_id, group_name=group_name, turn_id=turn_id)

    async def list_groups(self, *, status: Any | None = None) -> list[TaskGroup]:
        """Return the groups, or those of one status."""
        await self._read_groups()
        found: list[TaskGroup] = await super().list_groups(status=status)
        return found

    async def mark_task_complete_in_group(
        self,
        group_id: str,
        task_id: str,
        *,
        success: bool,
        patch: ContextPatch | None = None,
        patch_id: str | None = None,
    ) -> None:
        """Record how a member ended. Of all processes the one that ends the group reports it."""
        del patch
        if task_id in self._taken_over:
            # Who has it now says how it ended.
            return
        try:
            step = await self._kept.groups.finish(
                self.session_id, group_id, task_id, success=success, patch_id=patch_id
            )
        except InvalidField as error:
            # PenguiFlow runs tasks in groups that they did not join: the task is not to fail of it.
            log.warning("task %r in group %r: %s", task_id, group_id, error)
            return
        await self._stepped(group_id, step)

    async def wait_for_group_completion(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> tuple[TaskGroup | None, bool]:
        """Wait until a group has ended in any process; return it, and whether time ran out."""
        try:
            async with timeout(limits.timeout("timeout_s", timeout_s)):
                while True:
                    group = await self._group(group_id)
                    if group is None or group.status in _OVER:
                        return group, False
                    ended = self._group_completion_events.setdefault(group_id, asyncio.Event())
                    with suppress(TimeoutError):
                        await asyncio.wait_for(ended.wait(), _CHECK_S)
        except TimeoutError:
            return self._groups.get(group_id), True

    async def get_group_results(self, group_id: str) -> list[dict[str, Any]]:
        """Return the results of a group's members, of any process."""
        await self._group(group_id)
        found: list[dict[str, Any]] = await super().get_group_results(group_id)
        return found

    async def cancel_group(
        self, group_id: str, *, reason: str | None = None, propagate: bool = True
    ) -> bool:
        """End a group as failed, and cancel its members in every process; False if it had ended."""
        step = await self._kept.groups.cancel(self.session_id, group_id)
        group = await self._group(group_id)
        if step is None:
            return False
        if propagate and group is not None:
            for task_id in group.pending_task_ids:
                await self.cancel_task(task_id, reason=reason or "group_cancelled")
        return True

    async def auto_seal_open_groups(self, turn_id: str | None = None) -> int:
        """Seal the open groups of a turn, or of the current one; return how many this call did."""
        turn = turn_id or self._current_turn_id
        sealed = 0
        for group in await self.list_groups(status="open"):
            if group.turn_id == turn:
                sealed += await self.seal_group(group.group_id)
        return sealed

    async def _read_groups(self) -> None:
        found = [self._show(group) for group in await self._kept.groups.list(self.session_id)]
        self._groups = {group.group_id: group for group in found}

    async def _group(self, group_id: str) -> TaskGroup | None:
        found = await self._kept.groups.load(self.session_id, group_id)
        if found is None:
            self._groups.pop(group_id, None)
            return None
        return self._show(found)

    def _show(self, found: Any) -> TaskGroup:
        """Bring a group up to date, in the object that was handed out."""
        group: TaskGroup = self._groups.setdefault(found.group_id, found)
        for name in TaskGroup.model_fields:
            setattr(group, name, getattr(found, name))
        return group

    async def _stepped(self, group_id: str, step: GroupStep | None) -> None:
        group = await self._group(group_id)
        if step is None or not step.completed or group is None:
            return
        # PenguiFlow reports a group that it finds sealed with all of its members ended.
        stored = group.model_copy()
        group.status, group.report_queued = "sealed", False
        await self._check_group_completion(group_id)
        self._show(stored)
