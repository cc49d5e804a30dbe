"""Sessions whose tasks run in turn, limited together by their tenant."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.processes.pools import becomes, client_of, pool, queue_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.changes.rollback import rolling_back

pytestmark = pytest.mark.worker


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def test_a_tenant_has_no_more_than_its_limit_and_each_session_one_in_order(
    store: RedisStateStore, client: TaskClient
) -> None:
    running, most, begun = Counter[str](), Counter[str](), dict[str, list[int]]()

    async def answer(ctx: TaskContext) -> None:
        session, number = ctx.task.session_id, ctx.input
        begun.setdefault(session, []).append(number)
        for name in (session, session[0]):
            running[name] += 1
            most[name] = max(most[name], running[name])
        await ctx.step("think", lambda: asyncio.sleep(0.005))
        for name in (session, session[0]):
            running[name] -= 1

    await client.queues.limit(queue_of(store.settings), per_key=3)
    sessions = [f"{tenant}/{number}" for tenant in "ab" for number in range(6)]
    tasks = [
        (
            session,
            await client.submit(
                "answer", number, session_id=session, limit_key=session[0], in_turn=True
            ),
        )
        for number in range(4)
        for session in sessions
    ]
    handlers = {"answer": answer}
    async with pool(store, handlers, name="one"), pool(store, handlers, name="two"):
        for session, task in tasks:
            await client.wait(session, task, timeout_s=60)
    assert (most["a"], most["b"]) == (3, 3)
    assert {most[session] for session in sessions} == {1}
    assert begun == {session: [0, 1, 2, 3] for session in sessions}


async def test_an_interrupt_is_answered_while_its_tenant_is_at_its_limit(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def answer(ctx: TaskContext) -> str:
        if ctx.input == "long":
            await ctx.approval("Shall I search for it?")
        return f"to {ctx.input}"

    async def hold(ctx: TaskContext) -> None:
        while True:
            await ctx.step("hold", lambda: asyncio.sleep(0.01))

    name = queue_of(store.settings)
    await client.queues.limit(name, per_key=2)
    async with pool(store, {"answer": answer, "hold": hold}):
        held = [
            await client.submit("hold", session_id=each, limit_key="acme", in_turn=True)
            for each in ("s", "t")
        ]
        await becomes(client, held[0], TaskStatus.RUNNING, session_id="s")
        await becomes(client, held[1], TaskStatus.RUNNING, session_id="t")
        waits = [
            await client.submit("answer", each, session_id=each, limit_key="acme", in_turn=True)
            for each in ("u", "s")
        ]
        found = {each.in_turn or each.limit_key: each for each in await client.queues.keys(name)}
        assert (found["acme"].waiting, found["acme"].running) == (0, 2)
        assert (found["s"].waiting, found["s"].running) == (1, 1)
        new = await client.submit(
            "answer", "stop", session_id="s", limit_key="acme", on_busy="interrupt"
        )
        assert await client.result("s", new, timeout_s=60) == "to stop"
        assert await client.result("s", waits[1], timeout_s=60) == "to s"
        await client.cancel("t", held[1])
        assert await client.result("u", waits[0], timeout_s=60) == "to u"


async def test_both_keys_stay_with_what_is_made_from_a_task(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def answer(ctx: TaskContext) -> str:
        return f"to {ctx.input}"

    async def key_of(session: str, task: str) -> str:
        view = await store.tasks.look(session, task)
        assert view is not None
        return view.key

    first = await client.submit("answer", 1, session_id="s;1", limit_key="a;b", in_turn=True)
    both = await key_of("s;1", first)
    assert both == "1:s%3B1;k:a%3Bb"
    async with pool(store, {"answer": answer}):
        assert await client.result("s;1", first, timeout_s=60) == "to 1"
        again = await client.rerun("s;1", first)
        copied = await client.fork("s;1", first, before=None)
        for task in (again, copied):
            assert await key_of("s;1", task) == both
            assert await client.result("s;1", task, timeout_s=60) == "to 1"


async def test_a_killed_workers_permits_of_both_come_back(
    store: RedisStateStore, settings: Settings, client: TaskClient
) -> None:
    name = queue_of(settings)
    await client.queues.limit(name, per_key=1)
    async with worker_process(settings, "one", lease_s=1.0) as one:
        tasks = [
            (each, await client.submit("linger", session_id=each, limit_key="acme", in_turn=True))
            for each in ("s", "t", "s")
        ]
        await becomes(client, tasks[0][1], TaskStatus.RUNNING, session_id="s")
        assert (await client.queues.get(name)).running == 1
        assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
    async with worker_process(settings, "two", lease_s=1.0):
        # In a later run it ends at once.
        assert (await client.wait("s", tasks[0][1], timeout_s=60)).result == "two"
        for session, task in tasks[1:]:
            await becomes(client, task, TaskStatus.RUNNING, session_id=session)
            assert (await client.queues.get(name)).running == 1
            await client.cancel(session, task, hard=True)
            await client.wait(session, task, timeout_s=60)

        async def none_held() -> bool:
            return not await client.queues.keys(name)

        await eventually(none_held, "no permit is held")


async def test_all_end_and_no_permit_is_left_after_a_restored_backup(settings: Settings) -> None:
    begun = list[tuple[str, int]]()

    async def answer(ctx: TaskContext) -> int:
        begun.append((ctx.task.session_id, ctx.input))
        if len(begun) == 3:
            await server.mark()
        return int(ctx.input)

    async with rolling_back() as server:
        own = settings.model_copy(update={"url": SecretStr(server.url), "call_timeout_s": 2})
        async with RedisStateStore(own) as store, client_of(store) as client:
            name = queue_of(own)
            await client.queues.limit(name, per_key=2)
            tasks = [
                (
                    each,
                    await client.submit(
                        "answer", number, session_id=each, limit_key="acme", in_turn=True
                    ),
                )
                for number in range(3)
                for each in "stuv"
            ]

            async def none_held() -> bool:
                return not await client.queues.keys(name)

            async def all_end() -> None:
                async with pool(store, {"answer": answer}, lease_s=1.0):
                    for session, task in tasks:
                        assert (await client.wait(session, task, timeout_s=60)).result in range(3)
                    await eventually(none_held, "no permit is held")

            await all_end()
            await server.go_back()
            await all_end()
    # The backup was made while tasks ran and others waited: those ran again.
    assert len(begun) > 12
