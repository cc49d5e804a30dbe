"""What a process starts with: the modules that it needs, and none of those that others need."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import redis_state
from redis_state import limits
from redis_state.lazy import lazily
from tests.support.processes import children

FOLDER = Path(redis_state.__file__).parent
# What comes with an extra, or is asked for by a setting, and takes long.
SELDOM = {
    *("opentelemetry", "prometheus_client", "psycopg", "pyarrow", "starlette", "uvicorn", "httpx"),
    *("jinja2", "redis_state.gateway", "redis_state.integrations", "redis_state.telemetry"),
    *("redis_state.archive.reading.reader", "redis_state.agents"),
    *("redis_state.doctor", "redis_state.migration"),
}
COMMAND = """import sys
sys.argv = {words}
from redis_state.cli.main import main
try:
    main()
except SystemExit:
    pass
"""
# What a process does first, and what else it must not import for it.
STARTS = {
    "import redis_state": {"pydantic", "redis", "asyncio", "redis_state.models"},
    "import redis_state.store": {"redis_state.archive", "redis_state.worker", "arq", "typer"},
    "import redis_state.worker": {"pydantic", "redis", "redis_state.store", "arq"},
    "from redis_state import AgentWorker": {"redis_state.worker.client", "redis_state.cli", "arq"},
    "from redis_state import TaskClient": {"redis_state.worker.pool", "redis_state.cli", "arq"},
    COMMAND.format(words=["redis-state", "find", "--help"]): {
        *("redis_state.worker", "redis_state.archive", "redis_state.cli.archive", "arq"),
        "redis_state.cli.servers",
    },
    COMMAND.format(words=["redis-state", "worker", "--help"]): {
        *("redis_state.worker", "redis_state.archive", "redis_state.cli.tasks", "arq"),
        "redis_state.cli.servers",
    },
}


def _loaded(code: str) -> list[str]:
    """List what is imported when this has run, the scripts that were made included."""
    listing = (
        "import json, sys\n"
        "loader = sys.modules.get('redis_state.scripts.loader')\n"
        "made = [f'script {name}' for name in loader.SCRIPTS._made] if loader else []\n"
        "print('\\n' + json.dumps([*sys.modules, *made]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-S", "-c", f"{code}\n{listing}"]
    done = children.run(command, env=environment, capture_output=True, check=True, text=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _is_in(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("code", STARTS, ids=lambda code: " ".join(code.split()[:4]))
def test_a_start_imports_what_it_needs(code: str) -> None:
    for package, extra in (("redis_state.worker", "cronsim"), ("cli", "typer")):
        if package in code or "AgentWorker" in code or "TaskClient" in code:
            pytest.importorskip(extra, reason="needs its extra")
    loaded = _loaded(code)
    assert "redis_state" in loaded
    assert [module for module in loaded if _is_in(module, SELDOM | STARTS[code])] == []
    # One is made at its first call.
    assert [module for module in loaded if module.startswith("script ")] == []


def _packages() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(FOLDER.rglob("__init__.py")):
        text = file.read_text(encoding="utf-8")
        if "lazily(" in text:
            yield ".".join(file.parent.relative_to(FOLDER.parent).parts), ast.parse(text)


def test_what_packages_hand_out_is_what_type_checkers_are_told() -> None:
    found = [*_packages()]
    assert {"redis_state", "redis_state.worker", "redis_state.archive"} <= {
        each for each, _ in found
    }
    for package, tree in found:
        (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.orelse)
        told = {
            (node.module, alias.name)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        (names,) = (node for node in ast.walk(block) if isinstance(node, ast.Dict))
        handed_out = {
            (module, name)
            for module, its_names in ast.literal_eval(names).items()
            for name in its_names.split()
        }
        assert told == handed_out, package
        assert {name for _, name in told} <= set(importlib.import_module(package).__all__), package


def test_a_name_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("handing_out")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    find, listed = lazily(package.__name__, {"redis_state.limits": "SHORTEST_S LONGEST_S"})
    assert {"SHORTEST_S", "LONGEST_S", "__name__"} <= set(listed())
    assert "SHORTEST_S" not in vars(package)
    assert find("SHORTEST_S") is vars(package)["SHORTEST_S"] is limits.SHORTEST_S
    with pytest.raises(AttributeError, match="module 'handing_out' has no attribute 'nothing'"):
        find("nothing")


def test_the_modules_of_a_command_add_it() -> None:
    typer = pytest.importorskip("typer", reason="needs the cli extra")
    main = importlib.import_module("redis_state.cli.main")
    for module in main.MODULES:
        importlib.import_module(f"redis_state.cli.{module}")
    app = importlib.import_module("redis_state.cli.commands").app
    stated = {name for names in main.MODULES.values() for name in names.split()}
    assert stated == set(typer.main.get_command(app).commands)
    assert main.modules_of() == main.modules_of("--help") == [*main.MODULES]
    assert main.modules_of("find") == ["tasks.finding"]
