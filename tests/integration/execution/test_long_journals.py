"""A journal that is longer than one reply."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.scripts.stores.tasks.journal import JournalScripts
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks import transitions
from redis_state.worker.tasks.recorded import journal as module
from redis_state.worker.tasks.recorded.journal import Journals
from tests.support.processes.pools import SESSION
from tests.support.tasks.runs import TASK, begin_again, make, renewed, run_once, steal

STEPS = 100
RESULT = "r" * 1000


class Replies:
    """How many bytes each read of a journal was answered with; the last one to come is special."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.before_second: Any = None
        real: Any = JournalScripts.read_journal

        async def counted(scripts: Any, *keys: Any, **given: Any) -> Any:
            if len(self.sizes) == 1 and self.before_second is not None:
                await self.before_second()
            reply = await real(scripts, *keys, **given)
            self.sizes.append(sum(map(len, reply.facts[0])))
            return reply

        monkeypatch.setattr(JournalScripts, "read_journal", counted)
        # A start brings the names, and no note.
        monkeypatch.setattr(transitions, "STARTED_BYTES", 0)


async def _record(store: RedisStateStore) -> None:
    """Run a task that records its steps, and then ends its run."""

    async def handler(ctx: TaskContext) -> None:
        for number in range(STEPS):
            await ctx.step("work", lambda: f"{number} {RESULT}")  # noqa: B023 - called at once
        begin_again()

    await make(store)
    await run_once(store, handler)


async def test_a_run_finds_all_steps_of_a_journal_that_no_reply_holds(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    monkeypatch.setattr(module, "JOURNAL_BYTES", 20_000)
    monkeypatch.setattr(module, "JOURNAL_NAMES", 60)
    replies = Replies(monkeypatch)

    async def handler(ctx: TaskContext) -> list[str]:
        return [await ctx.step("work", lambda: "not again") for _ in range(STEPS)]

    ended = await run_once(store, handler)
    assert ended.status is TaskStatus.COMPLETE
    assert ended.result == [f"{number} {RESULT}" for number in range(STEPS)]
    assert sum(replies.sizes) > STEPS * len(RESULT)
    # A portion more than the limit at most.
    assert len(replies.sizes) > 1
    assert max(replies.sizes) < 20_000 + 16 * 1_200


async def test_a_usual_journal_is_one_reply(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    replies = Replies(monkeypatch)
    found, count = await Journals(store.base).read(store.tasks.keys(SESSION, TASK))
    assert len(replies.sizes) == 1
    assert count == STEPS
    assert sum(name.startswith("step:") for name in found) == STEPS


async def test_no_part_of_a_journal_is_read_that_is_removed_meanwhile(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    monkeypatch.setattr(module, "JOURNAL_BYTES", 20_000)
    replies, keys = Replies(monkeypatch), store.tasks.keys(SESSION, TASK)

    async def remove() -> None:
        await store.clear_session(SESSION)

    replies.before_second = remove
    assert await Journals(store.base).read(keys) == ({}, 0)
    assert len(replies.sizes) == 3


async def test_a_lease_is_renewed_while_a_long_journal_is_read(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    monkeypatch.setattr(module, "JOURNAL_BYTES", 20_000)
    replies = Replies(monkeypatch)

    async def handler(ctx: TaskContext) -> int:
        return ctx.attempt

    # A slow link.
    replies.before_second = lambda: renewed(store)
    ended = await run_once(store, handler, lease_s=0.6)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, 2)


async def test_a_run_that_loses_its_lease_while_it_reads_its_journal_does_not_begin(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    monkeypatch.setattr(module, "JOURNAL_BYTES", 20_000)
    replies, lost = Replies(monkeypatch), list[LeaseLost]()
    real: Any = Leases.renew
    runs: list[int] = []

    async def renew(leases: Leases, *given: Any, **options: Any) -> None:
        try:
            await real(leases, *given, **options)
        except LeaseLost as error:
            lost.append(error)
            raise

    monkeypatch.setattr(Leases, "renew", renew)

    async def take_over() -> None:
        # The other run reads the journal, too.
        replies.before_second = None
        await steal(store, TASK)
        await eventually(lambda: lost, "the loss is noticed")

    async def handler(ctx: TaskContext) -> None:
        runs.append(ctx.attempt)

    replies.before_second = take_over
    state = await run_once(store, handler, lease_s=0.6)
    assert (len(lost), state.status, runs) == (1, TaskStatus.RUNNING, [])


async def test_a_run_whose_link_breaks_late_in_a_long_journal_reads_it_again(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _record(store)
    monkeypatch.setattr(module, "JOURNAL_BYTES", 20_000)
    replies, broken = Replies(monkeypatch), list[str]()

    async def breaks() -> None:
        replies.before_second = None
        await renewed(store)
        broken.append("link")
        raise BackendUnavailable("test", "the link is broken")

    async def handler(ctx: TaskContext) -> int:
        return ctx.attempt

    replies.before_second = breaks
    # The server is asked again for the length of a lease, of which most had passed.
    ended = await run_once(store, handler, lease_s=1.8)
    assert (broken, ended.status, ended.result) == (["link"], TaskStatus.COMPLETE, 2)
