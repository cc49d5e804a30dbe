"""What is forgotten leaves nothing: every name and value of the server is searched for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.agents import SessionStore
from redis_state.erasure import Eraser
from redis_state.erasure import session as erasure_of_session
from redis_state.erasure.session import SessionErasure
from redis_state.erasure.walking import KeyWalk
from redis_state.errors import SessionRunning
from redis_state.memory.keys import MemoryKey, agent_messages, heard_steering
from redis_state.models import TaskStatus, Trajectory, UpdateType
from redis_state.models.erasure import ErasureReport
from redis_state.stores.base import Base
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.testing import eventually
from redis_state.transport.keys import graph_shard, graph_task
from redis_state.worker import Rate, Schedule, TaskClient, TaskContext
from redis_state.worker.queue.jobs.job import Job, QueueState
from redis_state.worker.queue.jobs.job_format import payload_key
from tests.support.agents.sessions import fresh
from tests.support.erasure import fill, left_over, nothing_is_left, remains
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.processes.pools import pool
from tests.support.samples import admin, event
from tests.support.servers.faults import start_process

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]

ODD = ["s-1-odd", "a:b {x}*", "ü\0\\n", "\ud800lone", "x" * 300]


async def test_an_entry_is_removed_from_a_list_that_shrinks_meanwhile(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before it is removed between two pages: by rank, that leaves it out."""
    index, ours = store.base.keys.dead_tasks(), 40
    monkeypatch.setattr(erasure_of_session, "_PAGE", 50)
    for first in range(0, 2_000, 500):
        pairs = [part for n in range(first, first + 500) for part in (2 * n, f'["s","{n}"]')]
        await admin(store, "ZADD", index, *pairs)
    mine = [part for n in range(ours) for part in (2_001, f'["mine","{n}"]')]
    await admin(store, "ZADD", index, *mine)
    removed = 0

    async def shrink() -> None:
        nonlocal removed
        while removed < 900:  # those that stand before
            removed += await admin(store, "ZREMRANGEBYRANK", index, 0, 4)

    shrinking = asyncio.create_task(shrink())
    try:
        await eventually(lambda: removed > 0, "the list shrinks")
        await SessionErasure(store)._remove_beginning(index, b'["mine",')
    finally:
        shrinking.cancel()
        await asyncio.wait({shrinking})
    left: list[bytes] = await admin(store, "ZRANGE", index, 0, -1)
    assert len(left) >= 1_000
    assert not [each for each in left if b"mine" in each]
    await admin(store, "DEL", index)


async def work(ctx: TaskContext) -> Any:
    """Have a task of each thing that a task may have."""
    await ctx.step("one", lambda: {"of": ctx.task.session_id})
    await ctx.emit(UpdateType.PROGRESS, {"of": ctx.task.session_id})
    if ctx.input == "child":
        return "child"
    await ctx.spawn("work", "child")
    return (await ctx.approval("go on?", {"of": ctx.task.session_id})).approved


