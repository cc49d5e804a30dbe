"""Imports only ever point left, and one place each talks to Redis and to arq."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    (
        *(
            "lazy",
            "errors",
            "models",
            "serialization",
            "limits",
            "backoff",
            "futures",
            "settings",
            "timeouts",
            "timers",
        ),
        "private_file",
    ),
    ("transport", "embedded", "payloads", "postgres"),
    ("scripts",),
    ("primitives",),
    ("stores", "agents"),
    ("store",),
    ("memory", "telemetry", "rights", "archive"),
    ("erasure",),
    ("worker", "integrations"),
    ("documents",),
    ("gateway", "http_client"),
    ("doctor",),
    ("migration",),
    ("demo", "cli", "testing"),
    ("__main__",),
)
# Inside of a folder likewise, and more strictly: a part imports only what stands left of it. What
# stands in the folder itself is "".
FOLDERS = {
    "worker": (
        ("observe",),
        ("queue",),
        ("tasks", "archiving"),
        ("recovery", "schedules", "handler"),
        ("client", "runs", "arq"),
        ("pool",),
        ("",),
    ),
    "worker/tasks": (
        ("recorded",),
        ("",),
        ("children",),
        ("execution",),
        ("views",),
        ("messaging", "waitpoints", "submitting"),
        ("operate",),
    ),
}
# The package itself hands out what store.py composes.
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
RANK[""] = RANK["store"]
# What a store makes of itself when it is first used, and not before.
LATER = {("store", "redis_state.archive.reading.reader")}
SENDERS = {"redis": ("transport/", "embedded/"), "arq": ("worker/arq/",)}
# Ruff leaves one statement on a line.
_IMPORT = re.compile(
    r"^[ \t]*(?P<statement>(?:from|import)[ \t][^\n(]*(?:\([^)]*\))?[^\n]*)$", re.MULTILINE
)
_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)", re.MULTILINE)


def _package() -> Path:
    spec = importlib.util.find_spec("redis_state")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


PACKAGE = _package()
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).as_posix() != "__init__.py"
)


def _part(module: str) -> str:
    """Name the part of the package that a file or a dotted name belongs to."""
    return module.replace("/", ".").removesuffix(".py").split(".")[0]


def _statements(source: str) -> Iterator[tuple[int, ast.AST]]:
    """Yield line and node of each import; the rest of a module is not parsed."""
    for found in _IMPORT.finditer(source):
        try:
            tree = ast.parse(found["statement"])
        except SyntaxError:
            # A line of a docstring, or a bracket in a comment: the whole text says which.
            yield from ((getattr(node, "lineno", 0), node) for node in ast.walk(ast.parse(source)))
            return
        yield source.count("\n", 0, found.start("statement")) + 1, tree.body[0]


def _imports(source: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of everything that a module imports, at any depth."""
    parents = ["redis_state", *file.split("/")[:-1]]
    for line, node in _statements(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield line, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from redis_state import errors` names a part, `import RedisStateStore` the root.
                is_part = origin == "redis_state" and alias.name in RANK
                yield line, f"redis_state.{alias.name}" if is_part else origin


def _wrong_ways(source: str, file: str) -> Iterator[str]:
    part = _part(file)
    for line, name in _imports(source, file):
        root, _, rest = name.partition(".")
        later = (part, name) in LATER
        if root == "redis_state" and not later and RANK.get(_part(rest), len(LAYERS)) > RANK[part]:
            yield f"{file}:{line} {part} must not import {name}"
        if root in SENDERS and not file.startswith(SENDERS[root]):
            yield f"{file}:{line} only {' and '.join(SENDERS[root])} may import {root}"
        for folder, layers in FOLDERS.items():
            inside, ranks = f"redis_state/{folder}/", _ranks(layers)
            imported = f"{name.replace('.', '/')}/"
            if not f"redis_state/{file}".startswith(inside) or not imported.startswith(inside):
                continue
            own = _folder(file.removeprefix(f"{folder}/"), ranks)
            other = _folder(imported.removeprefix(inside), ranks)
            if own != other and ranks[other] >= ranks[own]:
                yield f"{file}:{line} {folder}/{own} must not import {name}"


def _ranks(layers: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {part: rank for rank, layer in enumerate(layers) for part in layer}


def _folder(path: str, ranks: dict[str, int]) -> str:
    """Name the part of a folder that a path inside of it belongs to."""
    first = path.partition("/")[0]
    return first if first in ranks else ""


def test_commands_are_built_in_the_transport_only() -> None:
    """All others call a method of `transport.commands` or of a script."""
    raw = re.compile(r"\.(?:send|ask|run_once)\(\s*[\"'][A-Z]|\bpacked_command\([\"']")
    found = [
        f"{file}: {call.group()}"
        for file in MODULES
        if not file.startswith(("transport/", "scripts/"))
        for call in raw.finditer((PACKAGE / file).read_text(encoding="utf-8"))
    ]
    assert not found
    assert raw.search("await self._transport.send(\n    'GET', key)")


def test_there_are_modules() -> None:
    assert MODULES


def test_every_module_has_a_layer() -> None:
    missing = {_part(file) for file in MODULES} - RANK.keys()
    assert not missing, "place them in LAYERS"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_inside_has_a_layer(folder: str) -> None:
    inside = [file.removeprefix(f"{folder}/") for file in MODULES if file.startswith(f"{folder}/")]
    found = {path.partition("/")[0] if "/" in path else "" for path in inside}
    assert found == _ranks(FOLDERS[folder]).keys(), "place them in FOLDERS"


def test_imports_point_left() -> None:
    wrong = [
        line
        for file in MODULES
        if _part(file) in RANK
        for line in _wrong_ways((PACKAGE / file).read_text(encoding="utf-8"), file)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("errors/conflicts.py", "from redis_state.transport import keys"),
        ("models/task.py", "from ..transport.keys import Keys"),
        ("primitives/log/log.py", "def f():\n    import redis_state.stores.sessions.tasks"),
        ("primitives/log/log.py", "from redis.asyncio import Redis"),
        ("stores/sessions/tasks.py", "from redis_state import RedisStateStore"),
        ("stores/sessions/tasks.py", "from redis_state import store"),
        ("store.py", "import arq"),
        ("stores/sessions/tasks.py", "from redis import Redis"),
        ("worker/pool/worker.py", "from redis_state.cli import main"),
        ("worker/pool/worker.py", "from arq.worker import Retry"),
        ("worker/observe/stats.py", "from redis_state.worker.queue.backlog import Backlog"),
        ("worker/observe/stats.py", "if TYPE_CHECKING:\n    from redis_state.worker import tasks"),
        ("worker/queue/loop.py", "from redis_state.worker import AgentWorker"),
        ("worker/schedules/submit.py", "from redis_state.worker.recovery import sweeper"),
        ("worker/schedules/submit.py", "from ..client.client import TaskClient"),
        (
            "worker/tasks/recorded/journal.py",
            "import redis_state.worker.tasks.move_parts",
        ),
        (
            "worker/tasks/move_parts.py",
            "from redis_state.worker.tasks.children.children import Job",
        ),
        ("worker/tasks/operate/bulk.py", "from redis_state.worker.recovery.sweeper import Sweeper"),
        ("primitives/log/log.py", "from redis import (  # (a)\n    Redis,  # b)\n)"),
        ("models/task.py", '"""\nfrom here\n"""\nfrom redis_state.worker import (\n    pool,\n)'),
    ],
)
def test_checker_finds_an_import_that_points_right(file: str, source: str) -> None:
    assert list(_wrong_ways(source, file))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("models/task.py", "from redis_state.errors import InvalidField"),
        ("transport/sending/sender.py", "from redis.asyncio.connection import Connection"),
        ("transport/subscriber.py", "from .lua import Script\nfrom .. import errors"),
        ("agents/state/session.py", "from redis_state.stores.sessions import tasks"),
        ("worker/arq/runner.py", "import arq\nfrom redis_state import RedisStateStore"),
        ("worker/client/client.py", "from redis_state.worker.schedules import client"),
        ("worker/client/client.py", "from redis_state.worker.client.reading import ClientReading"),
        (
            "worker/tasks/move_parts.py",
            "from redis_state.worker.tasks.recorded.replay import Replay",
        ),
        ("worker/tasks/move_parts.py", "from redis_state.worker.tasks.started import StartedRun"),
        ("worker/agents.py", "from redis_state.worker.runs.config import Handler"),
        ("cli/main.py", "from redis_state.demo.run import run_demo"),
    ],
)
def test_checker_accepts_imports_that_point_left(file: str, source: str) -> None:
    assert list(_wrong_ways(source, file)) == []


def test_no_class_name_stands_for_two_things() -> None:
    texts = {file: (PACKAGE / file).read_text(encoding="utf-8") for file in MODULES}
    written: defaultdict[str, list[str]] = defaultdict(list)
    for file, text in texts.items():
        for name in _CLASS.findall(text):
            written[name].append(file)
    assert len(written) > 500
    # Some stand in a docstring: only what is written twice is parsed.
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in {file for files in written.values() if len(files) > 1 for file in files}:
        for node in ast.walk(ast.parse(texts[file])):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(file)
    assert not {name: files for name, files in places.items() if len(files) > 1}
