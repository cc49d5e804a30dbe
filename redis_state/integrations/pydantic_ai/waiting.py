"""Events from outside, such as those of `RequestInput`, as pauses of the task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

from pydantic import JsonValue
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter

from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.integrations.agent_runs.scopes import AgentScope, current_scope
from redis_state.integrations.pydantic_ai.approvals import NOT_IN_TIME
from redis_state.integrations.pydantic_ai.backend import run_unit
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions


class PausingWaiter(ExternalEventWaiter):
    """Wait for an event by a pause, whose token the application gets.

    The token is not shown to readers of the session. `TaskClient.resolve` takes it: approved with
    the payload, or rejected with a reason.
    """

    def __init__(self, scope: AgentScope) -> None:
        self._scope = scope

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Open a pause, ask once, and wait for its decision, which is the first of all.

        Errors: ExternalEventError after a rejection or the time; InvalidField for a ``timeout``
        that a pause cannot have; TaskCancelled, LeaseLost.
        """
        scope = current_scope() or self._scope
        place, options = scope.next("event", name), {"on_timeout": "reject"}
        pause = await scope.ctx.open_pause(
            "await_event",
            name=name,
            key=place,
            reveal=False,
            timeout=timeout,
            **options,  # type: ignore[arg-type]
        )

        async def asking() -> JsonValue:
            return await ask(pause.token)

        answer = await run_unit(scope, f"ask {name}", place, asking)
        if answer is not None:
            await self._answer(pause.token, answer)
        async with scope.run.units.quiet(scope.ctx.inbox):
            decision = await scope.ctx.wait_for(pause)
        if decision.approved:
            return cast("JsonValue", decision.value)
        reason: Any = NOT_IN_TIME if decision.timed_out else decision.value
        raise ExternalEventError(reason if isinstance(reason, str) and reason else "rejected")

    async def _answer(self, token: str, answer: JsonValue) -> None:
        """Decide the pause by the answer that was there at once, unless a person was faster."""
        store = self._scope.ctx.store
        try:
            await PauseDecisions(store).decide(token, approved=True, value=answer, actor="ask")
        except (TokenResolved, TokenUnknown):
            # In an earlier run, however long ago, or by a person, or it came too late: what stands
            # is what `wait_for` returns.
            return
