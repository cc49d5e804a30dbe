from __future__ import annotations

from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, lives, ok


async def test_a_token_lives_until_it_expires_or_is_never_there(
    scripts: Scripts, keys: Keys
) -> None:
    token = keys.oauth_token("u", "p")

    async def save(value: bytes, expires_ms: int | None) -> Reply:
        return await scripts.save_oauth_token(
            token, value=value, expires_ms=expires_ms, ttl_ms=2 * HOUR
        )

    now = await clock_ms(scripts)
    for _ in range(2):
        assert await save(b"a", now + HOUR) == ok(1)
    assert 0 < (await lives(scripts, token))[0] <= HOUR
    assert await save(b"b", None) == ok(1)
    assert HOUR < (await lives(scripts, token))[0] <= 2 * HOUR
    assert await ask(scripts, "GET", token) == b"b"
    for _ in range(2):
        assert await save(b"c", now) == ok(0)
    assert await lives(scripts, token) == [-2]
