"""Schedules by their client and a worker's looks: what is submitted, when, and what is left out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    CorruptState,
    InvalidField,
    LostRace,
    ScheduleUnknown,
    VersionConflict,
)
from redis_state.models import TaskStatus
from redis_state.stores.schedules import PlannedTask, ScheduleStore
from redis_state.testing import eventually
from redis_state.worker import Schedule, TaskClient, TaskContext, occurrence_of
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.runner import ScheduleRunner
from redis_state.worker.schedules.submit import HOLD_MS, Submitter
from tests.support.processes.pools import SESSION, client_of, pool, queue_of, queued
from tests.support.scripts.replies import ask, clock_ms, lives
from tests.support.tasks.schedules import (
    MINUTE_MS,
    hourly,
    look_now,
    looked_at_in_ms,
    running,
    settled_before,
)

HOUR = timedelta(hours=1)
ODD = "a{b}:*?[c] \ud800"


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as made:
        yield made


@pytest.fixture
async def runner(store: RedisStateStore) -> AsyncIterator[ScheduleRunner]:
    async with running(store) as made:
        yield made


async def tasks_of(store: RedisStateStore, session: str = SESSION) -> list[str]:
    return sorted(task.task_id for task in await store.list_tasks(session))


async def test_each_occurrence_is_submitted_once_as_the_schedule_says(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    schedule = hourly(input={"n": 1}, priority=2, description="hourly", grace=HOUR)
    made = await client.schedules.save(schedule)
    assert (made.fired, made.last, made.paused) == (0, None, False)
    assert made.next_at is not None
    assert await runner.run_once() == 1
    assert await tasks_of(store) == []
    await settled_before(store)
    assert await runner.run_once() == 1
    for _ in range(2):
        await look_now(store)
        assert await runner.run_once() == 1
    found = await client.schedules.get("s")
    assert found.fired == 1
    assert found.last is not None
    assert found.last.at == made.next_at - HOUR
    assert found.last_status is TaskStatus.PENDING
    assert found.next_at == made.next_at
    assert await tasks_of(store) == [found.last.task_id]
    assert occurrence_of(found.last.task_id) == found.last.at
    view = await client.inspect(SESSION, found.last.task_id)
    assert view is not None
    assert (view.handler, view.queue) == ("who", queue_of(store.settings))
    assert (view.state.priority, view.state.description) == (2, "hourly")
    assert len(await queued(store)) == 1
    # The next look is at the next occurrence.
    now_ms = await clock_ms(store.base.scripts)
    next_ms = made.next_at.timestamp() * 1000
    assert abs(await looked_at_in_ms(store, now_ms) - (next_ms - now_ms)) < MINUTE_MS
    assert await runner.run_once() == 0


async def test_a_worker_runs_schedules_by_itself_unless_it_is_told_not_to(
    store: RedisStateStore,
) -> None:
    async def when(ctx: TaskContext) -> str:
        return str(occurrence_of(ctx.task.task_id))

    every = hourly(handler="when", every=timedelta(seconds=1), session_id="at-{date}")
    async with pool(store, {"when": when}, schedules=False) as client:
        await client.schedules.save(every)
        # It polls its queue meanwhile, and its sweeper sweeps.
        task = await client.submit("when", session_id=SESSION)
        await client.wait(SESSION, task, timeout_s=60)
    assert (await client.schedules.get("s")).fired == 0
    async with pool(store, {"when": when}) as client:

        async def fired() -> Any:
            found = await client.schedules.get("s")
            last = found.last
            # It is recorded that an occurrence has fired, and then its task is submitted.
            if last is None or found.fired < 2:
                return None
            return last if await client.get(last.session_id, last.task_id) else None

        last = await eventually(fired, "two occurrences were submitted", timeout_s=60)
        assert last is not None
        assert await client.result(last.session_id, last.task_id, timeout_s=60) == str(last.at)
        assert last.session_id == f"at-{last.at:%Y-%m-%d}"


async def test_saving_the_same_again_changes_nothing_and_another_time_begins_anew(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    first = await client.schedules.save(hourly())
    await settled_before(store)
    assert await client.schedules.save(hourly()) == await client.schedules.get("s")
    # What is due stays due under a definition with the same times.
    changed = await client.schedules.save(hourly(input=2, missed="latest"))
    assert changed.revision != first.revision
    assert changed.created_at == first.created_at
    await runner.run_once()
    assert (await client.schedules.get("s")).fired == 1
    await settled_before(store, hours=5)
    again = await client.schedules.save(hourly(missed="all", every=timedelta(minutes=30)))
    assert again.next_at is not None
    now_ms = await clock_ms(store.base.scripts)
    assert 0 < again.next_at.timestamp() * 1000 - now_ms <= 30 * MINUTE_MS
    await runner.run_once()
    assert (await client.schedules.get("s")).fired == 1


async def test_an_edit_is_refused_if_another_came_first(client: TaskClient) -> None:
    made = await client.schedules.save(hourly())
    other = await client.schedules.save(hourly(input=1), expected=made.revision)
    with pytest.raises(VersionConflict) as refused:
        await client.schedules.save(hourly(input=2), expected=made.revision)
    assert refused.value.actual == other.revision
    assert (await client.schedules.get("s")).schedule.input == 1
    with pytest.raises(ScheduleUnknown):
        await client.schedules.save(hourly("other"), expected=made.revision)


async def test_odd_ids_are_listed_in_order_and_deleted(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    session = ODD.replace("{", "{{").replace("}", "}}")
    for schedule_id in ("z", ODD, "a/b@c"):
        await client.schedules.save(hourly(schedule_id, session_id=session, grace=HOUR))
    assert [each.schedule.schedule_id for each in await client.schedules.list()] == [
        "z",
        ODD,
        "a/b@c",
    ]
    await settled_before(store, ODD)
    await runner.run_once()
    found = await client.schedules.get(ODD)
    assert found.last is not None
    assert await tasks_of(store, ODD) == [found.last.task_id]
    assert await client.schedules.delete(ODD)
    assert not await client.schedules.delete(ODD)
    assert [each.schedule.schedule_id for each in await client.schedules.list()] == ["z", "a/b@c"]
    await look_now(store, ODD)
    # A look finds nothing, and so does the last one after a second.
    assert await runner.run_once() == 1
    assert await tasks_of(store, ODD) == [found.last.task_id]


@pytest.mark.parametrize("call", ["get", "pause", "resume", "trigger"])
async def test_one_that_is_not_there_is_a_typed_error(client: TaskClient, call: str) -> None:
    for schedule_id, error in (("none", ScheduleUnknown), ("", InvalidField)):
        with pytest.raises(error):
            await getattr(client.schedules, call)(schedule_id)


async def test_a_pause_leaves_its_occurrences_out(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly(missed="all"))
    assert (await client.schedules.pause("s")).next_at is None
    await settled_before(store, hours=3)
    await runner.run_once()
    now_ms = await clock_ms(store.base.scripts)
    # It is looked at once a day, which renews its lifetime.
    assert await looked_at_in_ms(store, now_ms) > 23 * 60 * MINUTE_MS
    # A save does not resume it, unless that is said.
    assert (await client.schedules.save(hourly(missed="all", input=1))).paused
    resumed = await client.schedules.save(hourly(missed="all", input=1), paused=False)
    assert not resumed.paused
    await runner.run_once()
    assert await tasks_of(store) == []
    await client.schedules.pause("s")
    await settled_before(store, hours=3)
    assert (await client.schedules.resume("s")).next_at is not None
    await runner.run_once()
    assert await tasks_of(store) == []


async def test_missed_ones_are_left_out_made_up_for_or_reduced_to_one(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    for schedule_id, missed, fired in (("a", "skip", 0), ("b", "latest", 1), ("c", "all", 4)):
        options: dict[str, Any] = {"missed": missed, "max_missed": 4, "session_id": schedule_id}
        # Its occurrences are half an hour off.
        half = datetime.fromtimestamp((await clock_ms(store.base.scripts)) / 1000 - 1_800, UTC)
        await client.schedules.save(hourly(schedule_id, anchor=half, **options))
        await settled_before(store, schedule_id, hours=6)
        await runner.run_once()
        found = await client.schedules.get(schedule_id)
        assert found.fired == fired
        assert found.skipped_why == "missed"
        assert len(await tasks_of(store, schedule_id)) == fired


async def test_an_occurrence_is_left_out_while_the_last_task_is_unfinished(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly(overlap="skip", missed="latest"))

    async def look() -> tuple[int, str | None]:
        await settled_before(store)
        await runner.run_once()
        found = await client.schedules.get("s")
        return found.fired, found.skipped_why

    assert await look() == (1, None)
    assert await look() == (1, "running")
    (task,) = await tasks_of(store)
    await client.cancel(SESSION, task)
    assert await look() == (2, "running")


async def test_a_trigger_is_one_task_for_each_key_in_the_session_of_the_first_call(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly(session_id="at-{time}", input=1), paused=True)
    first = await client.schedules.trigger("s", idempotency_key="k")
    assert await client.schedules.trigger("s", idempotency_key="k") == first
    # Also under another definition, and when the task has been dropped.
    await client.schedules.save(hourly(session_id="other"))
    await store.clear_session(first.session_id)
    assert await client.schedules.trigger("s", idempotency_key="k") == first
    assert await tasks_of(store, first.session_id) == []
    others = [await client.schedules.trigger("s") for _ in range(2)]
    assert await tasks_of(store, "other") == sorted(each.task_id for each in others)
    await runner.run_once()
    found = await client.schedules.get("s")
    assert (found.fired, found.last) == (0, None)
    for key in ("", "x" * 201, 7):
        with pytest.raises(InvalidField):
            await client.schedules.trigger("s", idempotency_key=key)  # type: ignore[arg-type]


async def test_triggers_of_many_callers_at_once_are_a_task_each_and_a_few_changes(
    store: RedisStateStore, client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.schedules.save(hourly(), paused=True)
    save, saves = ScheduleStore.save, list[str]()

    async def counted(self: ScheduleStore, schedule_id: str, *given: Any, **options: Any) -> Any:
        saves.append(schedule_id)
        return await save(self, schedule_id, *given, **options)

    monkeypatch.setattr(ScheduleStore, "save", counted)
    async with client_of(store) as other:
        keys = [f"k{n}" for n in range(75)]
        fired = await asyncio.gather(
            *(each.schedules.trigger("s") for each in (client, other) for _ in keys),
            *(client.schedules.trigger("s", idempotency_key=key) for key in (*keys, *keys)),
        )
    assert len(saves) < len(fired)
    assert await tasks_of(store) == sorted({each.task_id for each in fired})
    assert len({each.task_id for each in fired}) == 3 * len(keys)
    left = await ScheduleStore(store.base).load("s")
    assert left is not None
    assert left.outbox == ()
    with pytest.raises(ScheduleUnknown):
        await asyncio.gather(*(client.schedules.trigger("none") for _ in range(3)))


async def test_a_trigger_that_is_given_up_holds_up_no_other(
    store: RedisStateStore, client: TaskClient
) -> None:
    await client.schedules.save(hourly(), paused=True)
    given_up, other = (asyncio.ensure_future(client.schedules.trigger("s")) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await other).task_id in await tasks_of(store)
    assert given_up.cancelled()


async def test_a_worker_submits_what_a_caller_that_died_has_triggered_as_it_was_then(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly(input="then"))
    await runner.run_once()
    (recorded,) = await client.schedules._record_triggers("s", ["k"])
    assert recorded.held_from_ms is not None
    now_ms = await clock_ms(store.base.scripts)
    assert await looked_at_in_ms(store, now_ms) <= HOLD_MS
    await client.schedules.save(hourly(input="edited", handler="other"))
    await look_now(store)
    await runner.run_once()
    assert await tasks_of(store) == [recorded.task.task_id]
    view = await client.inspect(SESSION, recorded.task.task_id)
    assert view is not None
    assert view.handler == "who"
    stored = await ScheduleStore(store.base).load("s")
    assert stored is not None
    assert stored.outbox == ()
    # The caller was not dead after all.
    again = await client.schedules.trigger("s", idempotency_key="k")
    assert again.task_id == recorded.task.task_id
    assert len(await queued(store)) == 1


async def test_a_trigger_that_took_too_long_leaves_its_task_to_a_worker(
    store: RedisStateStore,
    client: TaskClient,
    runner: ScheduleRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await client.schedules.save(hourly())
    await runner.run_once()
    with monkeypatch.context() as late:
        late.setattr("redis_state.worker.schedules.submit.HOLD_MS", 0)
        made = await client.schedules.trigger("s", idempotency_key="k")
    assert await tasks_of(store) == []
    await look_now(store)
    await runner.run_once()
    assert await tasks_of(store) == [made.task_id]


async def test_whoever_was_stopped_does_not_submit_what_is_over_since(
    store: RedisStateStore,
) -> None:
    queue = Queue(store, name=queue_of(store.settings))
    submitter = Submitter(store, queue)
    task, job = PlannedTask(SESSION, "t", 1), hourly().job()
    now_ms = await clock_ms(store.base.scripts)
    with pytest.raises(LostRace):
        await submitter.submit([task], job, held_from_ms=now_ms - HOLD_MS)
    assert await tasks_of(store) == []
    assert await submitter.submit([task], job, held_from_ms=now_ms) == [True]
    assert await submitter.submit([task], job, held_from_ms=now_ms) == [False]
    await queue.aclose()


async def test_a_backfill_submits_what_has_no_task_in_order_and_once(
    store: RedisStateStore, client: TaskClient
) -> None:
    await client.schedules.save(hourly(), paused=True)
    now = datetime.fromtimestamp(await clock_ms(store.base.scripts) / 1000, UTC)
    since, until = now - 120 * HOUR, now - 60 * HOUR
    planned = await client.schedules.backfill("s", since, until, dry_run=True)
    assert [each.state for each in planned] == ["missing"] * 60
    assert await tasks_of(store) == []
    moments = [each.at for each in planned if each.at is not None]
    assert moments == sorted(moments)
    assert all(since <= moment < until for moment in moments)
    # From a moment that is one, and before one.
    part = await client.schedules.backfill("s", moments[0], moments[2])
    assert [each.at for each in part] == moments[:2]
    done = await client.schedules.backfill("s", since, until)
    assert [each.state for each in done] == ["exists"] * 2 + ["submitted"] * 58
    assert await tasks_of(store) == sorted(each.task_id for each in planned)
    assert len(await queued(store)) == 60
    # What is to come is not filled.
    late = await client.schedules.backfill("s", now - HOUR, now + 9 * HOUR, dry_run=True)
    assert len(late) in (1, 2)
    for refused in (
        client.schedules.backfill("s", since, until, limit=59),
        client.schedules.backfill("s", since.replace(tzinfo=None), until),
        client.schedules.backfill("s", since, until, limit=0),
    ):
        with pytest.raises(InvalidField):
            await refused


async def test_every_key_has_a_lifetime_that_a_look_renews(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly())
    keys, scripts = store.base.keys, store.base.scripts
    names = [keys.schedule("s"), keys.schedules(), keys.schedules_due()]
    for name in names:
        await ask(scripts, "PEXPIRE", name, MINUTE_MS)
    await look_now(store)
    await runner.run_once()
    renewed = await lives(scripts, *names)
    day_ms = 24 * 60 * MINUTE_MS
    assert all(399 * day_ms < life <= 400 * day_ms for life in renewed)
    # In the index too, from which what has expired is taken out.
    expiry_us = float(await ask(scripts, "ZSCORE", keys.schedules(), "s"))
    assert expiry_us / 1000 - await clock_ms(scripts) > 399 * day_ms


async def test_one_that_has_ended_leaves_the_list_of_what_is_due(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    now = datetime.fromtimestamp(await clock_ms(store.base.scripts) / 1000, UTC)
    ended = await client.schedules.save(hourly(end=now - HOUR))
    assert ended.next_at is None
    await runner.run_once()

    async def gone() -> bool:
        await runner.run_once()
        due = store.base.keys.schedules_due()
        return await ask(store.base.scripts, "ZSCORE", due, "s") is None

    await eventually(gone, "it is looked at no more")
    assert [each.next_at for each in await client.schedules.list()] == [None]
    # A later end brings it back.
    await client.schedules.save(hourly(end=now + 9 * HOUR))
    assert await runner.run_once() == 1


async def test_an_edit_pause_or_delete_while_a_worker_looks_is_not_undone(
    store: RedisStateStore, client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Submitter.submit
    async with running(store) as runner:
        for change in ("edit", "pause", "delete"):
            await client.schedules.save(hourly(change, session_id=change, grace=HOUR, missed="all"))
            await settled_before(store, change)

            async def meanwhile(*given: Any, change: str = change, **options: Any) -> Any:
                monkeypatch.setattr(Submitter, "submit", submit)
                if change == "edit":
                    await client.schedules.save(hourly(change, session_id="new", handler="new"))
                elif change == "pause":
                    await client.schedules.pause(change)
                else:
                    await client.schedules.delete(change)
                return await submit(*given, **options)

            monkeypatch.setattr(Submitter, "submit", meanwhile)
            await runner.run_once()
            # What was decided before is submitted, once, as it was then.
            assert len(await tasks_of(store, change)) == 1
            await look_now(store, change)
            await runner.run_once()
            assert len(await tasks_of(store, change)) == 1
        assert (await client.schedules.get("edit")).schedule.handler == "new"
        assert (await client.schedules.get("edit")).fired == 1
        assert (await client.schedules.get("pause")).paused
        with pytest.raises(ScheduleUnknown):
            await client.schedules.get("delete")


async def test_a_schedule_that_cannot_be_read_does_not_hold_up_the_others(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    for schedule_id in ("bad", "good"):
        await client.schedules.save(hourly(schedule_id, grace=HOUR))
        await settled_before(store, schedule_id)
    await ask(store.base.scripts, "HSET", store.base.keys.schedule("bad"), "definition", "{}")
    assert await runner.run_once() == 2
    assert (await client.schedules.get("good")).fired == 1
    assert [each.schedule.schedule_id for each in await client.schedules.list()] == ["good"]
    assert [each.place for each in await store.base.unreadable("schedules")] == ["schedule bad"]
    # It can be mended by saving it again.
    assert await client.schedules.delete("bad")
    assert (await client.schedules.save(hourly("bad"))).fired == 0


async def test_a_schedule_whose_record_cannot_be_read_stays_on_the_list_of_what_is_due(
    store: RedisStateStore,
    client: TaskClient,
    runner: ScheduleRunner,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await client.schedules.save(hourly(grace=HOUR))
    await settled_before(store)
    ours = store.base.keys.schedule("s")
    after = await ask(store.base.scripts, "HGET", ours, "after")
    await ask(store.base.scripts, "HSET", ours, "after", "x")
    assert await runner.run_once() == 1
    assert "'s' cannot be swept" in caplog.text
    assert await looked_at_in_ms(store, await clock_ms(store.base.scripts)) <= MINUTE_MS
    for call in ("get", "trigger", "pause"):
        with pytest.raises(CorruptState):
            await getattr(client.schedules, call)("s")
    # Such as a worker of a later version, which can read it.
    await ask(store.base.scripts, "HSET", ours, "after", after)
    await look_now(store)
    await runner.run_once()
    assert (await client.schedules.get("s")).fired == 1


async def test_a_schedule_whose_key_is_of_another_type_is_named(
    store: RedisStateStore, client: TaskClient
) -> None:
    await client.schedules.save(hourly())
    ours = store.base.keys.schedule("s")
    await ask(store.base.scripts, "DEL", ours)
    await ask(store.base.scripts, "SET", ours, "x")
    with pytest.raises(CorruptState, match="schedule"):
        await client.schedules.get("s")
    await ask(store.base.scripts, "DEL", ours)


async def test_a_worker_whose_clock_is_wrong_does_as_the_others(
    store: RedisStateStore,
    client: TaskClient,
    runner: ScheduleRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await client.schedules.save(hourly(grace=HOUR))
    await settled_before(store)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 400 * 86_400)
    await runner.run_once()
    found = await client.schedules.get("s")
    assert found.fired == 1
    assert found.next_at is not None
    assert found.next_at.timestamp() < real() + 2 * 3_600


@pytest.mark.role("any", why="it sets the server's clock back")
async def test_a_server_s_clock_that_is_set_back_brings_no_occurrence_back(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    made = await client.schedules.save(hourly(missed="all"))
    await settled_before(store)
    await runner.run_once()
    assert (await client.schedules.get("s")).fired == 1
    # As a server leaves it whose clock was three hours ahead.
    scripts, due = store.base.scripts, store.base.keys.schedules_due()
    ahead_ms = 3 * 60 * MINUTE_MS
    await ask(scripts, "HINCRBY", store.base.keys.schedule("s"), "after", ahead_ms)
    await ask(scripts, "ZINCRBY", due, ahead_ms, "s")
    await ask(scripts, "INCRBY", f"{due}:clock", ahead_ms)

    async def looked() -> bool:
        return await runner.run_once() == 1

    await eventually(looked, "it is looked at by the new time")
    found = await client.schedules.get("s")
    assert found.fired == 1
    assert made.next_at is not None
    assert found.next_at == made.next_at + 3 * HOUR
    # A clock that was wrong by more than a day has said nothing.
    await ask(scripts, "HINCRBY", store.base.keys.schedule("s"), "after", 30 * 8 * ahead_ms)
    await look_now(store)
    await runner.run_once()
    assert (await client.schedules.get("s")).next_at == made.next_at


def test_a_copy_of_a_schedule_is_checked_too() -> None:
    with pytest.raises(InvalidField):
        replace(hourly(), cron="* * * * *")
    assert isinstance(replace(hourly(), priority=1), Schedule)


async def test_settings_name_the_lifetime(settings: Settings) -> None:
    short = settings.model_copy(update={"schedules_ttl": timedelta(hours=2)})
    async with RedisStateStore(short) as store, client_of(store) as client:
        await client.schedules.save(hourly())
        (life,) = await lives(store.base.scripts, store.base.keys.schedule("s"))
        assert 0 < life <= 2 * 60 * MINUTE_MS
