from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, clock_ms, clock_passes, fields, lives, no, ok


async def resolve(scripts: Scripts, key: str, claim: str, keep_ms: int = HOUR) -> Reply:
    return await scripts.resolve_token(
        key, claim=claim, actor=f"by {claim}", decision=b"yes", keep_ms=keep_ms
    )


async def test_the_first_claim_gets_it_and_its_repetition_the_same(
    scripts: Scripts, keys: Keys
) -> None:
    key = keys.pause("token")
    assert await resolve(scripts, key, "a") == no(ReplyCode.MISSING)
    assert await lives(scripts, key) == [-2]
    await scripts.open_token(key, payload=b"p", mark="m", ttl_ms=2 * HOUR, keep_ms=HOUR)
    for _ in range(2):
        assert await resolve(scripts, key, "a") == ok(b"p", b"")
    at = int((await fields(scripts, key))["at"])
    assert await resolve(scripts, key, "b") == no(ReplyCode.TAKEN, b"by a", at, b"yes")
    assert 0 < (await lives(scripts, key))[0] <= HOUR


async def test_nobody_gets_an_expired_one(scripts: Scripts, keys: Keys) -> None:
    key = keys.pause("token")
    await scripts.open_token(key, payload=b"p", mark="m", ttl_ms=1, keep_ms=HOUR)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    for _ in range(2):
        assert await resolve(scripts, key, "a") == no(ReplyCode.EXPIRED)


async def test_the_trace_goes_after_its_time(scripts: Scripts, keys: Keys) -> None:
    key = keys.pause("token")
    await scripts.open_token(key, payload=b"p", mark="m", ttl_ms=HOUR, keep_ms=HOUR)
    assert await resolve(scripts, key, "a", keep_ms=1) == ok(b"p", b"")

    async def gone() -> bool:
        return await resolve(scripts, key, "a") == no(ReplyCode.MISSING)

    await eventually(gone, "the trace of a token is dropped")
