from __future__ import annotations

import asyncio

import pytest

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.groups import apply
from tests.support.scripts.keys import patch_keys, saying
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok


async def test_a_patch_is_applied_once_with_all_that_goes_with_it(
    scripts: Scripts, keys: Keys
) -> None:
    patch, log = patch_keys(keys), keys.updates("s")
    assert await apply(scripts, keys, patch) == ok(1, b"applied", 1)
    assert await apply(scripts, keys, patch, basis=(9, "moved")) == ok(0, b"applied", 1)
    assert (await fields(scripts, patch.context))["=t"] == b"1 result"
    found = await fields(scripts, patch.patch)
    assert (found["state"], found["actor"], found["decision"]) == (b"resolved", b"me", b"applied")
    assert [row for _, row in await rows_of(scripts, log)] == ["told"]
    made = (patch.context, patch.patch, log.rows, log.ids)
    assert all(0 < life <= 1.5 * HOUR for life in await lives(scripts, *made))
    assert await ask(scripts, "EXISTS", patch.patches) == 0


@pytest.mark.parametrize("gated", [False, True])
async def test_a_call_sent_again_is_told_again_that_it_was_the_first(
    scripts: Scripts, keys: Keys, *, gated: bool
) -> None:
    patch = patch_keys(keys)
    [first, again, other] = [
        await apply(scripts, keys, patch, gated=gated, call=call) for call in ("a", "a", "b")
    ]
    assert first == again
    assert [reply.facts[0] for reply in (first, again, other)] == [1, 1, 0]
    assert len(await rows_of(scripts, keys.updates("s"))) == 1


async def test_a_patch_whose_trace_is_gone_is_a_new_one(scripts: Scripts, keys: Keys) -> None:
    patch = patch_keys(keys)
    await apply(scripts, keys, patch)
    await ask(scripts, "DEL", patch.patch)
    await ask(scripts, "PEXPIRE", patch.context, HOUR // 2)
    await clock_passes(scripts, await clock_ms(scripts))
    assert await apply(scripts, keys, patch) == ok(1, b"applied", 2)
    assert (await lives(scripts, patch.context))[0] > HOUR // 2


async def test_a_write_of_a_patch_has_all_of_its_name(scripts: Scripts, keys: Keys) -> None:
    """Else two patches of one millisecond would be taken for one call."""
    patch = patch_keys(keys, "p\0a")
    assert await apply(scripts, keys, patch) == ok(1, b"applied", 1)
    write = (await fields(scripts, patch.context))["write"]
    assert write.startswith(b"patch p\0a ")


async def test_a_patch_may_have_nothing_to_tell(scripts: Scripts, keys: Keys) -> None:
    patch = patch_keys(keys)
    assert (await apply(scripts, keys, patch, announcement=saying(keys))).word is ReplyCode.OK
    assert await ask(scripts, "EXISTS", keys.updates("s").rows) == 0


async def test_a_context_that_moved_on_is_left_alone(scripts: Scripts, keys: Keys) -> None:
    patch = patch_keys(keys)
    assert await apply(scripts, keys, patch, basis=(1, "")) == no(ReplyCode.STALE, 0)
    assert await apply(scripts, keys, patch, basis=(0, "h")) == no(ReplyCode.STALE, 0)
    await ask(scripts, "HSET", patch.context, "number", 3, "hash", "h")
    await ask(scripts, "PEXPIRE", patch.context, HOUR)
    assert await apply(scripts, keys, patch, gated=True) == no(ReplyCode.STALE, 3)
    assert await ask(scripts, "EXISTS", patch.patch, patch.patches, keys.updates("s").rows) == 0
    assert (await apply(scripts, keys, patch, basis=(3, "h"))).word is ReplyCode.OK


async def test_as_many_wait_as_may(scripts: Scripts, keys: Keys) -> None:
    one, two, three = (patch_keys(keys, name) for name in ("one", "two", "three"))
    for patch in (one, two):
        assert await apply(scripts, keys, patch, gated=True) == ok(1, b"pending", 0)
    assert await apply(scripts, keys, three, gated=True) == no(ReplyCode.DENIED, 2)
    assert await ask(scripts, "EXISTS", three.patch) == 0
    assert await apply(scripts, keys, one, gated=True) == ok(0, b"pending", 0)
    assert (await apply(scripts, keys, three, gated=True, limit=0)).word is ReplyCode.OK
    made = (one.patch, one.patches)
    assert [0 < life <= 2 * HOUR for life in await lives(scripts, *made)] == [True, True]
    assert await ask(scripts, "EXISTS", one.context) == 0


async def test_one_that_waited_in_vain_makes_room(scripts: Scripts, keys: Keys) -> None:
    old, new = patch_keys(keys, "old"), patch_keys(keys, "new")
    await apply(scripts, keys, old, gated=True, wait_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert (await apply(scripts, keys, new, gated=True, limit=1)).word is ReplyCode.OK
    assert await ask(scripts, "ZRANGE", new.patches, 0, -1) == [b"new"]
    # Its name is taken as long as its trace is kept.
    assert await apply(scripts, keys, old, gated=True) == ok(0, b"pending", 0)


async def test_many_at_once_all_come_in(scripts: Scripts, keys: Keys) -> None:
    patches = [patch_keys(keys, f"p{n}", task=f"t{n}") for n in range(20)]
    replies = await asyncio.gather(*(apply(scripts, keys, each) for each in patches))
    assert sorted(reply.facts[2] for reply in replies) == list(range(1, 21))
    found = await fields(scripts, keys.context("s"))
    assert len([name for name in found if name.startswith("=")]) == 20
