"""What waits is inspected seldom, and at once when the queues' server has lost jobs."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.stores.task_index import TaskIndex
from redis_state.testing import eventually
from redis_state.transport.cluster.node_histories import node_histories
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.transport.transport import Transport
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery import queue_history
from redis_state.worker.recovery.queue_history import QueueHistory
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.new_tasks import NewTasks
from tests.support.processes.pools import SESSION, pool, queue_of
from tests.support.servers.changes.rollback import Rollback, rolling_back
from tests.support.servers.sets.clusters import Cluster, running_cluster
from tests.support.sizes import sizes
from tests.support.tasks.crash_states import (
    decide,
    entry_in_ms,
    forget_entry,
    make_due,
    pause,
    send,
    started,
)

_HOUR_MS = 3_600_000
# Whatever is due later than this was put off because it was seen in the queue.
_SOON_MS = 65_000
_NAMES = count()


class Pool:
    """A sweeper of a store, its queue, and what watches the queue's history."""

    def __init__(self, store: RedisStateStore) -> None:
        self.store = store
        self.name = queue_of(store.settings)
        self.queue = Queue(store, name=self.name)
        self.history = QueueHistory(store, self.queue)
        self.sweeper = Sweeper(store, self.queue, lease_ms=400, history=self.history)

    async def submit(self, *, age: timedelta, session_id: str = SESSION, put: bool = True) -> str:
        """Submit a task that counts as created so long ago."""
        task = f"t{next(_NAMES)}"
        snapshot = TaskContextSnapshot(session_id=session_id, task_id=task)
        state = TaskState(task, session_id, TaskStatus.PENDING, TaskType.BACKGROUND, 0, snapshot)
        assert await NewTasks(self.store).create(
            state, handler="answer", task_input=None, queue=self.name
        )
        key = self.store.base.keys.task(session_id, task)
        await send(self.store, "HINCRBY", key, "order", -(age // timedelta(microseconds=1)))
        if put:
            await self.queue.put(Job(session_id, task, 0, 0, self.name))
        return task

    async def inspect(self, task: str, session_id: str = SESSION) -> float:
        """Have a task inspected; return in how many ms it is due again."""
        await make_due(self.store, watch_entry(session_id, task))
        await self.sweeper.run_once()
        return await self.due_ms(task, session_id)

    async def due_ms(self, task: str, session_id: str = SESSION) -> float:
        """Return in how many ms a task is inspected."""
        due_ms: float | None = await entry_in_ms(self.store, watch_entry(session_id, task))
        assert due_ms is not None
        return due_ms

    async def compare(self) -> None:
        """Compare the history until all that was lost is due."""

        async def compared() -> bool:
            return not await self.history.run_once()

        await eventually(compared, "the history is known", timeout_s=30)

    async def waiting(self) -> int:
        """Return how many jobs the queue has."""
        return (await self.queue.backlog()).waiting

    async def queue_all(self, tasks: int) -> None:
        """Sweep until the queue has so many jobs."""

        async def there() -> bool:
            await self.sweeper.run_once()
            return await self.waiting() == tasks

        await eventually(there, f"{tasks} jobs are in the queue", timeout_s=20)


@pytest.fixture
async def swept(store: RedisStateStore) -> AsyncIterator[Pool]:
    made = Pool(store)
    await made.compare()
    yield made
    await made.queue.aclose()


async def _clear(swept: Pool) -> None:
    await swept.queue.clear()


async def _flush(swept: Pool) -> None:
    """Remove every key of the queues' slot, as FLUSHALL does of a server of their own."""
    keys = swept.queue.keys()
    await send(swept.store, "UNLINK", *keys[:-1], swept.store.base.keys.queue_history())


# How seldom a waiting task is inspected


async def test_a_task_that_was_seen_in_the_queue_is_inspected_at_half_its_age(swept: Pool) -> None:
    for age, longest_ms in ((timedelta(minutes=20), 600_000), (timedelta(days=9), _HOUR_MS)):
        task = await swept.submit(age=age)
        due_ms = await swept.inspect(task)
        assert longest_ms - 2_000 < due_ms <= longest_ms + 2_000


async def test_what_had_to_be_queued_is_inspected_soon_and_then_seldom(swept: Pool) -> None:
    task = await swept.submit(age=timedelta(days=9), put=False)
    assert await swept.inspect(task) <= 2_000
    assert await swept.waiting() == 1
    assert await swept.inspect(task) > _SOON_MS


async def test_what_the_index_has_otherwise_is_inspected_within_a_minute(swept: Pool) -> None:
    task = await swept.submit(age=timedelta(days=9))
    key = swept.store.base.keys.task(SESSION, task)
    await send(swept.store, "HINCRBY", key, "version", 1)
    assert await swept.inspect(task) <= _SOON_MS
    assert await swept.inspect(task) > _SOON_MS


async def test_while_arqs_own_runner_picks_jobs_none_rests(swept: Pool) -> None:
    before = await swept.submit(age=timedelta(days=9))
    assert await swept.inspect(before) > _SOON_MS
    await QueueHistory(swept.store, swept.queue, picking=True).run_once()
    # What rests already is hastened, by the process that finds it.
    await swept.compare()
    assert await swept.due_ms(before) <= _SOON_MS
    assert await swept.inspect(before) <= _SOON_MS


async def test_a_server_that_does_not_say_who_it_is_is_trusted_less(own_url: str) -> None:
    async with RedisStateStore(Settings(url=SecretStr(own_url))) as admin:
        await send(admin, *("ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", "-info"))
    url = own_url.replace("unix://", "unix://few:secret@")
    async with RedisStateStore(Settings(url=SecretStr(url))) as store:
        swept = Pool(store)
        assert not await swept.history.run_once()
        assert await swept.inspect(await swept.submit(age=timedelta(days=9))) <= _SOON_MS
        await swept.queue.aclose()


# Lost jobs


@pytest.mark.parametrize("lose", [_clear, _flush], ids=["cleared", "flushed"])
async def test_what_the_queue_lost_is_queued_at_once(
    swept: Pool, lose: Callable[[Pool], Awaitable[None]]
) -> None:
    tasks = [await swept.submit(age=timedelta(days=9)) for _ in range(20)]
    for task in tasks:
        await make_due(swept.store, watch_entry(SESSION, task))
    await swept.sweeper.run_once()
    assert min([await swept.due_ms(task) for task in tasks]) > _SOON_MS
    await lose(swept)
    assert await swept.waiting() == 0
    await swept.compare()
    await swept.queue_all(20)
    # It is compared with the new history now: nothing is hastened again.
    await swept.compare()
    assert min([await swept.inspect(task) for task in tasks]) > _SOON_MS


async def test_the_name_of_a_queue_that_was_lost_is_written_again(swept: Pool) -> None:
    task = await swept.submit(age=timedelta(days=9))
    assert await swept.inspect(task) > _SOON_MS
    await _flush(swept)
    await send(swept.store, "UNLINK", swept.store.base.keys.queue_names())
    assert await swept.queue.names.list() == set()
    await swept.compare()
    await swept.queue_all(1)
    assert await swept.queue.names.list() == {swept.name}


@pytest.fixture
async def queue_server() -> AsyncIterator[Rollback]:
    async with rolling_back() as server:
        yield server


async def test_a_restored_older_backup_of_the_queues_loses_no_task(
    settings: Settings, queue_server: Rollback
) -> None:
    apart = settings.model_copy(update={"queue_url": SecretStr(queue_server.url)})

    async with RedisStateStore(apart) as store:
        swept = Pool(store)
        await swept.compare()
        kept = await swept.submit(age=timedelta(days=9))
        await queue_server.mark()
        tasks = [await swept.submit(age=timedelta(days=9)) for _ in range(5)]
        for task in (kept, *tasks):
            assert await swept.inspect(task) > _SOON_MS
        await queue_server.go_back()
        assert await swept.waiting() == 1
        # Another process finds it, that has never seen the lost history.
        await swept.queue.aclose()
        other = Pool(store)
        await other.compare()
        await other.queue_all(6)
        await other.queue.aclose()


async def test_a_whole_pool_runs_what_a_restored_backup_lost(
    settings: Settings, queue_server: Rollback
) -> None:
    apart = settings.model_copy(
        update={"queue_url": SecretStr(queue_server.url), "call_timeout_s": 2}
    )
    async with RedisStateStore(apart) as store:
        swept = Pool(store)
        await swept.compare()
        await queue_server.mark()
        tasks = [await swept.submit(age=timedelta(days=9)) for _ in range(5)]
        for task in tasks:
            assert await swept.inspect(task) > _SOON_MS
        await queue_server.go_back()

        async def answer(_: object) -> int:
            return 42

        async with pool(store, {"answer": answer}) as client:
            for task in tasks:
                assert (await client.wait(SESSION, task, timeout_s=20)).result == 42
        await swept.queue.aclose()


async def test_a_node_of_a_cluster_whose_history_went_back_loses_no_task() -> None:
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="spread")
        async with RedisStateStore(settings) as store:
            swept = Pool(store)
            await swept.compare()
            keys = store.base.keys
            node = await cluster.owner(slot_of(keys.queue_history()))
            shards = [await cluster.owner(slot_of(keys.watch(n))) for n in range(WATCH_SHARDS)]
            await cluster.ask(node, "SAVE")
            tasks: list[tuple[str, str]] = []
            # What is of that node alone is lost with it: these are of others.
            for number in range(400):
                session_id = f"s{number}"
                if await cluster.owner(slot_of(keys.tasks(session_id))) == node:
                    continue
                ahead = f"t{next(_NAMES) + 1}"
                index = TaskIndex(store.base.scripts, keys).keys(watch_entry(session_id, ahead))
                if await cluster.owner(slot_of(index.watch)) == node:
                    continue
                task = await swept.submit(age=timedelta(days=9), session_id=session_id)
                assert task == ahead
                tasks.append((session_id, task))
                if len(tasks) == 6:
                    break
            assert set(shards) != {node}
            for session_id, task in tasks:
                assert await swept.inspect(task, session_id) > _SOON_MS
            cluster.kill(node)
            cluster.start_node(node)
            await cluster.settled()
            assert await swept.waiting() == 0
            await swept.compare()
            await swept.queue_all(6)
            await swept.queue.aclose()


@dataclass
class Spread:
    """A cluster, and a task whose record, watch list and queue have a node each."""

    cluster: Cluster
    pool: Pool
    task: str
    of_record: int
    of_watch: int

    async def go_back(self, node: int) -> None:
        """Start a node again from what it had saved; the others go on."""
        before = await self.cluster.ask(node, "INFO", "server")
        self.cluster.kill(node)
        self.cluster.start_node(node)
        await self.cluster.settled()
        assert await self.cluster.ask(node, "INFO", "server") != before

    async def status(self) -> TaskStatus:
        view = await self.pool.store.tasks.look(SESSION, self.task)
        assert view is not None
        return view.status

    async def pause(self) -> str:
        """Run the task until it pauses; return the token of its pause."""
        pool = self.pool
        assert len(await pool.queue.claim(pool.name, limit=10)) == 1
        token = await pause(pool.store, await started(pool.store, self.task))
        await pool.queue.drop_claims(pool.name, [((SESSION, self.task), None)], before_ms=2**52)
        return token


@pytest.fixture
async def spread() -> AsyncIterator[Spread]:
    async with running_cluster() as cluster:
        keys = Keys("spread")
        for _ in range(1_000):
            # The name that the next task has.
            ahead = f"t{next(_NAMES) + 1}"
            shard = zlib.crc32(watch_entry(SESSION, ahead)) % WATCH_SHARDS
            names = keys.queue_history(), keys.tasks(SESSION), keys.watch(shard)
            nodes = [await cluster.owner(slot_of(name)) for name in names]
            if len(set(nodes)) == len(nodes):
                break
        else:
            pytest.fail("no task has its keys on three nodes")
        settings = Settings(url=SecretStr(cluster.url), namespace=keys.namespace)
        async with RedisStateStore(settings) as store:
            pool = Pool(store)
            await pool.compare()
            assert await pool.submit(age=timedelta(days=9)) == ahead
            assert await pool.inspect(ahead) > _SOON_MS
            yield Spread(cluster, pool, ahead, *nodes[1:])
            await pool.queue.aclose()


async def test_a_record_whose_node_alone_went_back_is_queued_again(spread: Spread) -> None:
    """The task is paused, and its entry rests. Then its record waits again, without a job."""
    await spread.cluster.ask(spread.of_record, "SAVE")
    await spread.pause()
    assert await spread.pool.inspect(spread.task) > _SOON_MS
    await spread.go_back(spread.of_record)
    assert await spread.status() is TaskStatus.PENDING
    assert await spread.pool.waiting() == 0
    assert await spread.pool.due_ms(spread.task) > _SOON_MS
    await spread.pool.compare()
    assert await spread.pool.due_ms(spread.task) <= _SOON_MS
    await spread.pool.queue_all(1)


async def test_a_watch_list_whose_node_alone_went_back_is_inspected_soon(spread: Spread) -> None:
    """A client dies between its decision and the queue. The entry that was due soon is lost."""
    await spread.cluster.ask(spread.of_watch, "SAVE")
    await decide(spread.pool.store, await spread.pause())
    assert await spread.pool.due_ms(spread.task) <= 2_000
    await spread.go_back(spread.of_watch)
    assert await spread.status() is TaskStatus.PENDING
    assert await spread.pool.waiting() == 0
    assert await spread.pool.due_ms(spread.task) > _SOON_MS
    await spread.pool.compare()
    assert await spread.pool.due_ms(spread.task) <= _SOON_MS
    await spread.pool.queue_all(1)


async def test_nodes_that_do_not_say_who_they_are_are_trusted_less() -> None:
    async with running_cluster() as cluster:
        rules = "on", ">secret", "~*", "&*", "+@all", "-info"
        for port in cluster.ports:
            await cluster.ask(port, "ACL", "SETUSER", "few", *rules)
        url = cluster.url.replace("://", "://few:secret@")
        async with RedisStateStore(Settings(url=SecretStr(url))) as store:
            assert not await node_histories(store.transport)
            pool = Pool(store)
            assert not await pool.history.run_once()
            assert await pool.inspect(await pool.submit(age=timedelta(days=9))) <= _SOON_MS
            await pool.queue.aclose()


async def test_nodes_that_stay_as_they_are_are_hardly_asked(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Transport] = []

    async def counted(transport: Transport) -> str:
        asked.append(transport)
        return await node_histories(transport)

    monkeypatch.setattr(queue_history, "node_histories", counted)
    monkeypatch.setattr(queue_history, "_COMPARE_EVERY_S", 3_600.0)
    pool = Pool(spread.pool.store)
    await pool.compare()
    first = len(asked)
    assert first
    for _ in range(10):
        await pool.history.run_once()
    assert len(asked) <= first + 1
    assert await pool.inspect(spread.task) > _SOON_MS
    await pool.queue.aclose()


# Who hastens


async def test_of_several_processes_one_hastens_each_shard(
    swept: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_history, "_PAGE", 3)
    tasks = [await swept.submit(age=timedelta(days=9)) for _ in range(100)]
    for task in tasks:
        await make_due(swept.store, watch_entry(SESSION, task))
    for _ in range(4):
        await swept.sweeper.run_once()
    others = [Pool(swept.store) for _ in range(3)]
    await _flush(swept)
    await asyncio.gather(*(each.compare() for each in (swept, *others)))
    await asyncio.gather(*(each.queue_all(100) for each in (swept, *others)))
    assert sum(each.sweeper.totals.requeued for each in (swept, *others)) == 100
    for other in others:
        await other.queue.aclose()


async def test_who_dies_between_two_pages_leaves_the_rest_to_another(
    swept: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_history, "_PAGE", 1)
    monkeypatch.setattr(queue_history, "_HOLD_MS", 300)
    tasks = [await swept.submit(age=timedelta(days=9)) for _ in range(40)]
    for task in tasks:
        await make_due(swept.store, watch_entry(SESSION, task))
    await swept.sweeper.run_once()
    await swept.sweeper.run_once()
    await _flush(swept)
    assert await swept.history.run_once()
    other = Pool(swept.store)
    await other.compare()
    await other.queue_all(40)
    await other.queue.aclose()


async def test_a_sweeper_that_saw_the_queue_before_it_was_lost_puts_nothing_off(
    swept: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still between what the queue said and the watch list, for longer than its claim."""
    task = await swept.submit(age=timedelta(days=9))
    settle = swept.sweeper._watch.settle

    async def late(*args: object) -> int:
        await _flush(swept)
        await Pool(swept.store).compare()
        return await settle(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(swept.sweeper._watch, "settle", late)
    await make_due(swept.store, watch_entry(SESSION, task))
    await swept.sweeper._sweep(
        await swept.sweeper._watch.claim_due(hold_ms=1_500),
        swept.sweeper.totals,
    )
    monkeypatch.undo()
    assert await swept.due_ms(task) <= 1_500
    await swept.queue_all(1)


async def test_a_task_that_is_resumed_while_its_entry_rests_is_inspected_soon(swept: Pool) -> None:
    """As a client leaves it that dies between the decision and the queue."""
    task = await swept.submit(age=timedelta(days=9))
    await swept.queue.claim(swept.name, limit=10)
    token = await pause(swept.store, await started(swept.store, task))
    await swept.queue.drop_claims(swept.name, [((SESSION, task), None)], before_ms=2**52)
    assert await swept.inspect(task) > _SOON_MS
    await decide(swept.store, token)
    assert await swept.due_ms(task) <= 2_000
    await make_due(swept.store, watch_entry(SESSION, task))
    await swept.queue_all(1)


async def test_a_job_that_finds_its_task_held_has_it_inspected_when_the_lease_ends(
    swept: Pool,
) -> None:
    """Its worker may have died before it said so; and the job was the last that led there."""
    task = await swept.submit(age=timedelta(days=9))
    assert await swept.inspect(task) > _SOON_MS
    await started(swept.store, task, lease_ms=3_000)
    entry = watch_entry(SESSION, task)
    await forget_entry(swept.store, entry)

    async def answer(_: object) -> int:
        return 42

    async with pool(swept.store, {"answer": answer}):

        async def claimed() -> bool:
            return await entry_in_ms(swept.store, entry) is not None

        await eventually(claimed, "the job is dropped")
        assert await swept.due_ms(task) <= 3_100


# The promise


@pytest.mark.parametrize("rounds", sizes(6, 60))
async def test_no_task_is_ever_inspected_later_than_promised(swept: Pool, rounds: int) -> None:
    """Tasks of every age wait, in the queue or not; the queue is lost now and then.

    Whatever the queue lacks is due within seconds once the loss is noticed. Whatever rests was
    seen in the queue, and is due within half of its age and an hour.
    """
    drawn = random.Random(7)
    ages: dict[str, timedelta] = {}
    for _ in range(rounds):
        for _ in range(5):
            age = timedelta(seconds=10 ** drawn.uniform(0, 6))
            task = await swept.submit(age=age, put=drawn.random() < 0.7)
            ages[task] = age
        for task in drawn.sample(sorted(ages), min(8, len(ages))):
            await make_due(swept.store, watch_entry(SESSION, task))
        await swept.sweeper.run_once()
        if drawn.random() < 0.5:
            await (drawn.choice([_clear, _flush]))(swept)
            await swept.compare()
        queued = {
            job.split(b"/")[-1].partition(b":")[0].decode()
            for job in await send(swept.store, "ZRANGE", swept.queue.keys().queue, 0, -1)
        }
        for task, age in ages.items():
            due_ms = await swept.due_ms(task)
            half_ms = age / timedelta(milliseconds=2)
            assert due_ms <= max(3_000, min(half_ms + 30_000, _HOUR_MS))
            assert task in queued or due_ms <= 5_000, (task, due_ms)
