from __future__ import annotations

import asyncio

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, fields, lives, no, ok


async def resolve(scripts: Scripts, key: str, claim: str) -> Reply:
    return await scripts.resolve_token(key, claim=claim, actor="me", decision=b"no", keep_ms=HOUR)


async def release(scripts: Scripts, key: str, claim: str) -> Reply:
    return await scripts.release_token(key, claim=claim, keep_ms=HOUR)


async def open_token(scripts: Scripts, keys: Keys) -> str:
    key = keys.pause("token")
    await scripts.open_token(key, payload=b"p", mark="m", ttl_ms=2 * HOUR, keep_ms=HOUR)
    return key


async def test_a_released_token_is_as_it_was_before_its_claim(scripts: Scripts, keys: Keys) -> None:
    assert await release(scripts, keys.pause("token"), "a") == no(ReplyCode.MISSING)
    key = await open_token(scripts, keys)
    before = await fields(scripts, key)
    await resolve(scripts, key, "a")
    assert await release(scripts, key, "b") == ok(0)
    assert await release(scripts, key, "a") == ok(1)
    assert await release(scripts, key, "a") == ok(0)
    assert await fields(scripts, key) == {**before, "void": b" b a a"}
    assert 2 * HOUR < (await lives(scripts, key))[0] <= 3 * HOUR
    assert await resolve(scripts, key, "b") == no(ReplyCode.MISSING)
    assert await resolve(scripts, key, "c") == ok(b"p", b"")


async def test_a_claim_that_comes_after_its_release_gets_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    key = await open_token(scripts, keys)
    assert await release(scripts, key, "a") == ok(0)
    assert await resolve(scripts, key, "a") == no(ReplyCode.MISSING)
    assert await release(scripts, key, "another") == ok(0)
    assert await resolve(scripts, key, "a") == no(ReplyCode.MISSING)
    assert await resolve(scripts, key, "b") == ok(b"p", b"")


async def test_of_many_claims_and_their_releases_one_claim_has_the_token_in_the_end(
    scripts: Scripts, keys: Keys
) -> None:
    key = await open_token(scripts, keys)

    async def leave(claim: str) -> None:
        await asyncio.gather(resolve(scripts, key, claim), release(scripts, key, claim))

    await asyncio.gather(*(leave(f"left {number}") for number in range(20)))
    replies = await asyncio.gather(*(resolve(scripts, key, f"c{n}") for n in range(20)))
    assert [reply.word for reply in replies].count(ReplyCode.OK) == 1
