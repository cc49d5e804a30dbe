"""The tests of pydantic-ai for all engines, and those of agents, in tasks of ours.

The first make an engine of their own, which runs each operation at once: here it is a step of a
task. In the others each agent has our engine. A worker runs each test as the handler of a task.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from itertools import count
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.durable_exec import (
    BaseDurabilityCapability,
    CallableOperationBackend,
    RoleBasedOperationConfig,
)
from pydantic_ai.exceptions import UserError

from redis_state.integrations.agent_runs.scopes import current_scope
from redis_state.integrations.pydantic_ai import RedisStateDurability, durable
from redis_state.integrations.pydantic_ai.backend import StepBackend
from redis_state.testing.pool import Pool
from redis_state.worker import TaskContext
from tools.upstream.host import LEFT_OUT, Host

# It looks for calls that block, in packages that are not installed here too.
os.environ["BLOCKBUSTER_ENABLED"] = "false"
_urls: list[str] = []
_numbers = count(1)
# The schemas of a hook of requests take seconds of CPU time to build.
_LONGEST_S = 300
# Engines of theirs, and ours.
_NOT_OF_TESTS = ("pydantic_ai.", "redis_state.")
_OF_PYTEST = (pytest.fail.Exception, pytest.skip.Exception)
# What pydantic-ai itself refuses for all engines.
_REFUSED = ("redis_state", "RedisStateDurability", "durable")


def install(url: str) -> None:
    """Make the operations of tests' own engines steps, and each agent without one durable."""
    _urls.append(url)
    _make_steps()
    _make_durable()


def in_task(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Make a test the handler of a task."""

    @wraps(test)
    async def run(**given: Any) -> None:
        if current_scope() is not None:
            await test(**given)
            return
        ended: list[BaseException | None] = []

        async def handler(_: TaskContext) -> None:
            try:
                await test(**given)
            except (Exception, *_OF_PYTEST) as error:  # noqa: BLE001 - the test's own
                ended.append(error)
            else:
                ended.append(None)

        async with Pool({"test": durable(handler)}, url=_urls[0]) as pool:
            task = await pool.client.submit("test", None, session_id="upstream")
            state = await pool.client.wait("upstream", task, timeout_s=_LONGEST_S)
        assert ended, state  # noqa: S101 - as a test
        error = ended[-1]
        if isinstance(error, UserError) and any(word in str(error) for word in _REFUSED):
            pytest.skip(f"{LEFT_OUT}is refused by pydantic-ai with any engine")
        if error is not None:
            raise error

    return run


def _make_steps() -> None:
    ours = StepBackend(
        agent_name="upstream",
        default_model_id=None,
        config=RoleBasedOperationConfig(model=None, event=None, capability=None, tool=None),
        handler=None,
    )

    base: Any = CallableOperationBackend

    def wrap(cls: Any, **options: Any) -> None:
        above: Any = super
        above(base, cls).__init_subclass__(**options)
        theirs = cls.__dict__.get("execute")
        if theirs is None or cls.__module__.startswith(_NOT_OF_TESTS):
            return

        @wraps(theirs)
        async def execute(self: Any, *, body: Callable[[], Awaitable[object]], **given: Any) -> Any:
            async def step() -> object:
                if current_scope() is None:
                    return await body()
                asked: dict[str, Any] = {**given, "config": None}
                return await ours.execute(body=body, **asked)

            return await theirs(self, body=step, **given)

        cls.execute = execute

    made: Any = wrap
    base.__init_subclass__ = classmethod(made)


def _make_durable() -> None:
    make: Callable[..., None] = Agent.__init__

    @wraps(make)
    def make_durable(self: Agent[Any, Any], *args: Any, **given: Any) -> None:
        added = [*(given.pop("capabilities", None) or ())]
        # One that gets its model for a run is taken by no engine.
        has_model = bool(args) or given.get("model") is not None
        if has_model and not any(isinstance(each, BaseDurabilityCapability) for each in added):
            name = given.get("name") or f"agent {next(_numbers)}"
            added.append(RedisStateDurability[Any](name=name, pauses=False))
        make(self, *args, capabilities=added, **given)

    @wraps(AbstractAgent.run_sync)
    def run_sync(self: AbstractAgent[Any, Any], *args: Any, **given: Any) -> Any:
        results: list[Any] = []

        async def test() -> None:
            results.append(await self.run(*args, **given))

        run: Any = in_task(test)
        asyncio.run(run())
        return results[-1]

    agent: Any = Agent
    agent.__init__ = make_durable
    abstract: Any = AbstractAgent
    abstract.run_sync = run_sync


HOST = Host(
    package="pydantic-ai-slim",
    repository="https://github.com/pydantic/pydantic-ai",
    tag="v{version}",
    tests=(
        "tests/durable_exec/test_*.py",
        "tests/test_tools.py",
        "tests/test_validation_context.py",
    ),
    store=r"agent|Backend|Durability",
    install=install,
    around=in_task,
    left_out={
        r"(?i)dbos|prefect|temporal": "is about another engine",
        "test_tool_name_conflict_hint": "has the name of a toolset, which an engine wraps",
        "test_return_(bytes_invalid|unknown)": "is about values that JSON cannot hold",
    },
)
