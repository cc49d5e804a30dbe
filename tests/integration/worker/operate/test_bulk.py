"""All tasks that match are retried, made again or forked, each with its outcome."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, KeyReused
from redis_state.models import TaskStatus
from redis_state.worker import TaskClient
from redis_state.worker.tasks.operate.bulk import BulkItem, BulkOutcome
from tests.support.processes.pools import client_of, found_are, pool, queue_of
from tests.support.tasks.work import Work


async def test_all_that_match_are_retried_each_with_its_outcome(store: RedisStateStore) -> None:
    work = Work()
    async with pool(store, {"h": work, "g": work}) as client:
        made = [
            await client.submit("hg"[number % 2], session_id=f"s{number}") for number in range(12)
        ]
        for number, task in enumerate(made):
            await client.wait(f"s{number}", task)
        await found_are(client, TaskStatus.FAILED, 12)
        work.bad = ""
        seen: list[BulkItem] = []
        dry = await client.bulk("retry", handler="h", dry_run=True, progress=seen.append)
        assert dry.counts[BulkOutcome.WOULD] == len(seen) == 6
        assert (await client.count())[TaskStatus.FAILED] == 12
        await client.retry("s0", made[0])
        part = await client.bulk("retry", handler="h", limit=3, idempotency_key="once")
        assert [len(part.items), part.more] == [3, True]
        rest = await client.bulk("retry", handler="h", idempotency_key="once")
        assert rest.counts[BulkOutcome.DONE] == len(rest.items) == 2
        for number, task in enumerate(made[::2]):
            await client.result(f"s{2 * number}", task)
        forks = await client.bulk("fork", handler="g", before="b", idempotency_key="f")
        assert {item.reason for item in forks.items} != {None}
        assert forks.counts[BulkOutcome.REFUSED] == 6
        again = await client.bulk("rerun", handler="g", idempotency_key="f")
        assert again.counts[BulkOutcome.DONE] == 6
        for item in again.items:
            assert item.new_task_id is not None
            assert len(await client.result(item.session_id, item.new_task_id)) == 3
        # What a call made matches its filters too. A repetition leaves it out.
        for _ in range(2):
            repeated = await client.bulk("rerun", handler="g", idempotency_key="f")
            assert {item.new_task_id for item in repeated.items} == {
                item.new_task_id for item in again.items
            }
        assert (
            len((await client.bulk("rerun", handler="g", idempotency_key="f", dry_run=True)).items)
            == 6
        )
        await found_are(client, TaskStatus.COMPLETE, 6, handler="g")
        assert (await client.count(handler="g"))[TaskStatus.COMPLETE] == 6
        # A call of another name copies the copies as well, once.
        for _ in range(2):
            forked = await client.bulk("fork", handler="g", idempotency_key="f", limit=50)
            assert forked.counts[BulkOutcome.DONE] == len(forked.items) == 12
        assert sum((await client.count(handler="g")).values()) == 24


async def test_a_bulk_fork_under_a_key_keeps_what_it_was_asked_to_keep(
    store: RedisStateStore,
) -> None:
    work = Work("")
    async with pool(store, {"h": work}) as client:
        for number in range(3):
            await client.submit("h", session_id="s", task_id=f"t{number}")
            await client.wait("s", f"t{number}")
        ask = partial(client.bulk, "fork", handler="h", session_id="s", idempotency_key="k")
        first = await ask(before="b", limit=1)
        assert first.counts[BulkOutcome.DONE] == 1
        for before in ("c", None):
            for dry_run in (True, False):
                with pytest.raises(KeyReused, match="this fork"):
                    await ask(before=before, dry_run=dry_run)
        assert len(await store.list_tasks("s")) == 4
        again = await ask(before="b")
        assert again.counts[BulkOutcome.DONE] == len(again.items) == 3
        assert len(await store.list_tasks("s")) == 6


async def test_a_call_that_is_cut_off_changes_no_more_tasks(store: RedisStateStore) -> None:
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        named = [(f"s{number}", await _submitted(client, number)) for number in range(60)]

        async def left() -> int:
            states = await asyncio.gather(*(client.get(*task) for task in named))
            return sum(state is not None and not state.status.is_terminal for state in states)

        cancel = partial(client.bulk, "cancel", handler="h", concurrency=1)

        def stop(_: BulkItem) -> None:
            raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            await cancel(progress=stop)
        first = await left()
        # What went on would make its calls meanwhile.
        for _ in range(5):
            await store.drain()
        assert first == await left() >= 58
        begun = asyncio.Event()
        call = asyncio.create_task(cancel(progress=lambda _: begun.set()))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        second = await left()
        for _ in range(5):
            await store.drain()
        assert first > second == await left() >= 50


async def _submitted(client: TaskClient, number: int) -> str:
    return await client.submit("h", session_id=f"s{number}")


async def test_a_task_that_failed_again_is_not_reported_as_retried(store: RedisStateStore) -> None:
    work = Work()
    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id="s")
        items: list[BulkItem] = []
        for _ in range(2):
            await client.wait("s", task)
            await found_are(client, TaskStatus.FAILED, 1)
            items += (await client.bulk("retry", idempotency_key="k")).items
        assert [item.outcome for item in items] == [BulkOutcome.DONE, BulkOutcome.REFUSED]
        assert "FAILED again: use another idempotency_key" in str(items[1].reason)
        work.bad = ""
        assert (await client.bulk("retry", idempotency_key="l")).counts[BulkOutcome.DONE] == 1
        assert await client.result("s", task) == ["a1", "b3", "c1"]


async def test_bad_bulk_calls_are_refused(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("action", "delete", {}),
            ("status", "retry", {"status": "COMPLETE"}),
            ("limit", "retry", {"limit": 0}),
            ("concurrency", "retry", {"concurrency": 0}),
            ("colour", "retry", {"colour": "red"}),
        ]
        for field, action, filters in cases:
            with pytest.raises(InvalidField) as refused:
                await client.bulk(action, **filters)
            assert refused.value.field == field
