"""Pauses that name who decides them: votes, seats that are handed on, seats that come later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state import CommandRefused
from redis_state.scripts import Reply, ReplyCode, Scripts, TaskKeys
from redis_state.serialization import codec
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys, token_key
from tests.support.scripts.logs import rows_of
from tests.support.scripts.pauses import decide, delegate, escalate, open_pause, pause, seats
from tests.support.scripts.replies import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    entries_of,
    fields,
    lives,
    no,
    ok,
)
from tests.support.scripts.tasks import make_task, start
from tests.support.scripts.users import without_channels

Pair = tuple[TaskKeys, str]


async def opened(
    scripts: Scripts, keys: Keys, *actors: str, waits: bool = True, **options: Any
) -> Pair:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token, extra=seats(*actors, **options))
    if waits:
        await pause(scripts, keys, task, token)
    return task, token


async def vote(
    scripts: Scripts, keys: Keys, pair: Pair, actor: str, *, yes: bool = True, **options: Any
) -> Reply:
    claim = options.pop("claim", f"call of {actor}")
    return await decide(scripts, keys, *pair, claim, voter=actor, approves=yes, **options)


async def seat(scripts: Scripts, token: str, actor: str) -> str:
    value: bytes | None = await ask(scripts, "HGET", token, f"seat:{actor}")
    return "none" if value is None else value.decode().partition(" ")[0]


async def seats_of(scripts: Scripts, token: str) -> dict[str, str]:
    found = await fields(scripts, token)
    return {
        name.removeprefix("seat:"): value.decode().partition(" ")[0]
        for name, value in found.items()
        if name.startswith("seat:")
    }


async def published(scripts: Scripts, keys: Keys) -> list[str]:
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    return [row_id for row_id in rows if not row_id.startswith(("started", "opened", "paused"))]


async def test_the_second_of_two_approvals_decides_in_the_step_that_takes_it(
    scripts: Scripts, keys: Keys
) -> None:
    pair = task, token = await opened(scripts, keys, "ann", "ben", "cid", approvals=2)
    for _ in range(2):
        assert await vote(scripts, keys, pair, "ann") == Reply(ReplyCode.COUNTED, [1, 0])
    assert (await fields(scripts, task.task))["status"] == b"PAUSED"
    assert (await fields(scripts, token))["state"] == b"open"
    assert await vote(scripts, keys, pair, "cid") == ok(b"PENDING", 1)
    found = await fields(scripts, token)
    assert (found["state"], found["actor"], found["claim"]) == (
        b"resolved",
        b"cid",
        b"call of cid",
    )
    note = codec.decode((await entries_of(scripts, task))["pause:x#1"])
    assert [one for _, one in note.pop("votes")] == [["ann", "yes"], ["cid", "yes"]]
    assert note == {"by": 1}
    assert await published(scripts, keys) == ["voted-call of ann", "resumed-call of cid"]
    # The votes of those who are not told, once more; and one that comes too late.
    for actor in ("ann", "cid"):
        assert await vote(scripts, keys, pair, actor) == ok(b"PENDING", 1)
    at = int(found["at"])
    taken = no(ReplyCode.TAKEN, b"cid", at, b"yes")
    assert await vote(scripts, keys, pair, "ben") == taken
    # The winner's idempotency key is nobody else's, and a vote is not one of another call.
    assert await vote(scripts, keys, pair, "ben", claim="call of cid") == taken
    assert await vote(scripts, keys, pair, "ann", claim="another") == taken
    assert await vote(scripts, keys, pair, "cid", answer="other") == taken
    assert await published(scripts, keys) == ["voted-call of ann", "resumed-call of cid"]
    assert all(0 < life <= 2 * HOUR for life in await lives(scripts, token, task.journal))


async def test_another_vote_of_an_actor_is_refused(scripts: Scripts, keys: Keys) -> None:
    pair = _, token = await opened(scripts, keys, "ann", "ben", approvals=2)
    await vote(scripts, keys, pair, "ann")
    first = (await fields(scripts, token))["seat:ann"]
    changes: list[dict[str, Any]] = [{"answer": "no", "yes": False}, {"answer": "other"}]
    for changed in changes:
        assert await vote(scripts, keys, pair, "ann", **changed) == no(ReplyCode.REFUSED, first)
    # The same vote of another call is the same vote.
    again = await vote(scripts, keys, pair, "ann", claim="another")
    assert again == Reply(ReplyCode.COUNTED, [1, 0])
    assert await vote(scripts, keys, pair, "eve") == no(ReplyCode.REFUSED, b"")
    assert await seats_of(scripts, token) == {"ann": "approved", "ben": "open"}
    assert await published(scripts, keys) == ["voted-call of ann"]


@pytest.mark.parametrize(
    ("options", "rejections"),
    [
        ({"approvals": 2}, 2),
        ({"approvals": 3}, 1),
        ({"approvals": 1}, 3),
        ({"approvals": 1, "rejections": 1}, 1),
        ({"approvals": 1, "rejections": 2}, 2),
    ],
)
async def test_so_many_rejections_reject_that_an_approval_is_impossible_or_as_said(
    scripts: Scripts, keys: Keys, options: dict[str, int], rejections: int
) -> None:
    pair = task, _ = await opened(scripts, keys, "ann", "ben", "cid", waits=False, **options)
    replies = [
        await vote(scripts, keys, pair, actor, yes=False, answer="no")
        for actor in ("ann", "ben", "cid")[:rejections]
    ]
    counted = [Reply(ReplyCode.COUNTED, [0, 1 + number]) for number in range(rejections - 1)]
    assert replies == [*counted, ok(b"RUNNING", 1)]
    note = codec.decode((await entries_of(scripts, task))["pause:x#1"])
    assert len(note["votes"]) == rejections


async def test_a_vote_is_taken_in_time_and_the_deadline_keeps_the_votes(
    scripts: Scripts, keys: Keys
) -> None:
    pair = task, token = await opened(scripts, keys, "ann", "ben", approvals=2)
    await vote(scripts, keys, pair, "ann")
    await ask(scripts, "HSET", token, "expires", await clock_ms(scripts))
    await clock_passes(scripts, await clock_ms(scripts))
    assert await vote(scripts, keys, pair, "ben") == no(ReplyCode.EXPIRED)
    assert await delegate(scripts, keys, pair, "ben", "dan") == no(ReplyCode.EXPIRED)
    assert await escalate(scripts, keys, *pair, "dan") == no(ReplyCode.DENIED, b"open")
    # What nobody decided in time is decided by the policy, whose note is an object too.
    late = await scripts.decide_pause(
        task,
        {"status": b"PENDING"},
        token=token,
        entry="pause:x#1",
        claim="timeout",
        actor="timeout",
        decision=b"no",
        approves=False,
        vote=b"",
        note=b'{"by":2}',
        keep_ms=HOUR,
        ttl_ms=HOUR,
        announcement=saying(keys, "resumed", "decided"),
        overdue=True,
    )
    assert (late.word, late.facts[:2]) == (ReplyCode.OK, [b"PENDING", 1])
    note = codec.decode((await entries_of(scripts, task))["pause:x#1"])
    assert (note["by"], [one for _, one in note["votes"]]) == (2, [["ann", "yes"]])
    assert (await vote(scripts, keys, pair, "ben")).word is ReplyCode.TAKEN


async def test_forty_votes_at_once_give_one_decision(scripts: Scripts, keys: Keys) -> None:
    actors = [f"a{number}" for number in range(40)]
    pair = task, token = await opened(scripts, keys, *actors, approvals=7)
    calls = [vote(scripts, keys, pair, actor) for actor in actors * 2]
    replies = await asyncio.gather(*calls)
    words = [reply.word for reply in replies]
    state = await seats_of(scripts, token)
    assert sorted(state.values()).count("approved") == 7
    voted = [actor for actor in actors if state[actor] == "approved"]
    for actor, reply in zip(actors * 2, replies, strict=True):
        if actor in voted:
            assert reply.word in (ReplyCode.OK, ReplyCode.COUNTED)
        else:
            assert reply.word is ReplyCode.TAKEN
    assert words.count(ReplyCode.COUNTED) >= 6
    note = codec.decode((await entries_of(scripts, task))["pause:x#1"])
    assert sorted(one[0] for _, one in note["votes"]) == sorted(voted)
    assert [at for at, _ in note["votes"]] == sorted(at for at, _ in note["votes"])
    rows = await published(scripts, keys)
    assert len(rows) == 7
    assert rows[-1].startswith("resumed")


async def test_a_seat_is_handed_on_once(scripts: Scripts, keys: Keys) -> None:
    pair = _, token = await opened(scripts, keys, "ann", "ben", approvals=2)
    for _ in range(2):
        assert await delegate(scripts, keys, pair, "ann", "dan\nx") == ok()
    assert (await fields(scripts, token))["seat:ann"].endswith(b" dan\nx")
    handed = (await fields(scripts, token))["seat:ann"]
    # Not twice, not to who has or had one, not by who has none.
    refused = [("ann", "eve", handed, b""), ("dan\nx", "ann", b"open", handed)]
    refused += [("dan\nx", "ben", b"open", b"open"), ("eve", "fay", b"", b"")]
    for actor, to, seat, of_to in refused:
        reply = await delegate(scripts, keys, pair, actor, to)
        assert reply == no(ReplyCode.REFUSED, seat, of_to)
    assert await vote(scripts, keys, pair, "ann") == no(ReplyCode.REFUSED, handed)
    full = await delegate(scripts, keys, pair, "ben", "eve", most=5)
    assert full == no(ReplyCode.REFUSED, b"open", b"full")
    assert await delegate(scripts, keys, pair, "dan\nx", "eve") == ok()
    await vote(scripts, keys, pair, "eve")
    voted = (await fields(scripts, token))["seat:eve"]
    assert await delegate(scripts, keys, pair, "eve", "fay") == no(ReplyCode.REFUSED, voted, b"")
    assert await vote(scripts, keys, pair, "ben") == ok(b"PENDING", 1)
    assert (await delegate(scripts, keys, pair, "ben", "fay")).word is ReplyCode.TAKEN
    assert await published(scripts, keys) == [
        "delegated-ann-dan\nx",
        "delegated-dan\nx-eve",
        "voted-call of eve",
        "resumed-call of ben",
    ]


async def test_a_seat_of_many_is_handed_to_one(scripts: Scripts, keys: Keys) -> None:
    pair = _, token = await opened(scripts, keys, "ann", approvals=1)
    heirs = [f"h{number}" for number in range(20)]
    replies = await asyncio.gather(*(delegate(scripts, keys, pair, "ann", to) for to in heirs))
    assert [reply.word for reply in replies].count(ReplyCode.OK) == 1
    state = await seats_of(scripts, token)
    assert sorted(state.values()) == ["delegated", "open"]


async def test_a_pause_escalates_once_and_not_before_its_time(scripts: Scripts, keys: Keys) -> None:
    pair = _, token = await opened(scripts, keys, "ann", "ben", "cid", approvals=2)
    early = await escalate(scripts, keys, *pair, "lead", after_ms=HOUR // 2)
    assert early.word is ReplyCode.HELD
    assert 0 < early.facts[0] <= HOUR // 2
    replies = await asyncio.gather(*(escalate(scripts, keys, *pair, "lead") for _ in range(10)))
    assert sorted(replies, key=lambda reply: reply.word) == [ok(1)] + [no(ReplyCode.STALE, 1)] * 9
    assert await published(scripts, keys) == ["escalated-0"]
    assert await seat(scripts, token, "lead") == "open"
    for actor in ("ann", "ben"):
        # With four seats a second rejection leaves enough.
        assert (await vote(scripts, keys, pair, actor, yes=False)).word is ReplyCode.COUNTED
    assert await vote(scripts, keys, pair, "cid") == Reply(ReplyCode.COUNTED, [1, 2])
    assert await vote(scripts, keys, pair, "lead") == ok(b"PENDING", 1)
    done = await escalate(scripts, keys, *pair, "x", number=1)
    assert done == no(ReplyCode.DENIED, b"resolved")


async def test_others_decide_in_place_of_who_has_not_voted(scripts: Scripts, keys: Keys) -> None:
    pair = _, token = await opened(scripts, keys, "ann", "ben", "cid", approvals=2)
    await vote(scripts, keys, pair, "ann")
    await delegate(scripts, keys, pair, "ben", "dan")
    assert await escalate(scripts, keys, *pair, "ben", "lead", replaces=True) == ok(1)
    # Who has ben's seat keeps it.
    state = {"ann": "approved", "ben": "delegated", "cid": "retired", "dan": "open", "lead": "open"}
    assert await seats_of(scripts, token) == state
    retired = (await fields(scripts, token))["seat:cid"]
    assert await vote(scripts, keys, pair, "cid") == no(ReplyCode.REFUSED, retired)
    assert await escalate(scripts, keys, *pair, "cid", number=1) == ok(2)
    assert await seat(scripts, token, "cid") == "open"
    assert await vote(scripts, keys, pair, "cid") == ok(b"PENDING", 1)


async def test_a_replacement_never_makes_an_approval_impossible(
    scripts: Scripts, keys: Keys
) -> None:
    pair = _, token = await opened(scripts, keys, "ann", "ben", "cid", "dan", approvals=2)
    await vote(scripts, keys, pair, "ann", yes=False)
    # One of the two new ones has rejected: alone the other could not reach two.
    assert await escalate(scripts, keys, *pair, "ann", "lead", replaces=True) == ok(1)
    state = await seats_of(scripts, token)
    assert [state[name] for name in ("ben", "cid", "dan", "lead")] == ["open"] * 4


async def test_of_a_task_that_is_over_or_another_nothing_changes(
    scripts: Scripts, keys: Keys
) -> None:
    pair = task, token = await opened(scripts, keys, "ann", approvals=1)
    none = (task, token_key(keys, "none"))
    assert await delegate(scripts, keys, none, "ann", "b") == no(ReplyCode.MISSING)
    assert await escalate(scripts, keys, *none, "b") == no(ReplyCode.MISSING)
    await make_task(scripts, task, "CANCELLED", finished=True)
    over = no(ReplyCode.DENIED, b"CANCELLED")
    assert await delegate(scripts, keys, pair, "ann", "b") == over
    assert await vote(scripts, keys, pair, "ann") == over
    assert await escalate(scripts, keys, *pair, "b") == no(ReplyCode.DENIED, b"open")
    await ask(scripts, "DEL", task.task, task.journal)
    await make_task(scripts, task, "PENDING")
    for reply in (
        await delegate(scripts, keys, pair, "ann", "b"),
        await escalate(scripts, keys, *pair, "b"),
        await vote(scripts, keys, pair, "ann"),
    ):
        assert reply == no(ReplyCode.MISSING)
    assert await seats_of(scripts, token) == {"ann": "open"}


async def test_a_pause_is_opened_by_its_deadline_or_not(scripts: Scripts, keys: Keys) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    now = await clock_ms(scripts)
    late = await open_pause(scripts, keys, task, token, before=now - 1)
    assert late == no(ReplyCode.EXPIRED)
    assert await ask(scripts, "EXISTS", token) == 0
    assert (await open_pause(scripts, keys, task, token, before=now + HOUR)).word is ReplyCode.OK
    # An open one is there, however late it is asked for again.
    assert (await open_pause(scripts, keys, task, token, before=now - 1)).word is ReplyCode.OK


@pytest.mark.role("any", why="it makes users")
@pytest.mark.parametrize("approvals", [1, 2])
async def test_a_vote_that_may_not_be_published_is_not_taken(
    scripts: Scripts, keys: Keys, approvals: int
) -> None:
    pair = task, token = await opened(scripts, keys, "ann", "ben", approvals=approvals)
    async with without_channels(scripts, keys):
        with pytest.raises(CommandRefused):
            await vote(scripts, keys, pair, "ann")
    assert await seats_of(scripts, token) == {"ann": "open", "ben": "open"}
    decided = ok(b"PENDING", 1) if approvals == 1 else Reply(ReplyCode.COUNTED, [1, 0])
    assert await vote(scripts, keys, pair, "ann") == decided
    assert (await fields(scripts, task.task))["status"] == (
        b"PENDING" if approvals == 1 else b"PAUSED"
    )
