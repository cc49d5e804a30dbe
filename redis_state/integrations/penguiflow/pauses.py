"""A pause that is resumed twice runs once: in the same planner, in another process, or in both.

ReactPlanner keeps a copy of each of its pauses and resumes it without reading the store. So another
holder of the token can resume the pause a second time, and the tools after it run twice. Here the
token is claimed in the store first, and only the winner resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penguiflow.planner import PlannerFinish, PlannerPause, ReactPlanner

from redis_state.errors import ConfigError, TokenResolved
from redis_state.integrations.penguiflow.adapter.private_names import drop_copies, has_copy
from redis_state.store import RedisStateStore
from redis_state.stores.hosts.pauses import current_claim

# How many callers in this process are about to resume a pause, by planner and token.
_CALLERS: Counter[tuple[int, str]] = Counter()


async def resume_once(
    planner: ReactPlanner,
    store: RedisStateStore,
    token: str,
    user_input: str | None = None,
    *,
    idempotency_key: str | None = None,
    actor: str | None = None,
    **options: Any,
) -> PlannerFinish | PlannerPause:
    """Resume a pause: exactly one claim of all processes runs what comes after it.

    ``planner`` may be the one that paused, or a new one on the same store. A caller that dies after
    claiming can resume again under the same ``idempotency_key`` for `resolved_token_ttl`, so a job
    names its own id. Two callers that use one claim at the same time both run. ``actor`` is the
    actor that later callers learn. Options are those of ``planner.resume``.

    A call that is cancelled or fails before the planner has the pause leaves it to the next caller.
    A call that named a ``idempotency_key`` does not.

    Errors: TokenResolved by whom and when the pause was resumed; TokenUnknown if it expired, or if
    it was not saved and another process paused.
    """
    resume = partial(planner.resume, token, user_input, **options)
    return await _claimed(
        planner, store, token, resume, idempotency_key=idempotency_key, actor=actor
    )


class OncePlanner(ReactPlanner):  # type: ignore[misc]  # penguiflow has no types
    """ReactPlanner whose `resume` is `resume_once`: for sessions, pipelines, and other callers.

    Its state store is one of `create_store`. What it forks resumes once, too.
    """

    async def resume(
        self, token: str, user_input: str | None = None, **options: Any
    ) -> PlannerFinish | PlannerPause:
        """Resume a pause, if nobody has. Errors: TokenResolved, TokenUnknown, ConfigError."""
        store: Any = self._state_store
        if not isinstance(store, RedisStateStore):
            raise ConfigError("state_store: a store of create_store is needed to resume once")
        resume = partial(super().resume, token, user_input, **options)
        return await _claimed(self, store, token, resume)

    def fork(self, **options: Any) -> ReactPlanner:
        """Make another planner like this one."""
        forked: ReactPlanner = super().fork(**options)
        forked.__class__ = type(self)
        return forked


async def _claimed(
    planner: ReactPlanner,
    store: RedisStateStore,
    token: str,
    resume: Callable[[], Awaitable[PlannerFinish | PlannerPause]],
    *,
    idempotency_key: str | None = None,
    actor: str | None = None,
) -> PlannerFinish | PlannerPause:
    if idempotency_key is None and current_claim(token) is not None:
        # A planner hands on to the planner that it keeps for the session.
        return await resume()
    held, place = has_copy(planner, token), (id(planner), token)
    _CALLERS[place] += 1
    try:
        async with store.pauses.claimed(
            token, idempotency_key=idempotency_key, actor=actor
        ) as claimed:
            try:
                return await resume()
            finally:
                claimed.used = claimed.used or (held and not has_copy(planner, token))
                if claimed.used or idempotency_key is not None:
                    drop_copies(planner, token)
    except TokenResolved:
        # Another caller here may have the claim, and be about to begin with the copy.
        if _CALLERS[place] == 1:
            drop_copies(planner, token)
        raise
    finally:
        _CALLERS[place] -= 1
        if not _CALLERS[place]:
            del _CALLERS[place]


__all__ = ["OncePlanner", "resume_once"]
