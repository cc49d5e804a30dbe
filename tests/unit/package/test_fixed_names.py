"""What hosts name in their configuration stays importable, with its arguments."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

import pytest

from redis_state import ConfigError

FIXED = {
    "redis_state": "RedisStateStore Settings RedisStateError",
    "redis_state.agents": "AgentState ExecutionBudget AgentSession SessionStore",
    "redis_state.worker": "AgentWorker TaskContext TaskClient",
    "redis_state.gateway": "create_gateway",
    "redis_state.integrations.penguiflow": "create_store create_token_store"
    " create_job_store create_a2a_task_store",
    "redis_state.integrations.asap": "create_snapshot_store create_async_snapshot_store",
    "redis_state.integrations.a2a": "create_task_store create_versioned_task_store"
    " create_event_stream create_push_config_store create_queue_manager TaskStateManager",
    "redis_state.integrations.pydantic_ai": "pydantic_handler",
    "redis_state.integrations.langgraph": "RedisSaver RedisStore graph_handler",
    "workers.settings": "worker WorkerSettings",
}
OPTIONS = (
    "max_events_per_trace max_updates_per_session max_steering_events_per_session"
    " max_planner_events_per_trace artifact_retention namespace"
)


@pytest.mark.parametrize(("module", "names"), FIXED.items(), ids=list(FIXED))
def test_a_fixed_name_can_be_imported(module: str, names: str) -> None:
    try:
        found = import_module(module)
    except ImportError as error:
        pytest.skip(str(error))
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_what_penguiflow_configures_is_taken() -> None:
    pytest.importorskip("penguiflow.state", reason="needs the published package")
    create_store = import_module("redis_state.integrations.penguiflow").create_store
    signature = inspect.signature(create_store)
    signature.bind(**dict.fromkeys(OPTIONS.split()))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REDIS_STATE_URL", "redis+sentinel://127.0.0.1:1/primary"),
        ("REDIS_STATE_URL", "redis+cluster://127.0.0.1:1"),
        ("REDIS_STATE_PASSWORD_FILE", "/run/secrets/password"),
    ],
)
def test_the_deployed_pool_takes_what_arqs_own_runner_cannot_follow(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    pytest.importorskip("workers", reason="the deployed pool is not beside the tests")
    monkeypatch.setenv(variable, value)
    monkeypatch.delitem(sys.modules, "workers.settings", raising=False)
    settings = import_module("workers.settings")
    assert settings.worker.handlers
    with pytest.raises(ConfigError, match="arq's own runner cannot follow"):
        settings.WorkerSettings  # noqa: B018 - as arq reads it
