from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from redis_state import CommandRefused
from redis_state.scripts import PatchKeys, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.groups import apply
from tests.support.scripts.keys import patch_keys, saying
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, no, ok
from tests.support.scripts.users import without_channels


@pytest.fixture
async def patch(scripts: Scripts, keys: Keys) -> PatchKeys:
    made = patch_keys(keys)
    assert (await apply(scripts, keys, made, gated=True)).word is ReplyCode.OK
    return made


async def resolve(
    scripts: Scripts, keys: Keys, patch: PatchKeys, claim: str = "c", **more: Any
) -> Reply:
    given: dict[str, Any] = {
        "actor": f"by {claim}",
        "decision": b"yes",
        "keep_ms": HOUR,
        "basis": (0, ""),
        "result": b"result",
        "ttl_ms": HOUR,
        "call": uuid.uuid4().hex,
        "announcement": saying(keys, f"said-{claim}"),
    }
    return await scripts.resolve_patch(patch, claim=claim, **{**given, **more})


async def test_the_first_claim_decides_and_its_repetition_does_nothing(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    assert await resolve(scripts, keys, patch) == ok(1, b"yes", 1)
    assert await resolve(scripts, keys, patch, decision=b"no", result=b"") == ok(0, b"yes", 1)
    at = int((await fields(scripts, patch.patch))["at"])
    late = await resolve(scripts, keys, patch, "d", basis=(5, "moved"))
    assert late == no(ReplyCode.TAKEN, b"by c", at, b"yes")
    assert (await fields(scripts, patch.context))["=t"] == b"1 result"
    assert await ask(scripts, "EXISTS", patch.patches) == 0
    assert [row for _, row in await rows_of(scripts, keys.updates("s"))] == ["told", "said-c"]


async def test_a_call_sent_again_is_told_again_that_it_was_the_first(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    for _ in range(2):
        assert await resolve(scripts, keys, patch, call="a") == ok(1, b"yes", 1)
    assert await resolve(scripts, keys, patch, call="b") == ok(0, b"yes", 1)
    assert len(await rows_of(scripts, keys.updates("s"))) == 2


async def test_a_rejected_patch_leaves_the_context_alone(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    rejected = await resolve(scripts, keys, patch, basis=(7, "any"), result=b"", decision=b"no")
    assert rejected == ok(1, b"no", 0)
    assert await ask(scripts, "EXISTS", patch.context) == 0


async def test_an_approval_on_an_older_context_leaves_the_patch_open(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    assert await resolve(scripts, keys, patch, basis=(1, "")) == no(ReplyCode.STALE, 0)
    assert (await fields(scripts, patch.patch))["state"] == b"open"
    assert await ask(scripts, "ZCARD", patch.patches) == 1


async def test_a_patch_that_waited_in_vain_or_never_was_is_not_decided(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    assert await resolve(scripts, keys, patch_keys(keys, "none")) == no(ReplyCode.MISSING)
    await ask(scripts, "HSET", patch.patch, "expires", await clock_ms(scripts))
    await clock_passes(scripts, await clock_ms(scripts))
    assert await resolve(scripts, keys, patch) == no(ReplyCode.EXPIRED)
    assert await ask(scripts, "EXISTS", patch.context) == 0


async def test_of_many_claims_one_wins(scripts: Scripts, keys: Keys, patch: PatchKeys) -> None:
    calls = [resolve(scripts, keys, patch, str(n)) for n in range(16)]
    replies = await asyncio.gather(*calls)
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.TAKEN] * 15
    assert (await fields(scripts, patch.context))["version"] == b"1"


@pytest.mark.role("any", why="it makes users")
async def test_a_decision_that_may_not_be_published_leaves_the_patch_open(
    scripts: Scripts, keys: Keys, patch: PatchKeys
) -> None:
    async with without_channels(scripts, keys):
        with pytest.raises(CommandRefused):
            await resolve(scripts, keys, patch)
    assert (await fields(scripts, patch.patch))["state"] == b"open"
    assert await resolve(scripts, keys, patch) == ok(1, b"yes", 1)
    assert (await fields(scripts, patch.context))["=t"] == b"1 result"
