"""Time that a test skips: everything that the library decides by time happens, in order."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

import stamina
from pydantic import SecretStr

from redis_state import Settings
from redis_state.embedded import server as embedded
from redis_state.errors import ConfigError, InvalidField, ReceiveTimeout, TaskFailed
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.testing.pool import OpenPool, Pool, open_pools
from redis_state.worker import (
    AgentWorker,
    Escalate,
    Rate,
    RetryPolicy,
    Schedule,
    TaskContext,
    retried,
)
from redis_state.worker.pool.heartbeat import Heartbeat
from redis_state.worker.queue.jobs.job import Job, QueueState
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.model import Overlap
from tests.support.servers.embedded import processes_with
from tests.support.servers.faults import short_directory

pytestmark = pytest.mark.worker

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Of a task that a busy machine holds up, time would pass before it ran.
_PATIENT_S = 60.0


def _of_production(tmp_path: Path) -> dict[str, str]:
    """Give the variables of a shell that has those of production."""
    return {
        "REDIS_STATE_ARCHIVE_URL": (tmp_path / "archive").as_uri(),
        "REDIS_STATE_CLAIM_CHECK_URL": (tmp_path / "claims").as_uri(),
        "REDIS_STATE_CLAIM_CHECK_BYTES": "1",
        "REDIS_STATE_FINISHED_TASK_TTL": "PT1M",
        "REDIS_STATE_QUEUE_URL": "redis://production:6379/1",
    }


def _binaries() -> list[Any]:
    """List the servers of this machine: the one that tests take, and the packaged one.

    The second only in `make test-full`.
    """
    found: dict[Path, None] = {}
    for find in (embedded.find_server_binary, embedded._packaged_binary):
        try:
            binary = find()
        except ConfigError:
            continue
        if binary is not None:
            found[binary] = None
    return [
        pytest.param(binary, id=binary.name, marks=[pytest.mark.full] * (number > 0))
        for number, binary in enumerate(found)
    ]


@pytest.fixture(params=_binaries())
async def open_pool(request: pytest.FixtureRequest) -> AsyncIterator[OpenPool]:
    """Give what opens pools on a server of each kind, and check what they leave."""
    server = await asyncio.to_thread(partial(embedded.start_embedded, None, binary=request.param))
    try:
        async with open_pools(server.url) as opened:

            async def open_patient(worker: Any, *, patience_s: float = _PATIENT_S) -> Pool:
                return await opened(worker, patience_s=patience_s)

            yield open_patient
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_pool_that_is_cancelled_while_its_server_starts_leaves_none(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    tmp_path_factory.getbasetemp()  # where it belongs, before the temporary root changes
    with short_directory() as root:

        def left() -> list[Path]:
            return [*root.iterdir()]

        monkeypatch.setattr(tempfile, "tempdir", str(root))
        entering = asyncio.create_task(Pool({}).__aenter__())
        await eventually(left, "the server of the pool is being started")
        for _ in range(times):
            assert not entering.done()
            entering.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await entering
        if times > 1:
            # Who is cancelled again waits no more.
            await eventually(
                lambda: not left() and not processes_with(str(root)), "the server is stopped"
            )
        assert processes_with(str(root)) == []
        assert left() == []


class Recorder:
    """Records what handlers did, and when by the pool's clock."""

    def __init__(self) -> None:
        self.records: list[tuple[str, datetime]] = []
        self.pool: Pool | None = None

    async def record(self, what: str) -> None:
        assert self.pool is not None
        self.records.append((what, await self.pool.now()))

    def what(self) -> list[str]:
        return [what for what, _ in self.records]

    def after(self, start: datetime) -> list[tuple[str, int]]:
        """List what was recorded, each with the whole hours since a moment."""
        return [(what, (at - start) // HOUR) for what, at in self.records]


async def test_a_sleep_of_days_ends_when_they_are_skipped_and_not_before(
    open_pool: OpenPool,
) -> None:
    async def remind(ctx: TaskContext) -> str:
        await ctx.sleep(timedelta(days=3))
        return f"reminded {ctx.input}"

    pool = await open_pool({"remind": remind})
    task = await pool.client.submit("remind", "ann", session_id="s")
    await pool.skip(timedelta(days=2, hours=23))
    state = await pool.client.get("s", task)
    assert state is not None
    assert state.status is TaskStatus.PAUSED
    await pool.skip(HOUR)
    assert await pool.client.result("s", task) == "reminded ann"


async def test_ids_and_names_may_be_odd(open_pool: OpenPool) -> None:
    session, name = "a{b}:*?[c]\n\\' \ud800", "n{a}:*'\ud800"

    async def work(ctx: TaskContext) -> str:
        await ctx.sleep(DAY, name=name)
        return "slept"

    pool = await open_pool({"work": work})
    task = await pool.client.submit(
        "work", None, session_id=session, task_id=name, limit_key="k:*{}"
    )
    await pool.skip(DAY)
    assert await pool.client.result(session, task) == "slept"


async def test_a_loop_of_sleeps_ends_in_one_skip_and_stops_at_each(open_pool: OpenPool) -> None:
    recorder = Recorder()

    async def loop(ctx: TaskContext) -> int:
        for hour in range(10):
            await ctx.step(f"note {hour}", recorder.record, str(hour))
            await ctx.sleep(HOUR)
        return 10

    recorder.pool = pool = await open_pool({"loop": loop})
    task = await pool.client.submit("loop", None, session_id="s")
    start = await pool.now()
    await pool.skip(10 * HOUR + timedelta(minutes=1))
    assert await pool.client.result("s", task) == 10
    assert recorder.after(start) == [(str(hour), hour) for hour in range(10)]
    assert timedelta(0) <= await pool.now() - start - 10 * HOUR < HOUR


async def test_children_sleep_too_and_all_end_in_the_order_of_their_times(
    open_pool: OpenPool,
) -> None:
    recorder = Recorder()

    async def child(ctx: TaskContext) -> str:
        await ctx.sleep(ctx.input * HOUR)
        await ctx.step("note", recorder.record, f"child {ctx.input}")
        return str(ctx.input)

    async def parent(ctx: TaskContext) -> list[str]:
        children = [await ctx.spawn("child", hours) for hours in (5, 2, 9)]
        ended = [await ctx.join(one) for one in children]
        await ctx.step("note", recorder.record, "parent")
        await ctx.sleep(DAY)
        return ended

    recorder.pool = pool = await open_pool({"child": child, "parent": parent})
    task = await pool.client.submit("parent", None, session_id="s")
    await pool.skip(10 * HOUR)
    assert recorder.what() == ["child 2", "child 5", "child 9", "parent"]
    assert await pool.result("s", task) == ["5", "2", "9"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_pause_ends_at_its_deadline_unless_it_was_decided(
    open_pool: OpenPool, *, approved: bool
) -> None:
    async def ask(ctx: TaskContext) -> str:
        decision = await ctx.approval("Send?", {}, timeout=timedelta(days=7), on_timeout="reject")
        return f"{decision.approved} by {decision.actor}"

    pool = await open_pool({"ask": ask})
    task = await pool.client.submit("ask", None, session_id="s")
    await pool.skip(timedelta(days=6))
    (pause,) = await pool.client.pauses()
    if approved:
        await pool.client.approve(pause.pause_id or "", actor="ann")
    await pool.skip(timedelta(days=1, minutes=1))
    ended = await pool.client.result("s", task)
    assert ended == ("True by ann" if approved else "False by timeout")


async def test_a_pause_escalates_at_its_times(open_pool: OpenPool) -> None:
    async def ask(ctx: TaskContext) -> str:
        rules = [Escalate(DAY, ("lead",)), Escalate(2 * DAY, ("boss",))]
        decision = await ctx.pause(
            "go", of=["ann"], escalate=rules, timeout=timedelta(days=3), on_timeout="reject"
        )
        return f"{decision.approved}"

    pool = await open_pool({"ask": ask})
    task = await pool.client.submit("ask", None, session_id="s")
    seen: list[list[bool]] = []
    for by in (HOUR, DAY, DAY):
        await pool.skip(by)
        listed = [await pool.client.pauses(decider=name) for name in ("ann", "lead", "boss")]
        seen.append([bool(each) for each in listed])
    assert seen == [[True, False, False], [True, True, False], [True, True, True]]
    await pool.skip(DAY)
    assert await pool.client.result("s", task) == "False"


async def test_delayed_tasks_begin_at_their_times(open_pool: OpenPool) -> None:
    recorder = Recorder()

    async def work(ctx: TaskContext) -> None:
        await recorder.record(ctx.input)

    recorder.pool = pool = await open_pool({"work": work})
    start = await pool.now()
    submit = partial(pool.client.submit, "work", session_id="s")
    await submit("late", delay=timedelta(days=30))
    await submit("soon", at=start + 5 * HOUR + timedelta(minutes=1))
    await submit("keyed", delay=8 * HOUR + timedelta(minutes=1), limit_key="k")
    await pool.skip(DAY)
    assert recorder.after(start) == [("soon", 5), ("keyed", 8)]
    await pool.skip(timedelta(days=30))
    assert recorder.what() == ["soon", "keyed", "late"]


@pytest.mark.parametrize(
    ("day", "hours"),
    [
        ((2027, 3, 28), 23),
        ((2027, 10, 31), 25),
        pytest.param((2027, 6, 1), 24, marks=pytest.mark.full),
    ],
)
async def test_an_hourly_schedule_fires_each_hour_of_a_day(
    open_pool: OpenPool, day: tuple[int, int, int], hours: int
) -> None:
    """Also of the days on which the clocks are changed."""
    fired: list[str] = []

    async def work(ctx: TaskContext) -> None:
        fired.append(ctx.task.task_id)

    zone = ZoneInfo("Europe/Berlin")
    pool = await open_pool({"work": work})
    midnight = datetime(*day, tzinfo=zone)
    await pool.skip(midnight - timedelta(minutes=30) - await pool.now())
    for name, cron in (("hourly", "0 * * * *"), ("daily", "30 2 * * *")):
        schedule = Schedule(
            schedule_id=name, handler="work", session_id=name, cron=cron, timezone=zone.key
        )
        await pool.client.schedules.save(schedule)
    end = datetime(*day, hour=23, minute=59, tzinfo=zone)
    await pool.skip(end - await pool.now())
    views = {view.schedule.schedule_id: view for view in await pool.client.schedules.list()}
    assert views["hourly"].fired == hours
    assert views["hourly"].skipped_at is None
    last = views["hourly"].last
    assert last is not None
    assert last.at == datetime(*day, hour=23, tzinfo=zone)
    assert len(fired) == hours + views["daily"].fired
    hourly = [task for task in fired if "hourly" in task]
    assert hourly == sorted(hourly)
    assert len(set(hourly)) == hours


async def test_an_interval_fires_by_its_policy(open_pool: OpenPool) -> None:
    recorder = Recorder()

    async def work(ctx: TaskContext) -> None:
        await recorder.record(ctx.input)
        if ctx.input == "slow":
            await ctx.sleep(timedelta(minutes=150))

    recorder.pool = pool = await open_pool({"work": work})
    overlaps: dict[str, Overlap] = {"fast": "allow", "slow": "skip"}
    for name, overlap in overlaps.items():
        schedule = Schedule(
            schedule_id=name, handler="work", session_id=name, input=name, every=HOUR,
            overlap=overlap,
        )  # fmt: skip
        await pool.client.schedules.save(schedule)
    await pool.skip(timedelta(hours=9))
    assert recorder.what().count("fast") == 9
    # The first run notes a task's begin again when it resumes: of three each, two are skipped.
    view = await pool.client.schedules.get("slow")
    assert view.fired == 3
    assert view.skipped_why == "running"


async def test_a_rate_lets_as_many_go_as_it_says(open_pool: OpenPool) -> None:
    recorder = Recorder()

    async def call(ctx: TaskContext) -> None:
        await ctx.take("model", Rate(2, HOUR))
        await recorder.record(ctx.input)

    recorder.pool = pool = await open_pool({"call": call})
    start = await pool.now()
    tasks = [await pool.client.submit("call", str(n), session_id=f"s{n}") for n in range(6)]
    await pool.skip(timedelta(minutes=1))
    assert len(recorder.records) == 2
    await pool.skip(timedelta(hours=3))
    assert len(recorder.records) == 6
    assert [hours for _, hours in recorder.after(start)] == [0, 0, 0, 1, 1, 2]
    assert len(tasks) == 6


async def test_the_rate_of_a_key_lets_as_many_begin_as_it_says(open_pool: OpenPool) -> None:
    recorder = Recorder()

    async def work(ctx: TaskContext) -> None:
        await recorder.record(ctx.input)

    recorder.pool = pool = await open_pool({"work": work})
    await pool.client.queues.limit("tasks", rate=Rate(1, HOUR))
    start = await pool.now()
    for n in range(4):
        await pool.client.submit("work", str(n), session_id="s", limit_key="k")
    await pool.skip(timedelta(hours=3, minutes=1))
    assert recorder.after(start) == [(str(n), n) for n in range(4)]


async def test_a_job_of_a_task_that_has_ended_takes_nothing_of_the_rate_of_its_key(
    open_pool: OpenPool,
) -> None:
    recorder = Recorder()

    async def work(ctx: TaskContext) -> None:
        await recorder.record(ctx.input)

    recorder.pool = pool = await open_pool({"work": work})
    await pool.client.queues.limit("tasks", rate=Rate(1, HOUR))
    start = await pool.now()
    ended = await pool.client.submit("work", "0", session_id="s", limit_key="k")
    view = await pool.store.tasks.look("s", ended)
    assert view is not None
    await pool.skip(timedelta(0))
    # As a sweeper does that has looked before the task began.
    queue = Queue(pool.store, name="tasks")
    assert await queue.ensure_queued([Job.of(view)], patience_ms=0) == [QueueState.QUEUED]
    await pool.client.submit("work", "1", session_id="s", limit_key="k")
    await pool.skip(timedelta(hours=2, minutes=1))
    await queue.aclose()
    assert recorder.after(start) == [("0", 0), ("1", 1)]


async def test_a_step_is_retried_without_waiting(open_pool: OpenPool) -> None:
    tries: list[int] = []

    def fails() -> str:
        tries.append(1)
        if len(tries) < 5:
            raise OSError("no")
        return "yes"

    patient = RetryPolicy(attempts=5, wait_initial_s=3600, wait_max_s=36_000, timeout_s=None)

    async def work(ctx: TaskContext) -> str:
        return str(await ctx.step("work", retried(fails, patient)))

    pool = await open_pool({"work": work})
    task = await pool.client.submit("work", None, session_id="s")
    await pool.skip(timedelta(0))
    assert await pool.client.result("s", task) == "yes"
    assert len(tries) == 5


@pytest.mark.parametrize("sent", [True, False])
async def test_a_wait_for_a_message_ends_at_its_timeout_or_with_it(
    open_pool: OpenPool, *, sent: bool
) -> None:
    async def wait(ctx: TaskContext) -> Any:
        try:
            return await ctx.receive("go", timeout=2 * DAY)
        except ReceiveTimeout:
            return "nobody"

    pool = await open_pool({"wait": wait})
    task = await pool.client.submit("wait", None, session_id="s")
    await pool.skip(DAY)
    if sent:
        await pool.client.signal("s", task, "go", "ann")
    await pool.skip(timedelta(days=1, minutes=1))
    assert await pool.client.result("s", task) == ("ann" if sent else "nobody")


async def test_what_is_kept_ages_with_the_clock(open_pool: OpenPool) -> None:
    async def quick(ctx: TaskContext) -> str:
        return "done"

    async def long(ctx: TaskContext) -> str:
        await ctx.sleep(timedelta(days=80))
        return "done"

    pool = await open_pool({"quick": quick, "long": long})
    kept = pool.settings.finished_task_ttl
    quick_task = await pool.client.submit("quick", None, session_id="s")
    long_task = await pool.client.submit("long", None, session_id="t")
    await pool.skip(kept - DAY)
    assert await pool.client.result("s", quick_task) == "done"
    await pool.skip(2 * DAY)
    assert await pool.client.get("s", quick_task) is None
    assert await pool.result("t", long_task) == "done"


@pytest.mark.parametrize("heartbeat", ["loop", "thread"])
async def test_a_running_handler_keeps_its_lease_while_time_is_skipped(
    open_pool: OpenPool, heartbeat: Heartbeat
) -> None:
    opened, begun = asyncio.Event(), list[str]()

    async def block(ctx: TaskContext) -> str:
        begun.append(ctx.task.task_id)
        await opened.wait()
        return await ctx.step("after", lambda: "kept its lease")

    async def nap(ctx: TaskContext) -> str:
        await ctx.sleep(DAY)
        return "slept"

    handlers = {"block": block, "nap": nap}
    pool = await open_pool(AgentWorker(handlers, lease_s=5, heartbeat=heartbeat), patience_s=0.1)
    # Another worker of the namespace, which sweeps by itself as one of another process does.
    other = asyncio.create_task(
        AgentWorker(handlers, pool.settings, lease_s=5).serve(handle_signals=False)
    )
    task = await pool.client.submit("block", None, session_id="s")
    nap_task = await pool.client.submit("nap", None, session_id="t")
    await eventually(lambda: begun, "it runs")
    for _ in range(20):
        await pool.skip(HOUR)
    await pool.skip(timedelta(days=6))
    assert await pool.client.result("t", nap_task) == "slept"
    opened.set()
    assert await pool.client.result("s", task, timeout_s=30) == "kept its lease"
    assert begun == [task]
    state = await pool.store.tasks.look("s", task)
    assert state is not None
    assert (state.attempts, state.crashes) == (1, 0)
    other.cancel()
    await asyncio.wait({other})


async def test_a_result_takes_as_much_time_as_its_task_needs(open_pool: OpenPool) -> None:
    async def nap(ctx: TaskContext) -> str:
        await ctx.sleep(timedelta(days=ctx.input))
        return "slept"

    async def ask(ctx: TaskContext) -> None:
        await ctx.pause("go")

    pool = await open_pool({"nap": nap, "ask": ask})
    start = await pool.now()
    task = await pool.client.submit("nap", 4, session_id="s")
    assert await pool.result("s", task) == "slept"
    assert timedelta(0) <= await pool.now() - start - timedelta(days=4) < HOUR
    long = await pool.client.submit("nap", 4, session_id="s")
    with pytest.raises(TimeoutError, match="has not ended"):
        await pool.result("s", long, within=DAY)
    asked = await pool.client.submit("ask", None, session_id="s")
    with pytest.raises(TaskFailed, match="not resolved"):
        await pool.result("s", asked)
    await pool.client.queues.pause("tasks")
    start = await pool.now()
    waits = await pool.client.submit("nap", 1, session_id="s")
    with pytest.raises(TimeoutError, match="has not ended"):
        await pool.result("s", waits)
    assert await pool.now() - start < HOUR


@pytest.mark.parametrize("by", [timedelta(seconds=-1), timedelta(days=3651), 5, None])
async def test_what_is_no_time_to_skip_is_refused(open_pool: OpenPool, by: Any) -> None:
    pool = await open_pool({})
    with pytest.raises(InvalidField, match="by: needs a timedelta"):
        await pool.skip(by)


async def test_a_paused_queue_holds_no_time_up(open_pool: OpenPool) -> None:
    async def work(ctx: TaskContext) -> str:
        return "done"

    pool = await open_pool({"work": work}, patience_s=600)
    await pool.client.queues.pause("tasks")
    task = await pool.client.submit("work", None, session_id="s")
    start = await pool.now()
    await pool.skip(timedelta(days=2))
    assert await pool.now() - start >= timedelta(days=2)
    await pool.client.queues.resume("tasks")
    await pool.skip(timedelta(0))
    assert await pool.client.result("s", task) == "done"


async def test_time_starts_at_the_servers_and_only_this_namespace_moves(
    open_pool: OpenPool,
) -> None:
    pool, other = await open_pool({}), await open_pool({})
    assert abs(await pool.now() - await other.now()) < HOUR
    assert abs(await pool.now() - datetime.now(UTC)) < HOUR
    await pool.skip(DAY)
    assert await pool.now() - await other.now() > 23 * HOUR


async def test_of_two_pools_the_last_one_open_lets_attempts_wait_again() -> None:
    one, two = Pool({"h": nothing}), Pool({"h": nothing})
    assert not stamina.is_testing()
    await one.__aenter__()
    await two.__aenter__()
    await one.__aexit__()
    assert stamina.is_testing()
    await two.__aexit__()
    assert not stamina.is_testing()


async def nothing(_: TaskContext) -> None:
    """Do nothing."""


async def test_a_pool_uses_nothing_of_the_environment(
    open_pool: OpenPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(ctx: TaskContext) -> Any:
        return ctx.input

    for name, value in _of_production(tmp_path).items():
        monkeypatch.setenv(name, value)
    own = (tmp_path / "own").as_uri()
    # What its program chooses counts, beside the same variables.
    given = [None, Settings(), Settings(archive_url=SecretStr(own), updates_ttl=DAY)]
    for settings in given:
        pool = await open_pool(AgentWorker({"echo": echo}, settings=settings))
        task = await pool.client.submit("echo", "x" * 100, session_id="s")
        assert await pool.client.result("s", task, timeout_s=60) == "x" * 100
        assert pool.settings.finished_task_ttl == 7 * DAY
        assert pool.settings.claim_check_url is None
        archive = pool.settings.archive_url
        assert (None if archive is None else archive.get_secret_value()) == (
            own if settings is given[2] else None
        )
        assert pool.settings.updates_ttl == (DAY if settings is given[2] else 7 * DAY)
    assert {*await asyncio.to_thread(os.listdir, tmp_path)} <= {"own"}


async def test_a_pool_is_given_settings_that_stand_in_for_a_variable_that_cannot_be_used(
    open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_STATE_GUARANTEE", "any")
    settings = Settings(guarantee="durable", updates_ttl=HOUR)
    pool = await open_pool(AgentWorker({}, settings=settings))
    assert (pool.settings.guarantee, pool.settings.updates_ttl) == ("fast", HOUR)
