"""Sessions of any id in the shard that these tests name: on a cluster it has a slot of its own."""

from __future__ import annotations

import pytest

from redis_state.transport.keys import agents


@pytest.fixture(autouse=True)
def one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put every session into the first shard."""

    def first(session_id: str) -> int:
        del session_id
        return 0

    monkeypatch.setattr(agents, "agent_shard", first)
