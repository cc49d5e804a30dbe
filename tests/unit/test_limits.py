"""A length of time or a number of things that cannot be is refused by name, where it is given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from inspect import isawaitable
from math import inf, nan
from typing import Any, cast

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import ConfigError, InvalidField, RedisStateStore, Settings
from redis_state.agents import (
    AgentLoop,
    ScriptedDriver,
    SessionRuntime,
    SessionStore,
    SubAgents,
)
from redis_state.integrations.embabel.task_state_manager import TaskStateManager
from redis_state.memory import MemoryBudget, PlannerMemory, ShortTermMemoryConfig
from redis_state.telemetry import GuardedSink
from redis_state.worker import AgentWorker, Budget, RetryPolicy, TaskClient, cleanup_cron
from redis_state.worker.agents import agent_handler

# Nothing is asked of a server: there is none.
STORE = RedisStateStore.from_url("redis://127.0.0.1:1/0")
SESSIONS = SessionStore(STORE)
RUNTIME = SessionRuntime(SESSIONS)
TASKS = TaskStateManager(STORE)
LOOP = AgentLoop(ScriptedDriver())
DAY = timedelta(days=1)

NUMBERS = (True, False, "1", b"1", (1,), nan, 1j)
ENDLESS = (*NUMBERS, None, inf, -inf, -1, -0.5, 1e12)
COUNTS = (*NUMBERS, None, inf, -inf, -1, 0.5, 1.0)
LASTS, LASTS_OR_0 = (*ENDLESS, 0, 0.0, 1e-9), ENDLESS
ANY_NUMBER, FROM_0, FROM_1 = (*NUMBERS[:-1],), COUNTS, (*COUNTS, 0)
PATIENCE = (*NUMBERS, None, -inf, -1)
ODD_LENGTHS = (-DAY, timedelta(0), timedelta(microseconds=1), timedelta.max)
LENGTHS = (*NUMBERS, None, 5, 1.5, inf, *ODD_LENGTHS)


def a2a(**options: Any) -> Any:
    pytest.importorskip("a2a", reason="needs the a2a extra")
    from redis_state.integrations.a2a.backend import A2AOptions  # noqa: PLC0415 - as above

    return A2AOptions(**options)


def chat(**options: Any) -> Any:
    pytest.importorskip("httpx", reason="needs the http extra")
    from redis_state.agents.runtime.openai import ChatDriver  # noqa: PLC0415 - as above

    return ChatDriver("m", **options)


def settings(**options: Any) -> Any:
    return RedisStateStore.from_url("redis://127.0.0.1:1/0", **options)


def worker(**options: Any) -> Any:
    return AgentWorker({}, Settings(), **options)


def subagents(**options: Any) -> Any:
    return SubAgents(RUNTIME, {}, lambda _: ScriptedDriver(), **options)


def handler(**options: Any) -> Any:
    return agent_handler(LOOP, **options)


def memory(**options: Any) -> Any:
    return PlannerMemory(ShortTermMemoryConfig(), **options)


def cleanup(**options: Any) -> Any:
    return TASKS.cleanup_old_tasks(*options.values())


CLIENT = TaskClient(STORE)

# What takes options, and for each of them the values that cannot be, and some that can.
Options = Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]]
GIVEN: Mapping[Callable[..., Any], Options] = {
    settings: {
        "call_timeout_s": ((True, nan, inf, 0, -1, 1e12), (1, 0.5)),
        "connect_timeout_s": ((True, nan, inf, 0, -1, 1e12), (1, 0.5)),
        "max_updates_per_session": ((True, nan, -1, 0.5), (0, 10)),
        "job_attempts": ((True, 0, -1), (1,)),
        "updates_ttl": ((True, -DAY, timedelta(0), timedelta.max), (DAY,)),
    },
    SessionStore: {"lifetime": ((*NUMBERS, 5, inf, *ODD_LENGTHS), (DAY, None))},
    subagents: {"lease_s": (LASTS, (0.5, 5)), "max_depth": (FROM_0, (0, 3))},
    chat: {
        "timeout_s": (LASTS, (1, 0.5)),
        "attempts": (FROM_1, (1, 3)),
        "wait_s": (LASTS_OR_0, (0, 0.5)),
    },
    handler: {"lease_s": (LASTS, (0.5,)), "busy_timeout_s": (PATIENCE, (0, 1.5, inf))},
    a2a: {
        "lease_s": (LASTS, (0.1, 15)),
        "max_bytes": (FROM_1, (1,)),
        "max_events": (FROM_1, (1,)),
        "max_push_configs": (FROM_1, (1,)),
        "tombstone": (LENGTHS, (DAY,)),
    },
    worker: {
        "max_tasks": (FROM_1, (1,)),
        "max_crashes": (FROM_0, (0, 3)),
        "task_timeout_s": ((*LASTS, 518_401), (0.5, 518_400)),
        "lease_s": (LASTS, (0.5,)),
        "poll_s": (LASTS, (0.05,)),
        "interval_s": (LASTS, (0.5,)),
        "grace_s": (LASTS_OR_0, (0, 1)),
    },
    RetryPolicy: {
        "attempts": (FROM_1, (1,)),
        "wait_initial_s": (LASTS_OR_0, (0, 0.5)),
        "wait_max_s": (LASTS_OR_0, (0, 0.5)),
        "wait_jitter_s": (LASTS_OR_0, (0, 0.5)),
        "timeout_s": ((*NUMBERS, -inf, -1, 0), (0.5, inf, None)),
    },
    Budget: {
        "seconds": ((*NUMBERS, inf, -1, 0), (0.5, None)),
        "steps": ((*NUMBERS, inf, -1, 0.5), (0, None)),
    },
    GuardedSink: {"max_waiting": (FROM_1, (1,)), "timeout_s": (PATIENCE, (0.5, inf))},
    memory: {"max_sessions": (FROM_1, (1,))},
    MemoryBudget: {
        "full_zone_turns": (FROM_0, (0, 5)),
        "summary_max_tokens": (FROM_0, (0, 5)),
        "total_max_tokens": (FROM_0, (0, 5000)),
    },
    ShortTermMemoryConfig: {
        "recovery_backlog_limit": (FROM_0, (0, 5)),
        "retry_attempts": (FROM_0, (0, 5)),
        "retry_backoff_base_s": (PATIENCE, (0, 5.5)),
        "degraded_retry_interval_s": (PATIENCE, (0, inf)),
    },
    cleanup_cron: {"older_than": ((*NUMBERS, 5, inf, -DAY), (DAY, timedelta(0)))},
    TaskStateManager: {"max_event_bytes": (FROM_1, (1,))},
    cleanup: {"older_than": ((*NUMBERS, 5, inf, -DAY), ())},
    SESSIONS.list_headers: {"limit": ((*FROM_1, 1_001), ())},
    RUNTIME.holding: {"lease_s": (LASTS, ()), "wait_s": (PATIENCE, ())},
    STORE.drain: {"timeout_s": (ANY_NUMBER, (None, inf, 1))},
    STORE.watch_updates: {"reconnect_timeout_s": ((*PATIENCE, 0), ())},
    STORE.watch_steering: {"reconnect_timeout_s": ((*PATIENCE, 0), ())},
    TASKS.subscribe: {"reconnect_timeout_s": ((*PATIENCE, 0), ())},
    STORE.contexts.apply_pending_patch: {"timeout_s": (ANY_NUMBER, ())},
    CLIENT.wait: {"timeout_s": (ANY_NUMBER, ())},
    CLIENT.result: {"timeout_s": (ANY_NUMBER, ())},
    CLIENT.unfinished: {"limit": (FROM_0, ())},
    CLIENT.dead: {"limit": (FROM_0, ())},
}
ARGUMENTS: Mapping[Callable[..., Any], tuple[Any, ...]] = {
    SessionStore: (STORE,),
    TaskStateManager: (STORE,),
    GuardedSink: (object(),),
    cleanup_cron: (TASKS,),
    RUNTIME.holding: ("s",),
    STORE.watch_updates: ("s",),
    STORE.watch_steering: ("s",),
    TASKS.subscribe: ("t",),
    STORE.contexts.apply_pending_patch: ("s", "p"),
    CLIENT.wait: ("s", "t"),
    CLIENT.result: ("s", "t"),
}
CASES = [
    pytest.param(make, option, bad, good, id=f"{make.__name__}-{option}")
    for make, options in GIVEN.items()
    for option, (bad, good) in options.items()
]


async def give(make: Callable[..., Any], option: str, value: Any) -> None:
    """Give an option, and begin what it is for."""
    made: Any = make(*ARGUMENTS.get(make, ()), **{option: value})
    if isinstance(made, AsyncGenerator):
        await anext(cast("AsyncGenerator[Any, None]", made))
    elif make.__name__ == "holding":
        async with cast("AbstractAsyncContextManager[Any]", made):
            pass
    elif isawaitable(made):
        await made


@pytest.mark.parametrize(("make", "option", "bad", "good"), CASES)
async def test_what_cannot_be_is_refused_by_name_and_what_can_be_is_not(
    make: Callable[..., Any], option: str, bad: tuple[Any, ...], good: tuple[Any, ...]
) -> None:
    for value in bad:
        with pytest.raises((ConfigError, InvalidField), match=option):
            await give(make, option, value)
    for value in good:
        await give(make, option, value)


def test_a_queues_limit_is_refused_by_its_name() -> None:
    values: tuple[Any, ...] = FROM_1
    for value in values:
        with pytest.raises(ConfigError, match=r"queue_limits\['q'\]"):
            AgentWorker({}, Settings(), queues=("q",), queue_limits={"q": value})


def test_a_run_is_not_longer_than_its_task_is_kept() -> None:
    kept = Settings(active_task_ttl=timedelta(minutes=5))
    with pytest.raises(ConfigError, match="are 320 s, and active_task_ttl is 300 s"):
        AgentWorker({}, kept)
    AgentWorker({}, kept, task_timeout_s=280)
