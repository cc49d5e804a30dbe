"""Register, tell, follow or clean up tasks, as one process of several."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from redis_state import InvalidTransition, RedisStateStore
from redis_state.integrations.embabel.task_state_manager import TaskEvent, TaskStateManager
from tests.processes.stores.use_session import meet


def status(state: str, name: str = "", *, task_id: str = "") -> dict[str, Any]:
    """Make a status update as A2A 0.3 has it."""
    return {
        "kind": "status-update",
        "taskId": task_id,
        "contextId": "c",
        "status": {"state": state},
        "final": False,
        "metadata": {"name": name},
    }


def chunk(name: str) -> dict[str, Any]:
    """Make an artifact update."""
    parts = [{"kind": "text", "text": name}]
    return {"kind": "artifact-update", "artifact": {"artifactId": "a", "parts": parts}}


def name_of(event: Mapping[str, Any]) -> str:
    """Tell the name that its maker gave an event."""
    if "artifact" in event:
        return str(event["artifact"]["parts"][0]["text"])
    return str(event["metadata"]["name"])


def shuffled(argument: dict[str, Any]) -> list[str]:
    """Put the tasks in an order of this process's own, so that each is first somewhere."""
    tasks: list[str] = argument["tasks"]
    return random.Random(argument["who"]).sample(tasks, len(tasks))


async def register(store: RedisStateStore, argument: dict[str, Any]) -> list[list[Any]]:
    """Register tasks, in an order of its own; tell whose each was found to be."""
    tasks, who = TaskStateManager(store), argument["who"]
    found: dict[str, list[Any]] = {}
    await meet(store, argument)
    for task in shuffled(argument):
        one = await tasks.register_task(task, "c", who)
        found[task] = [one.created, one.info.stream_id]
    return [found[task] for task in argument["tasks"]]


async def record(store: RedisStateStore, argument: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Tell of tasks in turn, some of it twice; tell what has which cursor."""
    tasks, who = TaskStateManager(store), argument["who"]
    await meet(store, argument)
    reported: dict[str, list[list[str]]] = {task: [] for task in argument["tasks"]}

    async def one(task: str) -> None:
        for n in range(argument["times"]):
            name = f"{who}-{n}"
            event = chunk(name) if n % 2 else status("working", name, task_id=task)
            recorded = await tasks.record_event(task, event, event_id=name)
            if n % 5 == 0:
                assert await tasks.record_event(task, event, event_id=name) == recorded
            reported[task].append([recorded.cursor, name])

    await asyncio.gather(*(one(task) for task in argument["tasks"]))
    return reported


async def end(store: RedisStateStore, argument: dict[str, Any]) -> list[list[str]]:
    """End tasks in one way and in an order of its own; tell what came of it."""
    tasks = TaskStateManager(store)
    found: dict[str, list[str]] = {}
    await meet(store, argument)
    for task in shuffled(argument):
        try:
            await tasks.record_event(task, status(argument["state"], task_id=task))
        except InvalidTransition as error:
            found[task] = ["refused", error.current]
        else:
            found[task] = ["won", argument["state"]]
    return [found[task] for task in argument["tasks"]]


async def follow(store: RedisStateStore, argument: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Follow tasks to their ends, leaving and coming back with the last cursor now and then."""
    tasks, chance = TaskStateManager(store), random.Random(argument["who"])
    await meet(store, argument)

    async def one(task: str) -> list[list[str]]:
        heard: list[TaskEvent] = []
        while not heard or not heard[-1].ends_task:
            stay = chance.randint(1, argument["stay"])
            after = heard[-1].cursor if heard else None
            async with aclosing(tasks.subscribe(task, after=after)) as events:
                async for event in events:
                    heard.append(event)
                    stay -= 1
                    if stay == 0:
                        break
        last = tasks.subscribe(task, after=heard[-1].cursor)
        assert [event async for event in last] == []
        return [[event.cursor, name_of(event.event)] for event in heard]

    heard = await asyncio.gather(*map(one, argument["tasks"]))
    return dict(zip(argument["tasks"], heard, strict=True))


async def clean(store: RedisStateStore, argument: dict[str, Any]) -> int:
    """Clean up all that has ended, again and again, until told of the last task's end."""
    tasks, dropped = TaskStateManager(store), 0
    await meet(store, argument)
    while await tasks.is_task_active("last"):
        dropped += await tasks.cleanup_old_tasks(timedelta(0))
    return dropped


async def live(store: RedisStateStore, argument: dict[str, Any]) -> list[int]:
    """Register, tell of and end tasks while others clean up; count what was there and what not."""
    tasks, who = TaskStateManager(store), argument["who"]
    await meet(store, argument)
    ended = again = 0
    for n in range(argument["times"]):
        # A few ids for all, so that a task is registered anew while its earlier life is cleaned up.
        task = f"t{n % 7}"
        registered = await tasks.register_task(task, "c", f"{who}-{n}")
        again += registered.created
        if not registered.created:
            continue
        assert registered.info.events == []
        for name in ("a", "b"):
            await tasks.record_event(task, status("working", name))
        info = await tasks.get_task_info(task)
        assert info is not None
        assert [name_of(event) for event in info.events] == ["a", "b"]
        await tasks.record_event(task, status("completed", "end"))
        ended += 1
    return [again, ended]


async def begin(store: RedisStateStore, argument: dict[str, Any]) -> None:
    """Register a task, record one event, say so, and stay until killed."""
    tasks = TaskStateManager(store)
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", status("working", "a-0"))
    print("begun", flush=True)  # noqa: T201
    await asyncio.Event().wait()


async def main(argument: dict[str, Any]) -> Any:
    """Do what the argument says."""
    does = {f.__name__: f for f in (register, record, end, follow, clean, live, begin)}
    options = {"url": argument["url"], "namespace": argument["namespace"]}
    # Links are cut while other processes take the processor.
    async with RedisStateStore.from_url(**options, call_timeout_s=30.0) as store:
        return await does[argument["does"]](store, argument)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
