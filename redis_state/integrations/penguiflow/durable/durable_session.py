"""A StreamingSession whose context, patches and groups are the store's, not the process's.

Each change is made in the store first, and the session shows what is read from there. So a restart
loses none of it. Of all processes with the session, one decides on a patch and one ends a group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Literal

from penguiflow.sessions.models import ContextPatch, MergeStrategy
from penguiflow.state import StateUpdate, SteeringEvent

from redis_state.errors import (
    CallerError,
    RedisStateError,
    TokenResolved,
    TokenUnknown,
)
from redis_state.integrations.penguiflow.durable.group_session import GroupSession
from redis_state.integrations.penguiflow.durable.registry import ENDED
from redis_state.primitives.record import new_write_id
from redis_state.serialization import codec
from redis_state.stores.contexts.patch_outcome import PatchOutcome

log: logging.Logger = logging.getLogger(__name__)


class DurableSession(GroupSession):
    """PenguiFlow's session over a store that any number of processes share.

    Other processes' changes of the context are visible after `hydrate`, `refresh`, and each change
    made here. Tasks, groups and updates are read at each call. ``state_store`` has the store itself
    as ``store``. Errors, beside PenguiFlow's: BackendError.
    """

    def __init__(self, session_id: str, *, state_store: Any, **options: Any) -> None:
        super().__init__(session_id, state_store=state_store, **options)
        self._context: Any
        self._unsaved: deque[dict[str, Any]] = deque()
        self._writes: dict[str, str] = {}
        self._given = 0
        self._saving = asyncio.Lock()
        self._loaded = False

    async def hydrate(self) -> None:
        """Read the tasks, the context, the patches that wait, and the groups. Once."""
        await super().hydrate()
        if not self._loaded:
            await self.refresh()
            self._loaded = True

    async def refresh(self) -> None:
        """Read the context, the patches that wait, and the groups, as they are now."""
        await self.save_context()
        await self._read_context()
        await self._read_groups()

    async def close(self) -> None:
        """Wait for ended tasks to finish, cancel what runs, and save the unsaved context.

        See `SharedSession.close`.
        """
        try:
            await super().close()
        finally:
            await self._save_quietly()

    # The context

    def update_context(
        self,
        *,
        llm_context: dict[str, Any] | None = None,
        tool_context: dict[str, Any] | None = None,
    ) -> None:
        """Replace one part or both, here at once. The save is begun, in the order of the calls.

        The store's ``drain`` waits for it, as does everything else that this session changes.
        While the server is away it waits for the next change, or for `save_context`.
        """
        super().update_context(llm_context=llm_context, tool_context=tool_context)
        # A copy: the caller may change its own before it is saved.
        parts = {"llm_context": llm_context, "tool_context": tool_context}
        self._unsaved.append({**codec.plain(parts), "idempotency_key": new_write_id()})
        self._given += 1
        task = asyncio.get_running_loop().create_task(self._save_quietly())
        self._kept.base.background.add(task)
        task.add_done_callback(self._kept.base.background.discard)

    async def save_context(self) -> None:
        """Wait until what `update_context` was given is saved. Errors: BackendError.

        CallerError for what cannot be saved at all; it stays in this process.
        """
        async with self._saving:
            while self._unsaved:
                try:
                    saved = await self._kept.contexts.update_context(
                        self.session_id, **self._unsaved[0]
                    )
                except CallerError:
                    self._unsaved.popleft()
                    raise
                given = self._unsaved.popleft()
                write: str = given["idempotency_key"]
                for name in ("llm_context", "tool_context"):
                    if given[name] is not None:
                        self._writes[name] = write
                if not self._unsaved:
                    self._context.version, self._context.context_hash = saved

    async def mark_background_consumed(self, *, task_ids: list[str]) -> int:
        """Take tasks' results out of the context; return how many this call took."""
        await self.save_context()
        taken: int = await self._kept.contexts.mark_background_consumed(
            self.session_id, task_ids=[task_id for task_id in task_ids if task_id]
        )
        await self._read_context()
        return taken

    # Patches

    async def apply_context_patch(
        self,
        *,
        patch: ContextPatch,
        strategy: MergeStrategy = MergeStrategy.APPEND,
        payload: Any | None = None,
        group_id: str | None = None,
    ) -> str | None:
        """Bring a patch into the context, or keep it for a decision and return its id.

        The store's context shows whether it diverged. Errors: RuntimeError if this session's limits
        or `max_pending_patches` are reached.
        """
        await self.save_context()
        if strategy == MergeStrategy.HUMAN_GATED:
            await self._check_room()
        outcome: PatchOutcome = await self._kept.contexts.apply_context_patch(
            self.session_id, patch, strategy=strategy, payload=payload, group_id=group_id
        )
        await self._report(outcome)
        if outcome.status != "pending":
            return None
        await self._listen(patch.task_id)
        return outcome.patch_id

    async def apply_pending_patch(
        self, *, patch_id: str, strategy: MergeStrategy | None = None
    ) -> bool:
        """Approve a patch of any process. False if it is decided or gone."""
        await self.save_context()
        return await self._decided(
            self._kept.contexts.apply_pending_patch(self.session_id, patch_id, strategy=strategy)
        )

    async def reject_pending_patch(
        self, patch_id: str, *, actor: str | None = None, trace_id: str | None = None
    ) -> bool:
        """Reject a patch of any process. False if it is decided or gone."""
        await self.save_context()
        return await self._decided(
            self._kept.contexts.reject_pending_patch(
                self.session_id, patch_id, actor=actor, trace_id=trace_id
            )
        )

    async def steer(self, event: SteeringEvent) -> bool:
        """Steer a task, or decide on a patch, of any process."""
        patch_id = event.payload.get("patch_id")
        if isinstance(patch_id, str) and patch_id not in self._pending_patches:
            await self._read_context()
        return await super().steer(event)

    async def apply_group_patches(
        self,
        group_id: str,
        *,
        action: Literal["apply", "reject"] = "apply",
        strategy: MergeStrategy | None = None,
    ) -> bool:
        """Decide on the patches of a group that wait. The group is reported if this applied one."""
        group = await self._group(group_id)
        if group is None:
            return False
        applied = False
        for patch_id in group.patches:
            if action == "reject":
                await self.reject_pending_patch(patch_id)
            elif await self.apply_pending_patch(patch_id=patch_id, strategy=strategy):
                applied = True
        if applied and group.merge_strategy == MergeStrategy.HUMAN_GATED:
            report = group.model_copy(update={"merge_strategy": MergeStrategy.APPEND})
            await self._enqueue_group_report(report)
        return True

    async def _reject_pending_patch(self, patch_id: str, event: SteeringEvent) -> None:
        await self.reject_pending_patch(patch_id, actor=event.source, trace_id=event.trace_id)

    # What is shown

    async def _save_quietly(self) -> None:
        try:
            await self.save_context()
        except RedisStateError as error:
            log.warning("a context is not saved: %s", error)

    async def _check_room(self) -> None:
        limit: int = self.limits.max_pending_patches
        if len(self._pending_patches) >= limit:
            await self._read_context()  # others may have decided on some
            if len(self._pending_patches) >= limit:
                raise RuntimeError("pending_patch_limit_exceeded")

    async def _listen(self, task_id: str) -> None:
        """Apply a decision on the patch of a terminal task."""
        store: Any = self._state_store
        bridge = store.bridges.get(self.session_id)
        task = await self.get_task(task_id)
        if bridge is not None and (task is None or task.status in ENDED):
            bridge.look_at(task_id, ended=True)

    async def _read_context(self) -> None:
        contexts, given = self._kept.contexts, self._given
        found = await contexts.load_with_writes(self.session_id)
        self._pending_patches = await contexts.pending_patches(self.session_id)
        if found is None:
            self._context.background_results = {}
            return
        context, writes = found
        if self._unsaved or given != self._given:
            self._context.background_results = context.background_results
            return
        for name, write in writes.items():
            if write == self._writes.get(name):
                # What was given here may hold what JSON cannot: a tool's callbacks.
                setattr(context, name, getattr(self._context, name))
        context.tool_context = _living(context.tool_context, self._context.tool_context)
        self._context, self._writes = context, writes

    async def _report(self, outcome: PatchOutcome) -> None:
        """Show what became of a patch, to those who listen here too: it is stored already."""
        await self._read_context()
        for update in outcome.updates:
            self._broker.publish(StateUpdate.model_validate(update.model_dump()))

    async def _decided(self, decision: Any) -> bool:
        try:
            outcome: PatchOutcome = await decision
        except (TokenResolved, TokenUnknown):
            await self._read_context()
            return False
        await self._report(outcome)
        return True


def _living(stored: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """Return a stored tool context with the values that are the same here and that JSON lacks."""
    return {
        name: here[name] if name in here and codec.plain(here[name]) == value else value
        for name, value in stored.items()
    }


__all__ = ["DurableSession"]
