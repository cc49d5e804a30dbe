"""The session of an agent's run in a task: read once, and written once, when the run has ended.

A run that hands approvals to its caller has ended: the caller continues in another one.

A replay reads what the first run has read. What the run adds is written as a whole. So two runs of
a session never interleave in it. A run that fails adds nothing, unless a guardrail or the number of
turns has ended it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from agents import TResponseInputItem
from agents.memory import (
    OpenAIConversationsSession,
    OpenAIResponsesCompactionArgs,
    OpenAIResponsesCompactionAwareSession,
    Session,
    SessionABC,
    is_openai_responses_compaction_aware_session,
)
from agents.memory.session_settings import SessionSettings, resolve_session_limit

from redis_state.errors import InvalidField, LeaseLost, SessionBusy
from redis_state.integrations.agent_runs.running import do_unit, end_run
from redis_state.integrations.agent_runs.scopes import AgentScope, named_once
from redis_state.integrations.openai_agents.session import RedisStateSession, turn_in
from redis_state.serialization import codec
from redis_state.worker import TaskHandedBack


def history_of(session: Session, scope: AgentScope) -> RunHistory:
    """Return what a run sees of a session. Errors: InvalidField for one that OpenAI's server keeps.

    The SDK gives such a session other items than all others, by its class.
    """
    if isinstance(session, OpenAIConversationsSession):
        reason = "an OpenAIConversationsSession is not written once in a task: use another session"
        raise InvalidField("session", reason)
    if is_openai_responses_compaction_aware_session(session):
        return CompactingHistory(session, scope)
    return RunHistory(session, scope)


class RunHistory(SessionABC):
    """What a run sees of a session: what was there at its start, and its own items."""

    def __init__(self, session: Session, scope: AgentScope) -> None:
        self.session_id: str = session.session_id
        self.session_settings: SessionSettings | None = session.session_settings
        self._session = session
        self._scope = scope
        self._before: dict[int | None, list[TResponseInputItem]] = {}
        self._added: list[TResponseInputItem] = []
        # Items of before that the run has taken away: so many, or all.
        self._popped = 0
        self._cleared = False

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items, in order."""
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is not None and limit <= 0:
            return []
        before = [] if self._cleared else await self._earlier(limit)
        items = [*before, *self._added]
        return items if limit is None else items[-limit:]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, for `save`."""
        self._added += [codec.plain(item) for item in items]

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item away."""
        if self._added:
            return self._added.pop()
        before = [] if self._cleared else await self._earlier(None)
        if not before:
            return None
        self._popped += 1
        return before[-1]

    async def clear_session(self) -> None:
        """Take all items away."""
        self._cleared, self._popped, self._added = True, 0, []

    async def save(self) -> None:
        """Write what the run has changed, once.

        Errors: TaskHandedBack if the session is busy, or another run has taken its claim.
        """
        if not (self._cleared or self._popped or self._added):
            return
        await self._write("save the session", "saved", self._save)

    async def _write(self, name: str, place: str, work: Callable[[], Awaitable[None]]) -> None:
        async def once() -> None:
            try:
                await work()
            except LeaseLost:
                # That of the session: this process stood still, or the server's history went back.
                raise SessionBusy(self.session_id) from None

        try:
            await do_unit(self._scope, name, self._scope.place(place), once)
        except SessionBusy as busy:
            # Another run is in it for longer than a write waits. This one has only to be saved.
            handed_back = TaskHandedBack(str(busy))
            # The SDK would tell the model of it, if this run is in a tool.
            end_run(self._scope, handed_back)
            raise handed_back from None

    async def _earlier(self, limit: int | None) -> list[TResponseInputItem]:
        """Return at least so many of the newest items of before, without those taken away."""
        items = self._known(None if limit is None else limit + self._popped)
        if items is None:
            items = self._before[limit] = await self._read(limit)
        return items[: max(len(items) - self._popped, 0)]

    def _known(self, limit: int | None) -> list[TResponseInputItem] | None:
        """Return what has been read, if it is enough: a later read has what others have added."""
        for most, items in self._before.items():
            if most is None or len(items) < most or (limit is not None and limit <= most):
                return items
        return None

    async def _read(self, limit: int | None) -> list[TResponseInputItem]:
        async def read() -> list[TResponseInputItem]:
            return await self._session.get_items(limit)

        name = "load the session"
        # The SDK reads behind a failed request too, which a later run does not make again.
        self._scope.ctx.pass_keyed_steps(name)
        found, _ = await do_unit(self._scope, name, self._scope.place("session", str(limit)), read)
        return cast("list[TResponseInputItem]", found)

    async def _save(self) -> None:
        # In one turn: a busy session is refused before anything of it is taken away.
        async with turn_in(self._session):
            await self._change(self._session)

    async def _change(self, session: Session) -> None:
        if isinstance(session, RedisStateSession):
            # A save that is repeated, because its record was lost, changes nothing.
            ctx = self._scope.ctx
            name = codec.fingerprint("run", ctx.task.session_id, named_once(ctx), self._scope.path)
            await session.change_once(
                name, pops=self._popped, items=self._added, clears=self._cleared
            )
            return
        if self._cleared:
            await session.clear_session()
        for _ in range(self._popped):
            await session.pop_item()
        if self._added:
            await session.add_items(self._added)


class CompactingHistory(RunHistory):
    """What a run sees of a session that compacts itself, behind the save."""

    def __init__(self, session: OpenAIResponsesCompactionAwareSession, scope: AgentScope) -> None:
        super().__init__(session, scope)
        self._compacts = session
        self._asked: OpenAIResponsesCompactionArgs | None = None

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Ask for a compaction, for `save`: the session has no item of the run before."""
        self._asked = args or {}

    async def save(self) -> None:
        """Write what the run has changed, then let the session compact itself."""
        await super().save()
        if self._asked is not None:
            await self._write("compact the session", "compacted", self._compact)

    async def _compact(self) -> None:
        async with turn_in(self._session):
            await self._compacts.run_compaction(self._asked)
