"""Patches of a session's context: applied at once, or kept until they are decided, exactly once.

Whether the context has diverged is decided here, by the version and hash that were read. The script
refuses if they are no longer the same. Results do not change them. So concurrent patches do not
delay each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from pydantic import BaseModel

from redis_state import limits
from redis_state.errors import InvalidField, LimitReached, TokenUnknown, VersionConflict
from redis_state.models.session_context import (
    ContextPatch,
    MergeStrategy,
    PendingContextPatch,
    has_diverged,
    result_of_patch,
)
from redis_state.models.steering import SteeringEvent, SteeringEventType
from redis_state.models.tasks import StateUpdate, UpdateType
from redis_state.primitives.record import new_write_id
from redis_state.primitives.token import new_claim, raise_unless_won
from redis_state.scripts import Announcement, PatchKeys, Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.serialization.fields import choice, optional_text, text
from redis_state.stores.base import Base, ms
from redis_state.stores.contexts.patch_outcome import PatchOutcome, outcome_of
from redis_state.stores.contexts.patch_updates import (
    UpdateContent,
    applied,
    changed,
    rejected,
    requested,
)
from redis_state.stores.contexts.waiting_patches import WaitingPatch, read_waiting, write_waiting
from redis_state.stores.optimistic import retry_on_conflict
from redis_state.stores.sessions.updates import UpdateStore
from redis_state.transport.clock import ms_of


class ContextPatches:
    """Apply patches, list those that wait, decide on them."""

    def __init__(
        self,
        base: Base,
        updates: UpdateStore,
        *,
        patch_type: type[Any],
        pending_type: type[Any],
        strategy_type: type[Any],
        decider: str,
    ) -> None:
        self._base = base
        self._updates = updates
        self._patch_type = patch_type
        self._pending_type = pending_type
        self._strategy_type = strategy_type
        self._decider = decider

    async def apply_context_patch(
        self,
        session_id: str,
        patch: ContextPatch,
        *,
        strategy: MergeStrategy = MergeStrategy.APPEND,
        payload: Any = None,
        group_id: str | None = None,
        patch_id: str | None = None,
        timeout_s: float | None = None,
    ) -> PatchOutcome:
        """Bring a finished task's patch into the context, or keep it for a decision (HUMAN_GATED).

        One step with its update. APPEND and REPLACE both make it the task's result. It is applied
        once per ``patch_id``, as long as its outcome is kept (`resolved_token_ttl`): name one if
        you may call again after a crash. Errors: LimitReached with `max_pending_patches` waiting;
        VersionConflict if the context kept changing until ``timeout_s``.
        """
        gated = choice("strategy", strategy, MergeStrategy) == MergeStrategy.HUMAN_GATED.value
        if not isinstance(cast("Any", patch), BaseModel):
            raise InvalidField("patch", "a ContextPatch is needed")
        text("task_id", patch.task_id)
        optional_text("group_id", group_id)
        keys = self._keys(session_id, patch_id or secrets.token_hex(8), patch.task_id)
        settings = self._base.settings
        updates: list[StateUpdate] = []
        call = new_write_id()

        async def attempt() -> Reply:
            version, context_hash = await self._basis(session_id)
            diverged = has_diverged(patch, version, context_hash)
            seen = patch.model_copy(update={"context_diverged": diverged or patch.context_diverged})
            stated = [changed()] if diverged and not gated else []
            kept, result = b"", b""
            if gated:
                stated = [requested(keys.patch_id, seen)]
                kept = write_waiting(seen, strategy, payload, group_id)
            else:
                result = codec.encode(result_of_patch(seen, payload=payload, group_id=group_id))
            status = "pending" if gated else "applied"
            updates[:] = self._say(session_id, patch.task_id, stated)
            return _unless_stale(
                await self._base.scripts.apply_patch(
                    keys,
                    basis=(version, context_hash or ""),
                    payload=kept,
                    result=result,
                    decision=codec.encode({"status": status, "diverged": seen.context_diverged}),
                    actor=self._decider,
                    wait_ms=ms(settings.pending_patch_ttl),
                    keep_ms=ms(settings.resolved_token_ttl),
                    limit=settings.max_pending_patches,
                    ttl_ms=ms(settings.contexts_ttl),
                    call=call,
                    announcement=self._announce(session_id, updates),
                ),
                keys,
                version,
            )

        reply = await self._in_time(session_id, attempt, timeout_s)
        if reply.word is ReplyCode.DENIED:
            limit = settings.max_pending_patches
            raise LimitReached("context patches", limit=limit, code="pending_patch_limit_exceeded")
        return outcome_of(keys.patch_id, reply, updates)

    async def pending_patches(self, session_id: str) -> dict[str, PendingContextPatch]:
        """Return the patches that wait for a decision, the oldest first."""
        keys = self._base.keys
        clock = self._base.scripts.transport.commands.time()
        patches = await self._base.list_ordered(
            session_id,
            "patch",
            keys.patches(session_id),
            key_of=partial(keys.patch, session_id),
            read=partial(read_waiting, self._patch_type),
        )
        now_ms = ms_of(await clock)
        return {
            each.patch_id: self._pending_type(
                patch_id=each.patch_id,
                task_id=each.patch.task_id,
                patch=each.patch,
                strategy=self._strategy_type(each.strategy),
                created_at=each.created_at,
            )
            for each in patches
            if each.open and each.expires_ms > now_ms
        }

    async def apply_pending_patch(
        self,
        session_id: str,
        patch_id: str,
        *,
        strategy: MergeStrategy | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
    ) -> PatchOutcome:
        """Approve a waiting patch: one decision, and the patch in the context, in one step.

        Divergence is checked against the present context. The task's payload and group, which were
        kept with the patch, come with it. The same ``idempotency_key`` repeated gets the same
        answer. Errors: TokenResolved if it was decided before; TokenUnknown if it expired or does
        not exist.
        """
        chosen = choice("strategy", strategy or MergeStrategy.APPEND, MergeStrategy)
        if chosen == MergeStrategy.HUMAN_GATED.value:
            raise InvalidField("strategy", "an approved patch is appended or replaces")
        return await self._resolve(
            session_id,
            patch_id,
            approve=True,
            actor=actor,
            idempotency_key=idempotency_key,
            timeout_s=timeout_s,
            about={"strategy": chosen},
        )

    async def reject_pending_patch(
        self,
        session_id: str,
        patch_id: str,
        *,
        actor: str | None = None,
        idempotency_key: str | None = None,
        trace_id: str | None = None,
        timeout_s: float | None = None,
    ) -> PatchOutcome:
        """Reject a patch that waits: the context stays as it is. Like `apply_pending_patch`."""
        return await self._resolve(
            session_id,
            patch_id,
            approve=False,
            actor=actor,
            idempotency_key=idempotency_key,
            timeout_s=timeout_s,
            trace_id=trace_id,
        )

    async def resolve_by_steering(
        self, event: SteeringEvent, *, actor: str | None = None, timeout_s: float | None = None
    ) -> PatchOutcome | None:
        """Resolve the patch that an APPROVE or REJECT names by ``patch_id``; None for others.

        The event is the claim: the same event, delivered twice or to two processes, decides once
        and gets the same answer. Errors: as `apply_pending_patch`.
        """
        kind = choice("event_type", event.event_type, SteeringEventType)
        patch_id = cast("Any", event.payload or {}).get("patch_id")
        decides = (SteeringEventType.APPROVE.value, SteeringEventType.REJECT.value)
        if kind not in decides or not isinstance(patch_id, str):
            return None
        return await self._resolve(
            event.session_id,
            patch_id,
            approve=kind == SteeringEventType.APPROVE.value,
            actor=actor or event.source,
            idempotency_key=f"event {event.event_id}",
            timeout_s=timeout_s,
            trace_id=None if kind == SteeringEventType.APPROVE.value else event.trace_id,
            about={"event_id": event.event_id},
        )

    async def _resolve(
        self,
        session_id: str,
        patch_id: str,
        *,
        approve: bool,
        actor: str | None,
        idempotency_key: str | None,
        timeout_s: float | None,
        trace_id: str | None = None,
        about: UpdateContent | None = None,
    ) -> PatchOutcome:
        claim = limits.own_id("idempotency_key", idempotency_key) or new_claim()
        settings = self._base.settings
        updates: list[StateUpdate] = []
        call = new_write_id()

        async def attempt() -> Reply:
            waiting = await self._load(session_id, patch_id)
            version, context_hash = await self._basis(session_id)
            keys = self._keys(session_id, patch_id, waiting.patch.task_id)
            diverged = has_diverged(waiting.patch, version, context_hash)
            stated, result = [rejected()], b""
            if approve:
                stated = [changed(), applied()] if diverged else [applied()]
                result = codec.encode(
                    result_of_patch(
                        waiting.patch, payload=waiting.payload, group_id=waiting.group_id
                    )
                )
            status = "applied" if approve else "rejected"
            updates[:] = self._say(session_id, keys.task_id, stated, trace_id)
            decision = {**(about or {}), "status": status, "diverged": diverged}
            return _unless_stale(
                await self._base.scripts.resolve_patch(
                    keys,
                    # Another decision is another claim, which comes second.
                    claim=f"{status} {claim}",
                    actor=actor or self._decider,
                    decision=codec.encode(decision),
                    keep_ms=ms(settings.resolved_token_ttl),
                    basis=(version, context_hash or ""),
                    result=result,
                    ttl_ms=ms(settings.contexts_ttl),
                    call=call,
                    announcement=self._announce(session_id, updates),
                ),
                keys,
                version,
            )

        reply = await self._in_time(session_id, attempt, timeout_s)
        return outcome_of(patch_id, raise_unless_won(reply), updates)

    async def _in_time(
        self, session_id: str, attempt: Callable[[], Awaitable[Reply]], timeout_s: float | None
    ) -> Reply:
        """Repeat an attempt while the context changes before it. Errors: VersionConflict."""
        given = limits.timeout("timeout_s", timeout_s)
        within_s = self._base.settings.call_timeout_s if given is None else given
        return await self._updates.listing(
            session_id, lambda: retry_on_conflict(attempt, timeout_s=within_s)
        )

    def _keys(self, session_id: str, patch_id: str, task_id: str) -> PatchKeys:
        keys = self._base.keys
        return PatchKeys(
            patch_id=patch_id,
            task_id=task_id,
            context=keys.context(session_id),
            patch=keys.patch(session_id, patch_id),
            patches=keys.patches(session_id),
            kept=keys.kept_patches(session_id),
        )

    async def _basis(self, session_id: str) -> tuple[int, str | None]:
        key = self._base.keys.context(session_id)
        commands = self._base.scripts.transport.commands
        number, context_hash = await commands.hmget(key, "number", "hash")
        return int(number or 0), (context_hash or b"").decode() or None

    async def _load(self, session_id: str, patch_id: str) -> WaitingPatch:
        flat = self._base.fetch(self._base.keys.patch(session_id, patch_id))
        read = partial(read_waiting, self._patch_type, patch_id)
        found = await self._base.read_record(session_id, f"patch {patch_id}", flat, read)
        if found is None:
            raise TokenUnknown(expired=False)
        return found

    def _say(
        self,
        session_id: str,
        task_id: str,
        stated: list[tuple[UpdateType, UpdateContent]],
        trace_id: str | None = None,
    ) -> list[StateUpdate]:
        return [
            StateUpdate(
                session_id=session_id,
                task_id=task_id,
                trace_id=trace_id,
                update_type=kind,
                content=content,
            )
            for kind, content in stated
        ]

    def _announce(self, session_id: str, updates: Sequence[StateUpdate]) -> Announcement:
        bounds = self._updates.bounds
        return Announcement(
            self._updates.keys(session_id),
            bounds.max_rows,
            bounds.ttl_ms,
            [self._updates.write(update) for update in updates],
        )


def _unless_stale(reply: Reply, keys: PatchKeys, version: int) -> Reply:
    if reply.word is ReplyCode.STALE:
        raise VersionConflict(keys.context, expected=version, actual=int(reply.facts[0]))
    return reply
