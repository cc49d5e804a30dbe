"""What users import: exactly this, all of it documented."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tomllib
from pathlib import Path

import pytest

import redis_state
from redis_state import models, store
from redis_state.errors import RedisStateError
from tests.support.processes import children

PUBLIC = [
    "AgentWorker",
    "AlreadyVoted",
    "ArchiveFileMissing",
    "ArchiveInUse",
    "ArchiveUnavailable",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "CallerError",
    "ClaimStore",
    "CommandRefused",
    "ConfigError",
    "Conflict",
    "CorruptState",
    "CursorGap",
    "DelegationRefused",
    "ErasureOutOfReach",
    "FolderClaims",
    "HandlerChanged",
    "InvalidDecision",
    "InvalidField",
    "InvalidMessage",
    "InvalidTransition",
    "JournalRewound",
    "KeyReused",
    "LeaseLost",
    "LimitReached",
    "LostRace",
    "MemoryBudgetExceeded",
    "MissingCapability",
    "NoConnection",
    "NoReceiver",
    "NotADecider",
    "NotFound",
    "ObjectClaims",
    "OtherArchive",
    "OutcomeUnknown",
    "PauseRejected",
    "PauseTimeout",
    "PayloadCodec",
    "PayloadLost",
    "PayloadStoreUnavailable",
    "PayloadTooLarge",
    "PayloadUnreadable",
    "ProducerRefused",
    "ReceiveTimeout",
    "RedisStateError",
    "RedisStateStore",
    "RequestFailed",
    "RequestRefused",
    "RequestTimeout",
    "RequestUnanswered",
    "RetryRefused",
    "ScheduleUnknown",
    "Sealed",
    "SessionBusy",
    "SessionConflict",
    "SessionNotFound",
    "SessionRunning",
    "Settings",
    "StateUpdate",
    "SteeringEvent",
    "SteeringValidationError",
    "StoreFull",
    "StreamDeleted",
    "StreamRefused",
    "StreamUnknown",
    "TaskClient",
    "TaskContext",
    "TaskFailed",
    "TaskInProgress",
    "TaskNotCompleted",
    "TaskState",
    "TaskUnknown",
    "TaskWasCancelled",
    "ThreadClaimed",
    "ThreadMoved",
    "TokenResolved",
    "TokenUnknown",
    "VersionConflict",
    "__version__",
]


def test_the_package_exports_exactly_this() -> None:
    assert redis_state.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("module", [redis_state, models, store], ids=lambda m: m.__name__)
def test_every_export_can_be_imported_and_is_documented(module: object) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    names: list[str] = getattr(module, "__all__")  # noqa: B009 - not every module has it
    for name in names:
        exported = getattr(module, name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert inspect.getdoc(exported), name


def test_every_error_is_exported_and_has_one_base() -> None:
    errors = importlib.import_module("redis_state.errors")
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert len(defined) > 60
    assert defined <= set(PUBLIC)
    assert all(issubclass(getattr(errors, name), RedisStateError) for name in defined)
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in defined), "the tree names every error"


def test_each_error_has_the_name_by_which_it_is_imported() -> None:
    errors = importlib.import_module("redis_state.errors")
    names = {f"{getattr(errors, name).__module__}.{name}" for name in errors.__all__}
    assert names == {f"redis_state.errors.{name}" for name in errors.__all__}


def test_who_wants_an_error_imports_neither_the_store_nor_the_records() -> None:
    code = "import sys, redis_state.errors; print({'redis', 'pydantic'} & sys.modules.keys())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-S", "-c", code]
    done = children.run(command, env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
    assert {"RedisStateStore", "TaskClient"} <= set(dir(redis_state))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        getattr(redis_state, "nothing_of_this_name")  # noqa: B009 - the types do not know it


def test_an_error_says_what_to_do_by_its_branch() -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    branches = (
        redis_state.CallerError,
        redis_state.Conflict,
        redis_state.NotFound,
        redis_state.BackendError,
    )
    apart = {"CursorGap", "LostRace", "PauseRejected", "PauseTimeout", "RedisStateError"}
    apart |= {"TaskFailed", "TaskNotCompleted", "TaskWasCancelled"}
    apart |= {"InvalidMessage", "ReceiveTimeout", "RequestFailed", "RequestRefused"}
    apart |= {"RequestTimeout", "RequestUnanswered", "NoReceiver"}
    for name in PUBLIC:
        error = getattr(redis_state, name)
        if inspect.isclass(error) and issubclass(error, RedisStateError):
            count = sum(issubclass(error, branch) for branch in branches)
            assert count == (name not in apart), name


def test_every_public_method_of_the_store_is_documented() -> None:
    public = [name for name in dir(redis_state.RedisStateStore) if not name.startswith("_")]
    undocumented = [
        name for name in public if not inspect.getdoc(getattr(redis_state.RedisStateStore, name))
    ]
    assert undocumented == []
    assert len(public) > 30


def test_a_key_is_what_a_value_a_step_or_an_update_is_found_by() -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    pytest.importorskip("httpx", reason="needs the http extra")
    found: set[str] = set()
    for module in map(importlib.import_module, ("redis_state.worker", "redis_state.http_client")):
        exported = {name: getattr(module, name) for name in module.__all__}
        for name, kind in exported.items():
            if inspect.isclass(kind) and not name.startswith("_"):
                methods = inspect.getmembers(kind, inspect.isfunction)
                found |= {
                    f"{name}.{method}"
                    for method, function in methods
                    if (method == "__init__" or not method.startswith("_"))
                    and "key" in inspect.signature(function).parameters
                }
    # A limit's is a `limit_key`, a call's an `idempotency_key`; a burst has a `group`.
    assert found == {
        "HttpTaskClient.value",
        "PublishedValue.__init__",
        "TaskClient.value",
        "TaskContext.emit",
        "TaskContext.keyed_branch",
        "TaskContext.keyed_step",
        "TaskContext.publish_value",
    }


def test_making_a_store_does_no_input_and_output() -> None:
    shown = repr(redis_state.RedisStateStore.from_url("redis://nobody.invalid:1/0"))
    assert shown == "<RedisStateStore redis://nobody.invalid:1/0 namespace=rs>"


def test_the_version_is_the_projects() -> None:
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("the tests do not stand in the checkout")
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    assert redis_state.__version__ == version


def test_the_package_is_typed() -> None:
    assert redis_state.__file__ is not None
    assert (Path(redis_state.__file__).parent / "py.typed").is_file()
