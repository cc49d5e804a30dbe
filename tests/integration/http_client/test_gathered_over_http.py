"""Requests, bursts, rates and backfills over HTTP: as by the direct client, once for each key."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore, errors
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Rate, Schedule, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take
from tests.support.http import gateway
from tests.support.http.http_gateway import over_http
from tests.support.processes.pools import queue_of

# As nobody would choose it.
SESSION = "s/ü {x}%25:a\x7f"
SOON, LATER = timedelta(milliseconds=300), timedelta(hours=6)


async def answers(ctx: TaskContext) -> Any:
    """Answer requests with who has sent them; refuse "no"; end at "end", without a reply."""
    while True:
        request = await ctx.receive_request("who", hold_s=60)
        match request.payload:
            case "end":
                return "ended"
            case "no":
                await request.refuse("not today")
            case _:
                await request.reply([request.sender, request.payload])


@pytest.fixture(autouse=True)
def _handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gateway.HANDLERS, "answers", answers)


async def test_a_request_has_one_reply_for_each_key_of_a_caller(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["answers"]) as over:
        await over.http.submit("answers", session_id="s", task_id="t")
        asking = (over.http.request("s", "t", "who", number) for number in range(40))
        assert await asyncio.gather(*asking) == [["root", number] for number in range(40)]
        async with over.caller("ann", "steer:session:s") as ann:
            same = [
                await client.request("s", "t", "who", payload, idempotency_key="k")
                for client, payload in ((ann, 1), (ann, 1), (over.http, 3))
            ]
            assert same == [["ann", 1], ["ann", 1], ["root", 3]]
            with pytest.raises(errors.KeyReused) as reused:
                await ann.request("s", "t", "who", 2, idempotency_key="k")
            assert reused.value.what == "request"
            with pytest.raises(errors.CommandRefused):
                await ann.request("other", "t", "who")
        for client in (over.direct, over.http):
            with pytest.raises(errors.RequestRefused) as refused:
                await client.request("s", "t", "who", "no", idempotency_key="no")
            assert (refused.value.reason, refused.value.request_id) == ("not today", "no")
            with pytest.raises(errors.NoReceiver) as late:
                await client.request("s", "t", "nobody", timeout_s=0.1, idempotency_key="late")
            assert (late.value.name, late.value.request_id) == ("nobody", "late")
            with pytest.raises(errors.TaskUnknown):
                await client.request("s", "none", "who")
            with pytest.raises(errors.InvalidMessage):
                await client.request("s", "t", "who", 1, type=int)
            for name, payload in (("", 1), ("who", "x" * 70_000)):
                with pytest.raises(errors.InvalidField):
                    await client.request("s", "t", name, payload)
        with pytest.raises(errors.RequestUnanswered) as ended:
            await over.http.request("s", "t", "who", "end", idempotency_key="last")
        assert (ended.value.status, ended.value.request_id) == ("COMPLETE", "last")


async def test_a_request_outlives_the_calls_that_wait_for_it(store: RedisStateStore) -> None:
    queue = queue_of(store.settings)
    async with over_http(store, handlers=["answers"]) as over:
        answered = over.served.app._answers
        await over.direct.queues.pause(queue)
        await over.http.submit("answers", session_id="s", task_id="t")
        # A call waits for a sixth of a second.
        async with over.caller("ann", "steer:session:s", timeout_s=1.0) as ann:
            waiting = asyncio.create_task(ann.request("s", "t", "who", "x", timeout_s=60))
            await eventually(lambda: answered["request_task", 202] >= 3, "three calls have waited")
            assert over.proxy.cut()
            await over.direct.queues.resume(queue)
            assert await waiting == ["ann", "x"]


async def test_what_many_callers_gather_is_in_one_task_each_once(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["echo"]) as over:
        async with over.caller("ann", f"submit:session:{SESSION}") as ann:
            adding = (
                client.batch(
                    "echo", [name, number], session_id=SESSION, after=SOON, item_id=f"{number}"
                )
                for name, client in (("ann", ann), ("ann", ann), ("root", over.http))
                for number in range(40)
            )
            tasks = set(await asyncio.gather(*adding))
            # An id of one caller is not another's.
            items: Counter[tuple[Any, ...]] = Counter()
            for task_id in tasks:
                items.update(map(tuple, await over.http.result(SESSION, task_id, timeout_s=60)))
            wanted = [(name, number) for name in ("ann", "root") for number in range(40)]
            assert items == Counter(wanted)
            with pytest.raises(errors.CommandRefused):
                await ann.batch("echo", 1, session_id="other", after=SOON)
            for client, name in ((ann, "ann"), (over.http, "root")):
                given: dict[str, Any] = {"session_id": SESSION, "after": SOON, "item_id": "7"}
                with pytest.raises(errors.KeyReused, match="this item"):
                    await client.batch("echo", [name, 40], **given)
            with pytest.raises(errors.CommandRefused):
                await ann.debounce("echo", 1, session_id="other", wait=SOON)
        group: dict[str, Any] = {"session_id": SESSION, "wait": LATER, "group": "g"}
        about: dict[str, Any] = {"attributes": {"tenant": "acme"}, "limit_key": "acme"}
        put_off = {await over.http.debounce("echo", n, **group, **about) for n in range(3)}
        put_off.add(await over.direct.debounce("echo", 3, **group))
        (task_id,) = put_off
        (found,) = (await over.direct.find(attributes={"tenant": "acme"})).tasks
        assert (found.task_id, found.status) == (task_id, TaskStatus.PENDING)
        last = await over.http.debounce("echo", "last", session_id=SESSION, wait=SOON)
        assert await over.http.result(SESSION, last, timeout_s=60) == "last"


async def test_what_cannot_be_gathered_is_refused_alike(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["echo"]) as over:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("wait", {"wait": 1}),
            ("wait", {"wait": timedelta(days=2)}),
            ("handler", {"wait": SOON, "handler": ""}),
            ("attributes", {"wait": SOON, "attributes": {"a": 1.5}}),
            ("options", {"wait": SOON, "nonsense": 1}),
        ]
        for field, given in wrong:
            options: dict[str, Any] = {"handler": "echo", "session_id": "s"} | given
            for client in (over.direct, over.http):
                with pytest.raises(errors.InvalidField) as refused:
                    await client.debounce(**options)
                assert field == "options" or refused.value.field.startswith(field), options
        with pytest.raises(errors.InvalidField, match="most"):
            await over.http.batch("echo", 1, session_id="s", after=SOON, most=5_000)


async def test_rates_and_the_keys_of_a_queue(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["echo"]) as over:
        odd = "model a/b\x7f{}%"
        await over.http.rates.set(odd, Rate(60, timedelta(minutes=1)))
        await over.direct.rates.set("other", Rate(2, timedelta(seconds=0.5)))
        assert await over.http.rates.list() == await over.direct.rates.list()
        assert (await over.http.rates.list())[odd] == Rate(60, timedelta(minutes=1))
        await over.http.rates.set(odd, None)
        assert list(await over.direct.rates.list()) == ["other"]
        await take(Queue(store), odd, Rate(5, timedelta(hours=1)), 2)
        (used,) = await over.http.rates.in_use()
        assert (used.name, used.rate, used.taken) == (odd, Rate(5, timedelta(hours=1)), 2)
        assert await over.direct.rates.in_use() == [used]
        odd_ones: list[tuple[Any, Any]] = [("", Rate(1, timedelta(1))), ("a", 5)]
        for odd_one in odd_ones:
            for client in (over.direct, over.http):
                with pytest.raises(errors.InvalidField):
                    await client.rates.set(*odd_one)
        async with over.caller("ann", "read:*") as ann:
            assert list(await ann.rates.list()) == ["other"]
            with pytest.raises(errors.CommandRefused):
                await ann.rates.set("other", None)
        queue = "nobodys"
        for number, key in enumerate(("a", "a", "b")):
            await over.http.submit(
                "echo", session_id="s", task_id=f"w{number}", queue=queue, limit_key=key
            )
        keys = await over.http.queues.keys(queue)
        assert [(each.limit_key, each.waiting) for each in keys] == [("a", 2), ("b", 1)]
        assert [each.limit_key for each in await over.http.queues.keys(queue, limit=1)] == ["a"]


async def test_a_schedule_is_backfilled_once(store: RedisStateStore) -> None:
    async with over_http(store, handlers=["echo"]) as over:
        daily = Schedule(schedule_id="d", handler="echo", session_id="s", cron="0 3 * * *")
        await over.http.schedules.save(daily)
        span = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
        would = await over.http.schedules.backfill("d", *span, dry_run=True)
        assert [each.state for each in would] == ["missing"] * 3
        assert (await over.direct.find(session_id="s")).tasks == []
        made = await over.http.schedules.backfill("d", *span, limit_key="acme")
        assert [each.state for each in made] == ["submitted"] * 3
        again = [await each.schedules.backfill("d", *span) for each in (over.direct, over.http)]
        assert again[0] == again[1]
        assert [each.state for each in again[1]] == ["exists"] * 3
        earlier = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC)
        for each in await over.http.schedules.backfill("d", *earlier, overlap="enqueue"):
            view = await store.tasks.look("s", each.task_id)
            assert view is not None
            assert view.key == "b:d"
        for client in (over.direct, over.http):
            with pytest.raises(errors.InvalidField, match="until"):
                await client.schedules.backfill("d", *span, limit=2)
            with pytest.raises(errors.InvalidField, match="overlap"):
                await client.schedules.backfill("d", *span, overlap="skip")  # type: ignore[arg-type]
            with pytest.raises(errors.ScheduleUnknown):
                await client.schedules.backfill("none", *span)
        async with over.caller("ann", "submit:session:s") as ann:
            with pytest.raises(errors.CommandRefused):
                await ann.schedules.backfill("d", *span)
