"""PenguiFlow's playground, and `penguiflow dev`, with sessions that are stored and shared.

    python -m redis_state.integrations.penguiflow.playground --project-root .

is `penguiflow dev` on the store that ``REDIS_STATE_URL`` names. It needs what that needs: fastapi
and uvicorn.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from penguiflow.sessions import SessionManager

from redis_state.errors import ConfigError, InvalidField
from redis_state.integrations.penguiflow.adapter.private_names import replaced
from redis_state.integrations.penguiflow.durable.durable_session import DurableSession
from redis_state.integrations.penguiflow.sessions import WatchedStore, open_session
from redis_state.integrations.penguiflow.state import PenguiflowStateStore, create_store

if TYPE_CHECKING:
    from fastapi import FastAPI


class DurableSessionManager(SessionManager):  # type: ignore[misc]  # penguiflow has no types
    """PenguiFlow's SessionManager, whose sessions are those of `open_session`.

    Give it to whatever takes a ``session_manager``. A session stays open until `drop` or `aclose`.
    """

    def __init__(
        self,
        *,
        state_store: PenguiflowStateStore | WatchedStore,
        owner: bool = False,
        retell: bool = False,
        **options: Any,
    ) -> None:
        store: Any = state_store.store if isinstance(state_store, WatchedStore) else state_store
        if not isinstance(store, PenguiflowStateStore):
            raise InvalidField("state_store", "needs a store that create_store made")
        super().__init__(state_store=store, **options)
        self._store = store
        self._options: dict[str, Any] = {"owner": owner, "retell": retell}
        for name in ("limits", "control_policy", "telemetry_sink"):
            self._options[name] = options.get(name)
        self._open: dict[str, AsyncExitStack] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def get_or_create(self, session_id: str) -> DurableSession:
        """Return the session, opened if it is not, with the context as it is now.

        Errors: BackendError.
        """
        async with self._turn(session_id):
            known = self._sessions.get(session_id)
            if isinstance(known, DurableSession):
                await known.refresh()
                return known
            async with AsyncExitStack() as stack:
                opening = open_session(self._store, session_id, **self._options)
                session: DurableSession = await stack.enter_async_context(opening)
                self._open[session_id] = stack.pop_all()
            self._sessions[session_id] = session
            return session

    async def drop(self, session_id: str) -> None:
        """Close a session here, if it is open: what this process runs of it is CANCELLED.

        What is stored of it stays: see `clear_session`.
        """
        async with self._turn(session_id):
            self._sessions.pop(session_id, None)
            stack = self._open.pop(session_id, None)
            if stack is not None:
                await stack.aclose()

    async def aclose(self) -> None:
        """Close all sessions."""
        await asyncio.gather(*map(self.drop, list(self._open)))

    def _turn(self, session_id: str) -> asyncio.Lock:
        """Serialise the calls that open or close a session. Kept as long as a call has it."""
        return self._opening.setdefault(session_id, asyncio.Lock())


def create_playground(
    project_root: Path | str | None = None,
    *,
    agent: Any | None = None,
    state_store: PenguiflowStateStore | None = None,
    owner: bool = False,
) -> FastAPI:
    """Make PenguiFlow's playground app on a store, with durable sessions.

    Like its ``create_playground_app``. Without a store it makes one, see `create_store`, and closes
    it when the app shuts down, as it does the sessions. ``owner`` says that no other process has
    them. Errors: ConfigError, also for a PenguiFlow whose playground is made in another way.
    """
    from penguiflow.cli.playground import create_playground_app  # noqa: PLC0415 - a web framework

    store = create_store() if state_store is None else state_store
    made: list[DurableSessionManager] = []

    def make(*, state_store: Any, **options: Any) -> DurableSessionManager:
        del state_store  # the same
        made.append(DurableSessionManager(state_store=store, owner=owner, **options))
        return made[-1]

    root = None if project_root is None else Path(project_root)
    with replaced("penguiflow.cli.playground", "SessionManager", make):
        app: FastAPI = create_playground_app(root, agent=agent, state_store=store)
    if len(made) != 1:
        raise ConfigError("this version of penguiflow makes its playground's sessions otherwise")
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as closing:
            if state_store is None:
                closing.push_async_callback(store.aclose)
            state = await closing.enter_async_context(inner(running))
            closing.push_async_callback(made[0].aclose)
            yield state

    app.router.lifespan_context = lifespan
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `penguiflow dev`, with its options, on the store that ``REDIS_STATE_URL`` names."""
    from penguiflow.cli.main import app as command_line  # noqa: PLC0415 - a web framework

    given = sys.argv[1:] if arguments is None else arguments
    with replaced("penguiflow.cli.dev", "create_playground_app", create_playground):
        command_line(["dev", *given])


if __name__ == "__main__":
    main()


__all__ = ["DurableSessionManager", "create_playground", "main"]
