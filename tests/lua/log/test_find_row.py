from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append
from tests.support.scripts.replies import ask, no, ok


async def test_a_row_is_found_as_long_as_it_is_kept(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    assert await scripts.find_row(log, row_id=b"a") == no(ReplyCode.MISSING)
    await append(scripts, log, "a", "b", "c", max_rows=2)
    entries = await ask(scripts, "XRANGE", log.rows, "-", "+")
    ms = int(entries[0][0].split(b"-")[1])
    assert await scripts.find_row(log, row_id=b"a") == no(ReplyCode.MISSING)
    assert await scripts.find_row(log, row_id=b"b") == ok(2, ms)
    await scripts.clear_log(log)
    assert await scripts.find_row(log, row_id=b"c") == no(ReplyCode.MISSING)
