from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, ok


async def test_a_session_goes_with_its_places_and_no_other(scripts: Scripts, keys: Keys) -> None:
    index, expiries = keys.agent_sessions(0), keys.agent_expiries(0)
    for name in ("a", "b"):
        await scripts.save_session(
            keys.agent_session(name),
            {"head": b"x"},
            index=index,
            expiries=expiries,
            session_id=name,
            born="1",
            tags="/ active/",
            expected=0,
            base="",
            dropped=(),
            write=name,
            ttl_ms=HOUR,
        )
    for deleted in (1, 0):
        reply = await scripts.delete_session(
            keys.agent_session("a"), index=index, expiries=expiries, session_id="a"
        )
        assert reply == ok(deleted)
    left = await ask(scripts, "ZRANGE", index, 0, -1)
    assert [member.rpartition(b":")[2] for member in left] == [b"b", b"b"]
    entries = await ask(scripts, "ZRANGE", expiries, 0, -1)
    assert [entry.partition(b":")[2] for entry in entries] == [b"b / active/"]
    assert await ask(scripts, "EXISTS", keys.agent_session("a"), keys.agent_session("b")) == 1
