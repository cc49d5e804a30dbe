"""The tests of Agent Framework that keep checkpoints in memory, with ours in the memory's place."""

from __future__ import annotations

import sys
import uuid
from importlib import import_module

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.agent_framework import RedisStateCheckpointStorage
from tools.upstream.host import Host

_MODULES = (
    "agent_framework",
    "agent_framework._workflows._checkpoint",
    "agent_framework._workflows",
)


def _types() -> list[str]:
    """Name the types that tests define, as their user would in ``allowed_checkpoint_types``."""
    return [
        f"{module.__name__}:{each.__qualname__}"
        for module in list(sys.modules.values())
        if module.__name__.startswith("tests.")
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]


def install(url: str) -> None:
    """Put ours in the place of the storage in memory. Each one begins empty."""

    class StandIn(RedisStateCheckpointStorage):
        def __init__(self) -> None:
            namespace = f"upstream-{uuid.uuid4().hex}"
            store = RedisStateStore(Settings(url=SecretStr(url), namespace=namespace))
            super().__init__(store, allowed_checkpoint_types=_types())

    for module in _MODULES:
        setattr(import_module(module), "InMemoryCheckpointStorage", StandIn)  # noqa: B010


HOST = Host(
    package="agent-framework-core",
    repository="https://github.com/microsoft/agent-framework",
    tag="python-{version}",
    tests="**/packages/core/tests/workflow/test_*.py",
    store=r"InMemoryCheckpointStorage\(|conformance_storage",
    install=install,
    # The tests of storages run with that in memory, and with that in files.
    variant=r"(?<!\[file\])$",
    left_out={"test_pickleable_not_deepcopyable": "is about the storage in files"},
)
