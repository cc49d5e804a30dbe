"""What `redis_state.doctor` finds of tasks and jobs that have lost each other."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, TaskClient
from redis_state.doctor import Finding, Verdict, examine
from redis_state.models import TaskStatus
from redis_state.rights import Role, user_rule
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.keys import WATCH_SHARDS, Keys
from redis_state.worker import AgentWorker, TaskContext
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import serving
from tests.support.servers.sets.clusters import running_cluster
from tests.support.servers.sets.nodes import keys_like

pytestmark = pytest.mark.server
KEYS = Keys("t")
ODD = "a:{b}/*\udcff\n"


def settings_of(url: str) -> Settings:
    return Settings(url=SecretStr(url), namespace="t")


async def asked(url: str, question: str) -> list[Finding]:
    return [each for each in await examine(settings_of(url)) if each.question == question]


def watched(session: str, task: str) -> str:
    return KEYS.watch(zlib.crc32(watch_entry(session, task)) % WATCH_SHARDS)


async def test_jobs_and_old_claims_of_tasks_that_are_gone_are_found(own_url: str) -> None:
    async with RedisStateStore(settings_of(own_url)) as store, TaskClient(store) as client:
        send, queue = store.transport.sender.send, Queue(store)
        for task, key in (("kept", None), ("gone", None), ("keyed", "k"), ("claimed", None)):
            await client.submit("work", session_id=ODD, task_id=task, limit_key=key)
        await client.submit("work", session_id="x" * 500, task_id="its id is a digest")
        (sound,) = await asked(own_url, "jobs")
        assert (sound.state, sound.says) == (Verdict.SOUND, "each of 4 that were read has its task")
        claim = queue.claim_of(ODD, "claimed")
        await send("ZREM", queue.keys().queue, f"{claim}:0", repeatable=True)
        await send("ZADD", queue.keys().claims, 1, claim, repeatable=True)
        for task in ("gone", "keyed", "claimed"):
            await send("DEL", KEYS.task(ODD, task), repeatable=True)
        (found,) = await asked(own_url, "jobs")
    assert found.state is Verdict.FINDING
    assert found.says.startswith("3 of 4 that were read are of tasks that are gone")
    assert found.says.endswith("; 1 of them are claimed")
    assert f"'gone' of session {ODD!r}" in found.says
    assert "until a worker drops it" in found.means
    assert "start a worker" in found.do


async def test_an_unfinished_task_that_nothing_leads_to_is_found_and_a_follower_saves_it(
    own_url: str,
) -> None:
    async def work(ctx: TaskContext) -> str:
        return ctx.task.task_id

    async with RedisStateStore(settings_of(own_url)) as store, TaskClient(store) as client:
        send, queue = store.transport.sender.send, Queue(store).keys()
        others = {watched(ODD, task) for task in ("watched", "queued", "ended")}
        lost = next(
            name for name in map("lost{}".format, range(99)) if watched(ODD, name) not in others
        )
        for task in (lost, "watched", "queued", "ended"):
            await client.submit("work", session_id=ODD, task_id=task)
        await client.cancel(ODD, "ended")
        # All of its part of the watch list, with the index.
        shard = watched(ODD, lost).partition("}")[0]
        await send("DEL", *await keys_like(store.transport, f"{shard}}}:*"), repeatable=True)
        for task in (lost, "watched", "ended"):
            await send(
                "ZREM", queue.queue, Job(ODD, task, 0, 0).id_under(KEYS.jobs_tag), repeatable=True
            )
        for task in ("queued", "ended"):
            await send("ZREM", watched(ODD, task), watch_entry(ODD, task), repeatable=True)
        (found,) = await asked(own_url, "tasks")
        assert found.state is Verdict.FINDING
        assert found.says.startswith("1 of 4 that were read are unfinished")
        assert f"{lost!r} of session {ODD!r}, PENDING" in found.says
        assert "no worker runs them" in found.means
        worker = AgentWorker({"work": work}, settings_of(own_url), poll_s=0.01, lease_s=1.0)
        async with serving(worker):
            for task in ("watched", "queued"):
                assert await client.result(ODD, task, timeout_s=60) == task
            (found,) = await asked(own_url, "tasks")
            assert found.says.startswith("1 of 4 ")
            # As `redis-state tail` does.
            async for _ in client.watch(ODD, lost):
                pass
            state = await client.get(ODD, lost)
            assert state is not None
            assert state.status is TaskStatus.COMPLETE
        (found,) = await asked(own_url, "tasks")
        assert found.state is Verdict.SOUND


async def test_who_may_not_scan_does_not_know_of_tasks_and_knows_of_jobs(own_url: str) -> None:
    async with RedisStateStore(settings_of(own_url)) as store, TaskClient(store) as client:
        await client.submit("work", session_id="s", task_id="a")
        await store.transport.sender.send("DEL", KEYS.task("s", "a"), repeatable=True)
        for role, known in ((Role.APP, False), (Role.ADMIN, True)):
            user, *words = user_rule(settings_of(own_url), role).words()
            await store.transport.sender.send(
                "ACL", "SETUSER", user, *words, ">pw", repeatable=True
            )
            narrow = own_url.replace("unix://", f"unix://{user}:pw@")
            (jobs,), (tasks,) = await asked(narrow, "jobs"), await asked(narrow, "tasks")
            assert jobs.state is Verdict.FINDING
            assert tasks.state is (Verdict.SOUND if known else Verdict.UNKNOWN)
            assert known or "SCAN" in tasks.says.upper()


async def test_a_node_of_a_cluster_that_came_back_empty_leaves_orphans_on_others() -> None:
    async with running_cluster() as cluster:
        settings = settings_of(cluster.url)
        async with RedisStateStore(settings) as store, TaskClient(store) as client:
            names = [(f"s{number}", "t") for number in range(40)]
            await asyncio.gather(
                *(client.submit("work", session_id=s, task_id=t) for s, t in names)
            )
            owners: dict[int, int] = {}
            for slot in {
                slot_of(key) for s, t in names for key in (KEYS.task(s, t), watched(s, t))
            }:
                owners[slot] = await cluster.owner(slot)
            empty = await cluster.owner(slot_of(Queue(store).keys().queue))
            cluster.kill(empty)
            cluster.start_node(empty)
            await cluster.settled()

            def is_there(key: Any) -> bool:
                return owners[slot_of(key)] != empty

            kept = [each for each in names if is_there(KEYS.task(*each))]
            lost = [each for each in kept if not is_there(watched(*each))]
            assert 0 < len(lost) < len(kept) < len(names)
            found = await asked(cluster.url, "tasks")
            counted = {each.server: each for each in found if each.state is Verdict.FINDING}
            assert f"redis://127.0.0.1:{empty}/0" not in counted
            says = [int(each.says.split(" of ")[0]) for each in counted.values()]
            assert sum(says) == len(lost)
            assert len(found) == 3
