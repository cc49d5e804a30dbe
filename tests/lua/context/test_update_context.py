from __future__ import annotations

import asyncio

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.groups import apply
from tests.support.scripts.keys import patch_keys
from tests.support.scripts.replies import HOUR, fields, lives, no, ok


@pytest.fixture
def context(keys: Keys) -> str:
    return keys.context("s")


async def update(
    scripts: Scripts,
    context: str,
    call: str,
    *,
    expected: int | None = None,
    results: tuple[tuple[bytes, bytes], ...] = (),
    content_hash: str = "h",
    hashed: bool = True,
    **parts: bytes,
) -> Reply:
    return await scripts.update_context(
        context,
        parts,
        results=results,
        content_hash=content_hash,
        hashed=hashed,
        expected=expected,
        call=call,
        ttl_ms=HOUR,
    )


async def test_an_update_replaces_what_is_given_one_number_up(
    scripts: Scripts, context: str
) -> None:
    assert await update(scripts, context, "a", expected=0, llm_context=b"1") == ok(1, b"h")
    assert await update(scripts, context, "b", expected=0, llm_context=b"2") == no(
        ReplyCode.STALE, 1, b"a"
    )
    assert await update(scripts, context, "c", expected=1, memory=b"3", hashed=False) == ok(2, b"h")
    found = await fields(scripts, context)
    assert (found["llm_context"], found["memory"], found["number"]) == (b"1", b"3", b"2")
    assert 0 < (await lives(scripts, context))[0] <= HOUR


async def test_a_repeated_update_is_recognised_even_after_a_patch(
    scripts: Scripts, keys: Keys, context: str
) -> None:
    await update(scripts, context, "a", llm_context=b"1")
    await apply(scripts, keys, patch_keys(keys), basis=(1, "h"))
    assert await update(scripts, context, "a", expected=0, llm_context=b"1") == ok(1, b"h")
    assert (await fields(scripts, context))["version"] == b"2"


async def test_a_hash_once_computed_stays_until_the_hashed_part_changes(
    scripts: Scripts, context: str
) -> None:
    await update(scripts, context, "a", hashed=False, content_hash="empty")
    assert (await fields(scripts, context))["hash"] == b"empty"
    # The empty text is a hash too: of what cannot be hashed.
    assert await update(scripts, context, "b", content_hash="") == ok(2, b"")
    assert await update(scripts, context, "c", hashed=False, content_hash="empty") == ok(3, b"")


async def test_results_keep_the_place_of_their_task(scripts: Scripts, context: str) -> None:
    await update(scripts, context, "a", results=((b"x", b"1"), (b"y", b"2")))
    await update(scripts, context, "b", results=((b"z", b"3"), (b"x", b"4")))
    found = await fields(scripts, context)
    assert {name: found[name] for name in ("=x", "=y", "=z")} == {
        "=x": b"1 4",
        "=y": b"2 2",
        "=z": b"3 3",
    }


async def test_of_many_updates_of_one_number_one_is_taken(scripts: Scripts, context: str) -> None:
    calls = [update(scripts, context, str(n), expected=0, memory=b"m") for n in range(16)]
    replies = await asyncio.gather(*calls)
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.STALE] * 15
