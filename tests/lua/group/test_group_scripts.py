"""The scripts of a group's life: create_group, join_group, finish_member, close_group."""

from __future__ import annotations

import asyncio

import pytest

from redis_state.scripts import GroupKeys, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.groups import close, finish, make_group
from tests.support.scripts.keys import group_keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


@pytest.fixture
def group(keys: Keys) -> GroupKeys:
    return group_keys(keys)


async def join(scripts: Scripts, group: GroupKeys, task: str) -> Reply:
    return await scripts.join_group(group, task_id=task, write=f"join {task}", ttl_ms=HOUR)


async def test_a_name_stands_for_one_open_group(
    scripts: Scripts, keys: Keys, group: GroupKeys
) -> None:
    other = group_keys(keys, "other")
    for _ in range(2):
        assert await make_group(scripts, group) == ok(b"g", 1)
    assert await make_group(scripts, group, write="again") == ok(b"g", 0)
    assert await make_group(scripts, other, write="x") == ok(b"g", 0)
    assert await ask(scripts, "EXISTS", other.group) == 0
    assert await make_group(scripts, other, alias=b"another") == ok(b"other", 1)
    made = (group.group, group.groups, group.names)
    assert all(0 < life <= HOUR for life in await lives(scripts, *made))


async def test_a_name_is_free_once_its_group_is_not_open(
    scripts: Scripts, keys: Keys, group: GroupKeys
) -> None:
    new, newer = group_keys(keys, "new"), group_keys(keys, "newer")
    await make_group(scripts, group)
    await close(scripts, group)
    assert await make_group(scripts, new, write="x") == ok(b"new", 1)
    # Closing the old one again must not free the new one's name.
    await close(scripts, group, target="failed", call="d")
    assert await make_group(scripts, newer, write="y") == ok(b"new", 0)
    # One that has expired cannot free its name: whoever found that out says so.
    assert await make_group(scripts, newer, write="y", instead_of="g") == ok(b"new", 0)
    assert await make_group(scripts, newer, write="y", instead_of="new") == ok(b"newer", 1)


async def test_a_name_lives_as_long_as_its_group_and_goes_after_it(
    scripts: Scripts, keys: Keys, group: GroupKeys
) -> None:
    await make_group(scripts, group)
    for step in (join, finish):
        await ask(scripts, "PEXPIRE", group.names, HOUR // 10)
        assert (await step(scripts, group, "t")).word is ReplyCode.OK
        assert (await lives(scripts, group.names))[0] > HOUR // 2
    for number in range(3):
        await make_group(scripts, group_keys(keys, f"g{number}"), alias=b"%d" % number)
    assert len(await fields(scripts, group.names)) == 4
    # All of them expire while they are open.
    await ask(scripts, "DEL", group.groups)
    await make_group(scripts, group_keys(keys, "new"), alias=b"new")
    assert await fields(scripts, group.names) == {"new": b"new"}


async def test_only_an_open_group_is_joined(scripts: Scripts, group: GroupKeys) -> None:
    assert await join(scripts, group, "t") == no(ReplyCode.MISSING)
    await make_group(scripts, group)
    assert await join(scripts, group, "t") == ok(1)
    assert await join(scripts, group, "t") == ok(0)
    assert await close(scripts, group) == ok(b"sealed", 0)
    assert await join(scripts, group, "late") == no(ReplyCode.DENIED, b"sealed")
    assert await join(scripts, group, "t") == ok(0)
    assert (await fields(scripts, group.group))["pending"] == b"1"


async def test_the_last_member_of_a_sealed_group_ends_it(
    scripts: Scripts, group: GroupKeys
) -> None:
    assert await finish(scripts, group, "a") == no(ReplyCode.MISSING)
    await make_group(scripts, group)
    assert await finish(scripts, group, "a") == no(ReplyCode.DENIED, b"open")
    for task in ("a", "b"):
        await join(scripts, group, task)
    assert await finish(scripts, group, "b", patch_id="p") == ok(b"open", 0)
    await close(scripts, group)
    for _ in range(2):
        assert await finish(scripts, group, "a", call="last") == ok(b"complete", 1)
    assert await finish(scripts, group, "a", call="other", outcome="failed") == ok(b"complete", 0)
    found = await fields(scripts, group.group)
    assert (found["=a"], found["=b"], found["+p"]) == (b"1 complete 4", b"2 complete 3", b"3")
    assert found["reported"] == b"1"
    assert (await lives(scripts, group.group))[0] <= HOUR // 2


async def test_one_failed_member_fails_its_group(scripts: Scripts, group: GroupKeys) -> None:
    await make_group(scripts, group)
    for task in ("a", "b"):
        await join(scripts, group, task)
    await finish(scripts, group, "a", outcome="failed")
    await finish(scripts, group, "b")
    for _ in range(2):
        assert await close(scripts, group, call="seal") == ok(b"failed", 1)
    assert await close(scripts, group, call="other") == no(ReplyCode.DENIED, b"failed")


async def test_an_empty_group_ends_when_it_is_sealed(scripts: Scripts, group: GroupKeys) -> None:
    assert await close(scripts, group) == no(ReplyCode.MISSING)
    await make_group(scripts, group)
    assert await close(scripts, group) == ok(b"complete", 1)
    assert (await lives(scripts, group.group))[0] <= HOUR // 2


async def test_a_cancelled_group_is_over(scripts: Scripts, group: GroupKeys) -> None:
    await make_group(scripts, group)
    await join(scripts, group, "a")
    await close(scripts, group)
    for _ in range(2):
        assert await close(scripts, group, target="failed", call="x") == ok(b"failed", 1)
    assert await close(scripts, group, target="failed", call="y") == no(ReplyCode.DENIED, b"failed")
    assert await finish(scripts, group, "a", call="late") == ok(b"failed", 0)


async def test_of_members_that_finish_at_once_one_completes(
    scripts: Scripts, group: GroupKeys
) -> None:
    await make_group(scripts, group)
    tasks = [f"t{n}" for n in range(20)]
    await asyncio.gather(*(join(scripts, group, task) for task in tasks))
    await close(scripts, group)
    replies = await asyncio.gather(*(finish(scripts, group, task, call=task) for task in tasks))
    assert sum(reply.facts[1] for reply in replies) == 1
