from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, clock_ms, clock_passes, fields, lives, no, ok


async def open_token(scripts: Scripts, key: str, mark: str = "m", ttl_ms: int = HOUR) -> Reply:
    return await scripts.open_token(
        key, payload=mark.encode(), mark=mark, ttl_ms=ttl_ms, keep_ms=HOUR
    )


async def resolve(scripts: Scripts, key: str) -> Reply:
    return await scripts.resolve_token(key, claim="c", actor="me", decision=b"no", keep_ms=HOUR)


async def test_a_token_is_opened_and_renewed_until_it_is_used(scripts: Scripts, keys: Keys) -> None:
    key = keys.pause("token")
    for _ in range(2):
        assert await open_token(scripts, key) == ok(1)
    assert HOUR < (await lives(scripts, key))[0] <= 2 * HOUR
    assert await open_token(scripts, key, "other") == ok(1)
    assert (await fields(scripts, key))["payload"] == b"other"
    assert (await resolve(scripts, key)).word is ReplyCode.OK
    at = int((await fields(scripts, key))["at"])
    assert await open_token(scripts, key, "other") == ok(0)
    assert await open_token(scripts, key, "third") == no(ReplyCode.TAKEN, b"me", at, b"no")
    assert 0 < (await lives(scripts, key))[0] <= HOUR


async def test_an_expired_token_can_be_opened_again(scripts: Scripts, keys: Keys) -> None:
    key = keys.pause("token")
    await open_token(scripts, key, ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await resolve(scripts, key) == no(ReplyCode.EXPIRED)
    assert await open_token(scripts, key) == ok(1)
    assert await resolve(scripts, key) == ok(b"m", b"")