async def test_the_names_of_all_keys_are_read_once_for_each_session_of_a_user(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, of_sessions = list[set[str]](), KeyWalk.of_sessions

    def counted(self: KeyWalk, sessions: Collection[str]) -> Any:
        walks.append(set(sessions))
        return of_sessions(self, sessions)

    monkeypatch.setattr(KeyWalk, "of_sessions", counted)
    async with pool(store, {"work": work}) as client:
        for session in ("first-of-hers", "second-of-hers"):
            await client.submit(
                "work", "child", session_id=session, task_id="c", attributes={"user": "ann"}
            )
            await client.wait(session, "c", timeout_s=60)
        async with Eraser(store) as eraser:
            report = await eraser.forget_user("ann")
    assert sorted(report.sessions) == ["first-of-hers", "second-of-hers"]
    # Before anything is removed, and behind it.
    both = {"first-of-hers", "second-of-hers"}
    assert walks == [both, {"first-of-hers"}, {"second-of-hers"}]
    for session in ("first-of-hers", "second-of-hers"):
        await nothing_is_left(store, session)


@pytest.mark.parametrize("session", ODD)
async def test_nothing_of_a_session_is_left(store: RedisStateStore, session: str) -> None:
    await fill(store, session, f"trace-{ODD.index(session)}")
    await fill(store, "other", "other-trace")
    async with pool(store, {"work": work}) as client:
        for given in ("child", "wait"):
            await client.submit(
                "work", given, session_id=session, task_id=given, attributes={"user": "ann"}
            )
        await client.wait(session, "child", timeout_s=60)
        await _becomes(client, session, "wait", TaskStatus.PAUSED)
        await client.submit(
            "work", "x", session_id=session, task_id="later", delay=timedelta(days=30)
        )
        await client.schedules.save(
            Schedule(
                schedule_id="its",
                handler="work",
                session_id=_doubled(session),
                every=timedelta(days=9),
            )
        )
        await client.schedules.save(
            Schedule(
                schedule_id="another", handler="work", session_id="other", every=timedelta(days=9)
            )
        )
        counted = await client.forget(session, dry_run=True)
        assert counted.dry_run
        assert len(await store.list_tasks(session)) == 5
        report = await client.forget(session)
        assert report.redis["tasks"] == 5
        # The child may have ended.
        assert report.cancelled in (3, 4)
        names = "artifacts schedules trajectories traces contexts pauses"
        expected = dict.fromkeys(names.split(), 1) | {"memories": 2, "context patches": 2}
        if len(session) > 100:
            # The other key is a digest.
            expected["memories"] = 1
            assert "1 keys are named by a digest" in report.kept["memories with long keys"]
        assert {name: report.redis.get(name) for name in expected} == expected
        assert report.failed == {}

        await nothing_is_left(store, session)
        again = await client.forget(session)
        assert again.is_empty, again.redis
        assert [each.schedule.schedule_id for each in await client.schedules.list()] == ["another"]
        # The id may be used again.
        await client.submit("work", "child", session_id=session, task_id="child")
        await client.wait(session, "child", timeout_s=60)
    assert len(await store.list_tasks("other")) == 1
    assert len(await store.load_history("other-trace")) == 1
    assert await store.load_memory_state("other") == {"of": "memory"}


async def _becomes(client: TaskClient, session: str, task_id: str, status: TaskStatus) -> None:
    async def found() -> bool:
        state = await client.get(session, task_id)
        return state is not None and state.status is status

    await eventually(found, described=f"{task_id} is {status}", timeout_s=30)


def _doubled(session: str) -> str:
    return session.replace("{", "{{").replace("}", "}}")


async def test_a_namespace_may_be_any_text(settings: Settings) -> None:
    changed = settings.model_copy(update={"namespace": f"{settings.namespace}-ü\u4e2d"})
    async with RedisStateStore(changed) as store:
        try:
            await store.save_trajectory("trace", "mine", Trajectory("q"))
            await store.save_memory_state("mine", {"of": "memory"})
            report = await store.forget("mine")
            assert (report.redis["trajectories"], report.redis["memories"]) == (1, 1)
            await nothing_is_left(store, "mine")
        finally:
            await store.delete_everything()


async def test_the_list_of_open_pauses_of_an_earlier_version_goes_too(
    store: RedisStateStore,
) -> None:
    """It was a key of its own, and its name has the session's id."""
    key = f"{store.settings.namespace}:v1:{{mine}}:pauses"
    await admin(store, "ZADD", key, 1, "0" * 40)
    await admin(store, "PEXPIRE", key, 60_000)
    await store.forget("other")
    assert await admin(store, "EXISTS", key) == 1
    await store.forget("mine")
    await nothing_is_left(store, "mine")


@pytest.mark.parametrize("running", ["cancel", "refuse", "fence"])
async def test_the_queues_lose_the_jobs_of_a_user(
    store: RedisStateStore, running: Literal["cancel", "refuse", "fence"]
) -> None:
    async with TaskClient(store) as client:
        for user in ("ann", "bob"):
            await client.submit(
                "work",
                "x",
                session_id=f"of-{user}",
                task_id="later",
                delay=timedelta(days=30),
                attributes={"user": user},
            )
        await client.forget_user("ann", running=running)
        await nothing_is_left(store, "of-ann")
        state = await client.get("of-bob", "later")
        assert state is not None
        assert state.status is TaskStatus.PENDING
        assert any("arq:job:" in key for key in await left_over(store, "of-bob"))


@pytest.mark.parametrize("running", ["cancel", "refuse", "fence"])
async def test_the_lines_of_a_queue_lose_the_jobs_of_a_session(
    store: RedisStateStore, running: Literal["cancel", "refuse", "fence"]
) -> None:
    """No worker takes them: each key of the queue is searched, and another session has its turn."""
    async with TaskClient(store) as client:
        queue = client._queue
        await client.queues.limit("tasks", per_key=1, rate=Rate(1, timedelta(days=1)))
        ways: list[dict[str, Any]] = [
            {"limit_key": "k", "in_turn": True},
            {"limit_key": "other", "in_turn": True},
            {"limit_key": "k"},
            {"in_turn": True},
        ]
        # Of each session one is claimed, and not started: its line has used its rate.
        for session in ("gone", "kept"):
            await client.submit("work", session_id=session, task_id="begun", in_turn=True)
        claimed = await queue.claim("tasks", limit=10)
        assert len(claimed) == 2
        for number, way in enumerate(ways * 2):
            for session in ("gone", "kept"):
                await client.submit("work", session_id=session, task_id=f"t{number}", **way)
        await client.forget("gone", running=running)
        await nothing_is_left(store, "gone")
        assert (await client.queues.get("tasks")).waiting == 2 * len(ways)


async def test_what_a_sweeper_queues_during_an_erasure_goes_too(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = 0

    async def forget(self: Eraser, session_id: str, **options: Any) -> ErasureReport:
        nonlocal queued
        (task,) = await store.tasks.ids(session_id)
        view = await store.tasks.look(session_id, task)
        assert view is not None
        async with TaskClient(store) as other:
            assert await other._queue.ensure_queued([Job.of(view)]) == [QueueState.QUEUED]
        queued += 1
        return await forgets(self, session_id, **options)

    forgets = Eraser.forget
    monkeypatch.setattr(Eraser, "forget", forget)
    async with TaskClient(store) as client:
        await client.submit(
            "work", session_id="s-1-odd", task_id="later", delay=timedelta(days=30), limit_key="k"
        )
        await client.forget("s-1-odd", running="fence")
    assert queued == 1
    await nothing_is_left(store, "s-1-odd")


async def test_a_session_with_more_jobs_than_one_call_may_name_is_forgotten(
    store: RedisStateStore,
) -> None:
    many = 8_500
    async with TaskClient(store) as client:
        queue = client._queue
        line = queue.keys(None).queue
        for session_id in ("many", "other"):
            await client.submit(
                "work", "x", session_id=session_id, task_id="t", delay=timedelta(days=30)
            )
        # As of a backlog whose tasks' records are gone.
        jobs = [f"{queue.claim_of('many', f'gone-{number}')}:0" for number in range(many)]
        for first in range(0, many, 1_000):
            some = jobs[first : first + 1_000]
            await admin(store, "ZADD", line, *(part for job in some for part in (1, job)))
            await asyncio.gather(
                *(admin(store, "SET", payload_key(job), "{}", "PX", 3_600_000) for job in some)
            )
        assert await admin(store, "ZCARD", line) == many + 2
        await client.forget("many")
        await nothing_is_left(store, "many")
        assert await admin(store, "ZCARD", line) == 1
        assert any("arq:job:" in key for key in await left_over(store, "other"))


async def test_a_user_without_sessions_is_told_of_memories_with_long_keys(
    store: RedisStateStore,
) -> None:
    for user in ("ann", "x" * 200):
        await store.save_memory_state(MemoryKey("t", user, "s").composite(), {"n": 1})
    async with Eraser(store) as eraser:
        report = await eraser.forget_user("ann")
    assert report.redis == {"memories": 1}
    assert "1 keys are named by a digest" in report.kept["memories with long keys"]


async def test_sessions_of_a_user_whose_long_ids_nothing_names_are_reported(
    store: RedisStateStore,
) -> None:
    for session, user in (("s" * 130, "ann"), ("t" * 130, "bob")):
        key = store.tasks.keys(session, "task").task
        await admin(store, "HSET", key, "status", "COMPLETE", "attributes", f'{{"user":"{user}"}}')
        await admin(store, "PEXPIRE", key, 60_000)
    async with Eraser(store) as eraser:
        for user, count in (("ann", 1), ("eve", 0)):
            report = await eraser.forget_user(user, dry_run=True)
            named = report.kept.get("sessions with long ids", "0 sessions")
            assert named.startswith(f"{count} sessions")
        assert (await eraser.forget("s" * 130)).redis["tasks"] == 1
        assert "sessions with long ids" not in (await eraser.forget_user("ann")).kept
        async with TaskClient(store) as client:
            await client.submit("echo", 1, session_id="z" * 130, attributes={"user": "zoe"})
        report = await eraser.forget_user("zoe", dry_run=True)
        assert (report.sessions, "sessions with long ids" in report.kept) == (["z" * 130], False)


async def test_a_large_value_of_a_user_without_sessions_goes_with_its_entry(
    store: RedisStateStore,
) -> None:
    for user in ("ann", "bob"):
        context = {"tenant_id": "t", "user_id": user, "session_id": "s", "task_id": "x"}
        entries = store.kv.bind({**context, "trace_id": "y"})
        await entries.set("k", f"marker-of-{user} " * 1_000, namespace="n")
    async with Eraser(store) as eraser:
        assert (await eraser.forget_user("ann", dry_run=True)).redis == {"memories": 1}
        assert len(await remains(store, "marker-of-ann")) > 0
        assert (await eraser.forget_user("ann")).redis == {"memories": 1}
    assert await remains(store, "marker-of-ann") == []
    assert len(await remains(store, "marker-of-bob")) > 0


async def test_agents_sessions_and_threads_go_too(store: RedisStateStore) -> None:
    sessions = SessionStore(store)
    for each in ("mine", "other"):
        await sessions.create(fresh(each))
        await admin(store, "HSET", store.base.keys.graph_thread(each), "rx", "1")
        await admin(store, "PEXPIRE", store.base.keys.graph_thread(each), 60_000)
    report = await store.forget("mine")
    assert (report.redis["agents' sessions"], report.redis["graph threads"]) == (1, 1)
    assert not await sessions.exists("mine")
    assert [each.session_id for each in (await sessions.list_headers()).headers] == ["other"]
    assert await remains(store, "mine") == []


@pytest.mark.parametrize("session", ["mine", "mine:b:c", "4:mi/ne", "m" * 115])
async def test_what_frameworks_keep_of_a_session_goes_too(
    store: RedisStateStore, session: str
) -> None:
    others = ["c", "other"]
    for each in (session, *others):
        for key in _memories(each):
            await store.save_memory_state(key, {"of": "a framework"})
        for key in _of_graphs(store, each):
            await admin(store, "ZADD", key, 0, graph_task(each, "t"))
            await admin(store, "PEXPIRE", key, 60_000)
    report = await store.forget(session)
    if len(session) < 100:
        assert (report.redis["memories"], report.redis["graph threads"]) == (3, 1)
        assert await remains(store, session) == []
    else:
        # What is named by a digest is found by the listing alone.
        assert "2 keys are named by a digest" in report.kept["memories with long keys"]
        thread, run, *listings = _of_graphs(store, session)
        assert await admin(store, "EXISTS", thread) == 0
        assert await admin(store, "DEL", run) == 1
        for key in listings:
            assert await admin(store, "ZSCORE", key, graph_task(session, "t")) is None
    for each in others:
        for key in _memories(each):
            assert await store.load_memory_state(key) is not None
        for key in _of_graphs(store, each):
            assert await admin(store, "ZSCORE", key, graph_task(each, "t")) is not None


def _memories(session: str) -> tuple[str, ...]:
    return agent_messages("clerk", session), heard_steering(session, "t"), session


def _of_graphs(store: RedisStateStore, session: str) -> tuple[str, ...]:
    """Name a thread and a run of a task of a session, and where the thread is listed."""
    keys, thread = store.base.keys, graph_task(session, "t")
    shard = graph_shard(thread)
    listings = (keys.graph_threads(shard), keys.graph_expiries(shard))
    return keys.graph_thread(thread), keys.graph_run(f"{thread}@1.5"), *listings


async def test_a_trace_of_two_sessions_stays_with_the_other(store: RedisStateStore) -> None:
    for session in ("mine", "its"):
        await store.save_trajectory("shared", session, Trajectory("q"))
    await store.save_event(event(trace_id="shared"))
    report = await store.forget("mine")
    assert "1 traces belong to another session too" in report.kept["events of shared traces"]
    assert await remains(store, "mine") == []
    assert len(await store.load_history("shared")) == 1
    await store.forget("its")
    assert await store.load_history("shared") == []


async def test_events_of_a_trace_that_only_tasks_name_go_with_the_last_session_that_has_such_a_task(
    store: RedisStateStore,
) -> None:
    async with TaskClient(store) as client:
        for session, trace in (
            ("mine", "listed"),
            ("mine", "own"),
            ("mine", "both"),
            ("its", "both"),
        ):
            await client.submit(
                "work", "x", session_id=session, trace_id=trace, delay=timedelta(days=30)
            )
            await store.save_event(event(trace_id=trace))
        await store.save_trajectory("listed", "mine", Trajectory("q"))
        # The task of the other session does not make it one of its listed traces.
        await store.save_trajectory("both", "mine", Trajectory("q"))
        for dry_run in (True, False):
            report = await client.forget("mine", dry_run=dry_run)
            assert report.kept["events of shared traces"].startswith("1 traces")
            assert len(await store.load_history("own")) == dry_run
        assert await store.load_history("listed") == []
        assert len(await store.load_history("both")) == 1
        assert "events of shared traces" not in (await client.forget("its")).kept
    assert await store.load_history("both") == []


async def test_a_repetition_finds_a_trace_that_only_a_task_names(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TaskClient(store) as client:
        await client.submit(
            "work", "x", session_id="mine", trace_id="own", delay=timedelta(days=30)
        )
        await store.save_event(event(trace_id="own"))

        async def fails(*_: object) -> None:
            raise ConnectionResetError

        # Until the task has gone its trace is found; by then the trace has no events any more.
        for of, name in ((Base, "settle"), (TaskStore, "clear")):
            monkeypatch.setattr(of, name, fails)
            with pytest.raises(ConnectionResetError):
                await store.forget("mine")
            monkeypatch.undo()
        assert await store.load_history("own") == []
        await store.forget("mine")


async def stubborn(ctx: TaskContext) -> None:
    """Go on for as long as it may, whatever is wanted of it."""
    for n in range(100_000):
        with suppress(asyncio.CancelledError):
            await ctx.emit(UpdateType.PROGRESS, {"n": n})
            await ctx.step(f"step {n}", lambda: "x" * 100)


async def test_a_session_that_runs_is_refused_or_fenced(store: RedisStateStore) -> None:
    async with pool(store, {"stubborn": stubborn}) as client:
        await client.submit("stubborn", session_id="running", task_id="t")
        await _becomes(client, "running", "t", TaskStatus.RUNNING)
        with pytest.raises(SessionRunning) as caught:
            await store.forget("running")
        assert (caught.value.session_id, caught.value.running) == ("running", 1)
        assert len(await store.list_tasks("running")) == 1
        # It suppresses its cancellation, so it loses its lease.
        report = await client.forget("running", timeout_s=0.5)
        assert (report.cancelled, report.failed) == (1, {})
        await nothing_is_left(store, "running")
    await nothing_is_left(store, "running")


async def test_a_stopped_worker_writes_nothing_when_it_continues(
    settings: Settings, store: RedisStateStore
) -> None:
    """Three processes stand still for the length of the erasure, wherever they are just then."""
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    names = [f"stands-still-{n}" for n in range(3)]
    started: list[ForkedProcess] = []
    try:
        for name in names:
            process = await start_process("write_on", shared | {"session": name})
            started.append(process)

        async def all_write() -> bool:
            logs = [store.base.keys.updates(name).rows for name in names]
            counts: list[int] = [await store.transport.commands.xlen(log) for log in logs]
            return min(counts) > 20

        await eventually(all_write, described="all write", timeout_s=90)
        for process in started:
            process.send_signal(signal.SIGSTOP)
        for name in names:
            report = await store.forget(name, running="fence")
            assert (report.redis["tasks"], report.failed) == (1, {})
        for process in started:
            process.send_signal(signal.SIGCONT)
        for process in started:
            async with asyncio.timeout(90):
                out, err = await process.communicate()
            assert out.decode().strip().splitlines()[-1:] == ['"refused"'], err.decode()
        async with TaskClient(store) as client:
            for name in names:
                # No content: what was written before the refusal are ids, in lists of all sessions.
                left = {
                    key.partition("{")[2].removeprefix("/").partition("/")[0]
                    for key in await left_over(store, name)
                }
                slot = f"queues-{settings.namespace}}}"
                lists = {"pauses}:open-pauses", "pauses}:opened-pauses"}
                assert left <= lists | {slot, f"{slot}:queue:q{name[-1]}"}, left
                await client.forget(name)
                await nothing_is_left(store, name)
    finally:
        await asyncio.gather(*map(children.end, started))
