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
from redis_state.testing import eventually
from redis_state.worker.tasks.operate.bulk import BulkItem, BulkOutcome
from tests.support.processes.pools import client_of, found_are, pool
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


@pytest.mark.parametrize("leaves", ["cancelled", "progress"])
async def test_a_caller_that_leaves_changes_no_more_tasks(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    async with client_of(store) as client:
        for number in range(6):
            await client.submit("h", session_id=f"s{number}")
        cancel, begun, held = client.cancel, list[str](), asyncio.Event()

        async def cancel_slowly(session_id: str, task_id: str, **options: Any) -> bool:
            begun.append(task_id)
            if leaves == "cancelled" or len(begun) > 1:
                await held.wait()
            return await cancel(session_id, task_id, **options)

        def progress(_: BulkItem) -> None:
            if leaves == "progress":
                raise ZeroDivisionError

        monkeypatch.setattr(client, "cancel", cancel_slowly)
        call = asyncio.create_task(client.bulk("cancel", concurrency=1, progress=progress))
        await eventually(lambda: begun, "the first task is being cancelled")
        if leaves == "cancelled":
            call.cancel()
        with pytest.raises(asyncio.CancelledError if leaves == "cancelled" else ZeroDivisionError):
            await call
        held.set()
        left = [task for task in asyncio.all_tasks() if "_one" in repr(task.get_coro())]
        await asyncio.gather(*left)
        assert (await client.count())[TaskStatus.PENDING] >= 5


async def test_who_interrupts_it_learns_what_was_under_way(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(store) as client:
        made = [await client.submit("h", session_id="s") for _ in range(4)]
        rerun, changed, items = client.rerun, list[str](), list[BulkItem]()

        async def rerun_without_an_answer(*source: str, **options: Any) -> str:
            copy = await rerun(*source, **options)
            if source[1] != made[0]:
                changed.append(source[1])
                await asyncio.Event().wait()
            return copy

        monkeypatch.setattr(client, "rerun", rerun_without_an_answer)
        call = asyncio.create_task(
            client.bulk("rerun", concurrency=2, progress=items.append, handler="h")
        )
        await eventually(lambda: len(changed) == 2, "two are under way, and one is done")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        found = {item.task_id: item for item in items}
        assert len(items) == 3
        assert found[made[0]].outcome is BulkOutcome.DONE
        for task_id in changed:
            assert found[task_id].outcome is BulkOutcome.FAILED
            assert "may have happened" in str(found[task_id].reason)


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
