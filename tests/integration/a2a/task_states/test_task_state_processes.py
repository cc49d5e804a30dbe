"""The task state manager under several processes: races, cut connections, crashes, clean-up."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from redis_state import InvalidTransition, RedisStateStore, Settings
from redis_state.integrations.embabel.task_state_manager import (
    A2AState,
    TaskCounts,
    TaskStateManager,
)
from redis_state.testing import eventually
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.samples import shared
from tests.support.scripts.replies import outcome
from tests.support.servers.faults import Proxy, begin_processes, run_processes, start_process
from tests.support.sizes import sizes

PROCESSES = "keep_task_states"


def numbered(settings: Settings, does: str, processes: int, **more: Any) -> list[dict[str, Any]]:
    return [
        shared(settings, does=does, who=f"p{n}", processes=processes, **more)
        for n in range(processes)
    ]


@pytest.mark.slow
async def test_8_processes_that_register_the_same_ids_make_each_once(
    store: RedisStateStore, settings: Settings
) -> None:
    names = [f"t{n}" for n in range(200)]
    found = await run_processes(PROCESSES, numbered(settings, "register", 8, tasks=names))
    tasks = TaskStateManager(store)
    winners: Counter[str] = Counter()
    for place, name in enumerate(names):
        answers = [answer[place] for answer in found]
        (winner,) = (f"p{n}" for n, (created, _) in enumerate(answers) if created)
        # The losers are told what the winner wrote, and that is what is there.
        assert {stream for _, stream in answers} == {winner}
        assert await tasks.get_stream_id(name) == winner
        winners[winner] += 1
    assert await tasks.count_tasks() == TaskCounts(200, 0)
    assert len(winners) > 1, "the processes never met"


async def have_begun(store: RedisStateStore, processes: int) -> bool:
    """Return whether so many have met, as `meet` counts them."""
    key = f"{store.settings.namespace}:v1:{{start}}:start"
    return int(await store.transport.sender.send("ZCARD", key, repeatable=True)) >= processes


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("size", sizes(30, 100))
async def test_100_events_on_each_task_reach_every_subscriber_once_and_in_order(
    store: RedisStateStore, settings: Settings, size: int
) -> None:
    tasks, names = TaskStateManager(store), [f"t{n}" for n in range(size)]
    await asyncio.gather(*(tasks.register_task(name, "c", "s") for name in names))
    async with Proxy(settings.url.get_secret_value()) as proxy:
        recorders = numbered(settings, "record", 4, tasks=names, times=25)
        followers = numbered(settings, "follow", 2, tasks=names, stay=60)
        for one in (*recorders, *followers):
            one["processes"] = 6
        for one in followers:
            one["url"] = proxy.url
        following = await begin_processes(PROCESSES, followers, timeout_s=180)
        recording = await begin_processes(PROCESSES, recorders, timeout_s=180)
        # Six processes begin at once, which takes a slow machine its time.
        await eventually(partial(have_begun, store, 6), "all have begun", timeout_s=60)
        # On a quick machine all is recorded soon: who listens is cut off three times all the same.
        while not recording.done() or proxy.cuts < 3:
            accepted = proxy.accepted
            proxy.cut()
            await eventually(lambda seen=accepted: proxy.accepted > seen, "they come again")  # type: ignore[misc]
            # On a slow one a reply needs more time than there is between the first cuts.
            await asyncio.wait({recording}, timeout=min(0.1 * proxy.cuts, 2.0))
        reported = await recording
        await asyncio.gather(*(tasks.record_event(name, status("completed")) for name in names))
        heard = await following
    for name in names:
        model = sorted(
            (row for one in reported for row in one[name]),
            key=lambda row: int(row[0].split("-")[0]),
        )
        assert [int(cursor.split("-")[0]) for cursor, _ in model] == list(range(1, 101))
        for who in range(4):
            own = [stated for _, stated in model if stated.startswith(f"p{who}-")]
            assert own == [f"p{who}-{n}" for n in range(25)]
        for one in heard:
            assert one[name][:-1] == model
            assert one[name][-1][1] == ""
        kept = [name_of(event) for event in await tasks.get_task_events(name)]
        assert kept == [*(stated for _, stated in model), ""]
    assert await tasks.count_tasks() == TaskCounts(0, size)


@pytest.mark.slow
async def test_of_an_end_in_three_ways_at_once_one_wins_and_stays(
    store: RedisStateStore, settings: Settings
) -> None:
    tasks, names = TaskStateManager(store), [f"t{n}" for n in range(100)]
    await asyncio.gather(*(tasks.register_task(name, "c", "s") for name in names))
    ways, winners = ["completed", "failed", "canceled"], set[str]()
    racers = numbered(settings, "end", 3, tasks=names)
    for one, way in zip(racers, ways, strict=True):
        one["state"] = way
    answers = await run_processes(PROCESSES, racers)
    for place, name in enumerate(names):
        stated = [answer[place] for answer in answers]
        (won,) = (state for what, state in stated if what == "won")
        assert sorted(stated) == sorted([["won", won], ["refused", won], ["refused", won]])
        winners.add(won)
        info = await tasks.get_task_info(name)
        assert info is not None
        assert info.current_state == won
        assert [event["status"]["state"] for event in info.events] == [won]
    assert len(winners) > 1, "the processes never met"
    assert await tasks.count_tasks() == TaskCounts(0, 100)


@pytest.mark.slow
async def test_cleaning_up_all_the_time_takes_nothing_that_lives_and_each_task_once(
    store: RedisStateStore, settings: Settings
) -> None:
    tasks = TaskStateManager(store)
    await tasks.register_task("last", "c", "s")
    living = numbered(settings, "live", 3, times=150)
    cleaning = numbered(settings, "clean", 2)
    for one in (*living, *cleaning):
        one["processes"] = 5
    sweeping = asyncio.create_task(run_processes(PROCESSES, cleaning))
    lived = await run_processes(PROCESSES, living)
    await tasks.record_event("last", status("completed"))
    dropped = await sweeping
    ended = sum(one[1] for one in lived)
    assert ended > 50
    assert sum(dropped) > 0
    left = await tasks.count_tasks()
    assert left.active == 0
    # With the last one, which was not theirs.
    assert sum(dropped) + left.completed == ended + 1
    assert await tasks.cleanup_old_tasks(timedelta(0)) == left.completed
    assert await tasks.count_tasks() == TaskCounts(0, 0)


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_task_outlives_the_process_that_registered_it(
    store: RedisStateStore, settings: Settings
) -> None:
    first = await start_process(PROCESSES, shared(settings, does="begin"))
    assert first.stdout is not None
    assert await asyncio.wait_for(first.stdout.readline(), 60) == b"begun\n"
    watch = shared(settings, does="follow", who="w", processes=2, tasks=["t"], stay=1000)
    watching = asyncio.create_task(run_processes(PROCESSES, [watch]))
    first.kill()
    await first.wait()
    assert first.returncode == -9
    go_on = shared(settings, does="record", who="b", processes=2, tasks=["t"], times=10)
    (reported,) = await run_processes(PROCESSES, [go_on])
    tasks = TaskStateManager(store)
    again = await tasks.register_task("t", "another", "stolen")
    assert (again.created, again.info.context_id, again.info.stream_id) == (False, "c", "s")
    assert len(again.info.events) == 11
    await tasks.record_event("t", status("failed", "end"))
    (heard,) = await watching
    assert [name for _, name in heard["t"]] == ["a-0", *(name for _, name in reported["t"]), "end"]


@pytest.mark.chaos
async def test_an_event_whose_answer_was_lost_is_recorded_once(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        far = RedisStateStore.from_url(proxy.url, namespace=settings.namespace)
        tasks = TaskStateManager(far)
        await tasks.register_task("t", "c", "s")
        for n in range(5):
            before = proxy.swallowed
            proxy.silence()
            reported = asyncio.create_task(tasks.record_event("t", chunk(str(n))))
            await eventually(lambda seen=before: proxy.swallowed > seen, "the answer is lost")  # type: ignore[misc]
            proxy.silence(silent=False)
            assert proxy.cut()
            assert (await reported).cursor.startswith(f"{n + 1}-")
        assert [name_of(event) for event in await tasks.get_task_events("t")] == list("01234")
        proxy.silence()
        before = proxy.swallowed
        end = asyncio.create_task(tasks.record_event("t", status("completed")))
        await eventually(lambda: proxy.swallowed > before, "the answer is lost")
        proxy.silence(silent=False)
        proxy.cut()
        # Its own repeated call is no second end.
        assert (await end).ends_task
        assert isinstance(
            await outcome(tasks.record_event("t", status("failed")), InvalidTransition),
            InvalidTransition,
        )
        await far.aclose()


@pytest.mark.chaos
async def test_a_recorder_that_is_cancelled_has_recorded_all_the_same(
    store: RedisStateStore,
) -> None:
    tasks = TaskStateManager(store)
    await tasks.register_task("t", "c", "s")
    recording = asyncio.create_task(tasks.record_event("t", status("completed")))
    await asyncio.sleep(0)
    recording.cancel()
    await asyncio.wait({recording})
    assert recording.cancelled()

    async def ended() -> bool:
        return not await tasks.is_task_active("t")

    await eventually(ended, "the task has ended")
    async with aclosing(tasks.subscribe("t")) as events:
        assert [event.state async for event in events] == [A2AState.COMPLETED]
