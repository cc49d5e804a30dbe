"""PenguiFlow's A2A tasks in one store for several processes: what upstream's cannot."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("penguiflow_a2a", reason="needs the published package")

from penguiflow_a2a.models import (
    TaskStatus,
)

from redis_state import ConfigError, InvalidField, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.integrations.penguiflow import (
    PenguiflowA2ATaskStore,
)
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import PENGUIFLOW_SCOPE, a2a_keys
from redis_state.transport.wire.resp import Argument, PreparedScript
from tests.processes.a2a.use_a2a_tasks import TASK, artifact, message, reported
from tests.support.penguiflow.a2a_tasks import DONE, WORKING, hear, listing, make, push, task
from tests.support.samples import shared
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives
from tests.support.servers.faults import Proxy, run_processes
from tests.support.sizes import sizes


async def test_a_filtered_page_reads_its_own_tasks_and_no_others(
    tasks: PenguiflowA2ATaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(tasks.create_task(task(f"t{n}", f"c{n % 2}")) for n in range(300)))
    scripts, calls = tasks.base.scripts, Counter[str]()
    send = scripts._send

    def counted(prepared: PreparedScript, more: tuple[Argument, ...]) -> asyncio.Future[Any]:
        calls[prepared.script.name] += 1
        return send(prepared, more)

    monkeypatch.setattr(scripts, "_send", counted)
    page = await listing(tasks, context_id="c1", page_size=3)
    assert (len(page.tasks), page.total_size) == (3, 150)
    assert calls == {"list_a2a_tasks": 1, "read_a2a_task": 3}


async def test_a_page_token_survives_changes_between_the_pages(
    tasks: PenguiflowA2ATaskStore,
) -> None:
    for n in range(6):
        await tasks.create_task(task(f"t{n}"))
    first = await listing(tasks, page_size=2)
    await tasks.create_task(task("new"))
    await tasks.add_history("t5", message("a"))
    await tasks.add_history("t4", message("a"))
    second = await listing(tasks, page_size=2, page_token=first.next_page_token)
    third = await listing(tasks, page_size=9, page_token=second.next_page_token)
    found = [one.id for page in (first, second, third) for one in page.tasks]
    assert found == ["t5", "t4", "t3", "t2", "t1", "t0"]
    nothing = await listing(tasks, page_size=0, page_token=first.next_page_token)
    assert (nothing.tasks, nothing.next_page_token) == ([], first.next_page_token)


async def test_a_task_is_gone_as_a_whole_when_its_time_is_over(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, a2a_task_ttl=timedelta(hours=1)) as tasks:
        await tasks.create_task(task(history=[message("a")], artifacts=[artifact("a", "1")]))
        await tasks.set_push_config(TASK, "c", push("c"))
        await tasks.update_status(TASK, WORKING, final=False)
        keys = a2a_keys(tasks.base.keys, PENGUIFLOW_SCOPE, TASK)
        names = [keys.task, keys.history, keys.artifacts, keys.configs, keys.books.index]
        assert all(HOUR * 0.9 < left <= HOUR for left in await lives(scripts, *names))
        await ask(scripts, "DEL", keys.task)
        with pytest.raises(KeyError):
            await tasks.get_task(TASK)
        assert (await listing(tasks)).tasks == []
        # Made anew it has nothing of the old one.
        await tasks.create_task(task())
        assert await tasks.get_task(TASK) == task()
        assert (await tasks.list_push_configs(TASK, page_size=9, page_token=None)).configs == []


async def test_a_task_that_cannot_be_read_is_set_aside(
    tasks: PenguiflowA2ATaskStore, scripts: Scripts
) -> None:
    await tasks.create_task(task())
    await ask(scripts, "HSET", tasks.base.keys.a2a_task(PENGUIFLOW_SCOPE, TASK), "body", b"{]")
    with pytest.raises(KeyError):
        await tasks.get_task(TASK)
    assert (await listing(tasks)).tasks == []
    assert tasks.base.counters.unreadable_rows == 1


async def test_bad_input_is_named(tasks: PenguiflowA2ATaskStore) -> None:
    many = [message("a")] * 5001
    with pytest.raises(InvalidField, match="history"):
        await tasks.create_task(task(history=many))
    await tasks.create_task(task(history=many[:5000]))
    assert len((await tasks.get_task(TASK)).history or []) == 5000
    odd = TaskStatus.model_construct(state="resting")
    with pytest.raises(InvalidField, match=r"status\.state"):
        await tasks.update_status(TASK, odd, final=False)


@pytest.mark.slow
@pytest.mark.parametrize("processes", sizes(3, 8))
async def test_8_processes_lose_nothing_of_one_task_and_all_see_one_order(
    tasks: PenguiflowA2ATaskStore, settings: Settings, processes: int
) -> None:
    await tasks.create_task(task())
    queue, unsubscribe = await tasks.subscribe(TASK)
    times = 25
    writers = [shared(settings, does="write", who=f"w{n}", times=times) for n in range(processes)]
    await run_processes("use_a2a_tasks", writers)
    wanted = sorted(f"w{w}-{n}" for w in range(processes) for n in range(times))
    found = await tasks.get_task(TASK)
    history = [one.message_id for one in found.history or []]
    whole, *alone = sorted(found.artifacts or [], key=lambda one: one.artifact_id != "shared")
    parts = [str(part.text).removeprefix("shared ") for part in whole.parts]
    apart = [one.artifact_id for one in alone]
    heard = [reported(event) for event in await hear(queue, 3 * len(wanted))]
    await unsubscribe()
    assert queue.empty()
    names = [name for name in heard if " " not in name]
    for order in (history, parts, apart, names):
        assert sorted(order) == wanted
        for writer in range(processes):
            own = [name for name in order if name.startswith(f"w{writer}-")]
            assert own == [f"w{writer}-{n}" for n in range(times)]
    # What is kept and what was told are one order.
    assert [name.removeprefix("shared ") for name in heard if name.startswith("shared")] == parts
    assert (await tasks.get_task(TASK)) == found


async def test_what_a_run_changes_is_changed_once_after_a_stall_longer_than_a_call_may_take(
    settings: Settings, scripts: Scripts
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as near:
        hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0}
        async with make(settings, url=proxy.url, **hurry) as far:
            await far.create_task(task())
            queue, unsubscribe = await near.subscribe(TASK)
            proxy.silence()
            changes = [
                far.add_artifact(TASK, artifact("a", "x"), append=True, last_chunk=False),
                far.update_status(TASK, DONE, final=True),
                far.add_history(TASK, message("m")),
                far.set_push_config(TASK, "p", push("p")),
                far.list_push_configs(TASK, page_size=1, page_token=None),
            ]
            running = asyncio.gather(*changes)
            await eventually(lambda: proxy.swallowed > 0, "a reply is lost")
            await clock_passes(scripts, await clock_ms(scripts) + 600)
            assert not running.done()
            proxy.silence(silent=False)
            proxy.cut()
            async with asyncio.timeout(20):
                await running
            assert sorted([reported(event) for event in await hear(queue, 2)]) == ["end", "x"]
            assert queue.empty()
            await unsubscribe()
            kept = await near.get_task(TASK)
            assert [part.text for part in (kept.artifacts or [])[0].parts] == ["x"]
            assert [stated.message_id for stated in kept.history or []] == ["m"]


async def test_a_change_is_not_repeated_beyond_the_patience_of_its_store(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        hurry = {"call_timeout_s": 1.0, "connect_timeout_s": 1.0, "reconnect_timeout_s": 0}
        async with make(settings, url=proxy.url, **hurry) as far:
            await far.create_task(task())
            proxy.silence()
            with pytest.raises(OutcomeUnknown):
                await far.update_status(TASK, DONE, final=True)
            assert proxy.swallowed > 0
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="reconnect_timeout_s"):
            make(settings, reconnect_timeout_s=wrong)
