from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, ok


async def test_the_first_time_stands_and_what_is_off_the_list_does_not_wait(
    scripts: Scripts, keys: Keys
) -> None:
    watch, since = keys.archive_sessions(0), keys.archive_sessions_since(0)
    for entry in (b"a", b"b"):
        await scripts.watch_entry(watch, entry=entry, delay_ms=HOUR, stands="given")
    await ask(scripts, "ZADD", since, 5, "a")
    entries = [b"a", b"b", b"gone"]
    assert await scripts.note_waits(watch, since=since, entries=entries) == ok(1)
    noted = await ask(scripts, "ZRANGE", since, 0, -1, "WITHSCORES")
    assert (noted[:2], noted[2], len(noted)) == ([b"a", b"5"], b"b", 4)
    assert await scripts.note_waits(watch, since=since, entries=entries) == ok(0)
    assert await ask(scripts, "ZRANGE", since, 0, -1, "WITHSCORES") == noted
    assert await ask(scripts, "PTTL", since) > HOUR
