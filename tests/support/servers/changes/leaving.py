"""A server that goes away behind a call that has succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state.errors import BackendUnavailable
from redis_state.transport.transport import Transport
from tests.support.servers.faults import Proxy


class Leaving:
    """Let the server go away once a method has returned, and not before."""

    def __init__(self, proxy: Proxy, far: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        self._proxy, self._far, self._monkeypatch = proxy, far, monkeypatch

    def behind(self, owner: Any, name: str) -> None:
        """Name the method, of a class or of one object."""
        real = getattr(owner, name)

        async def then_gone(*args: Any, **options: Any) -> Any:
            done = await real(*args, **options)
            self._proxy.refuse()
            self._proxy.cut()
            # From now on no call is even sent.
            with pytest.raises(BackendUnavailable):
                await self._far.commands.time()
            return done

        self._monkeypatch.setattr(owner, name, then_gone)
