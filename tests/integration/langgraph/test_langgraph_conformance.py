"""LangGraph's own tests of savers: all 81."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from redis_state import RedisStateStore
from redis_state.integrations.langgraph import RedisSaver
from tools.hosts import RECORDED

# Of langgraph-checkpoint-conformance 0.0.2.
TESTS = 81


async def test_all_tests_of_langgraph_pass(
    store: RedisStateStore, record_property: Callable[[str, object], None]
) -> None:
    @checkpointer_test(name="RedisSaver")
    async def made() -> AsyncGenerator[BaseCheckpointSaver[Any]]:
        yield RedisSaver(store)

    report = await validate(made)
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    passed = sum(result.tests_passed for result in report.results.values())
    record_property(
        f"{RECORDED}[LangGraph], its own tests", f"{passed} passed, {len(failed)} failed"
    )
    assert not failed
    assert passed >= TESTS
