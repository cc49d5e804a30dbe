"""Count the project, so that one commit can be compared with another.

    .venv/bin/python -m tools.count [FOLDER [REVISION]] [--suite]

prints a table of a checkout, as Markdown. With a revision it counts that one of the repository in
FOLDER, with the packages of this environment. Import times are the CPU of a process, the least of
some. `--suite` runs the suite too, as `make test` does.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.unpacking import unpack

_ROOT = Path(__file__).resolve().parents[1]
_RUNS = 5
_IMPORTS = ("redis_state", "redis_state.store", "redis_state.worker")
_TREES = ("redis_state", "lua", "examples", "tests")
# Above these a file, or a folder, may hold two ideas.
_LONG_FILE, _FULL_FOLDER = 400, 12
# Prints what each import has cost since the process began to import, with those before it.
_IMPORTING = """
import sys, time
began = time.process_time()
for name in sys.argv[1:]:
    __import__(name)
    print(time.process_time() - began)
"""


def main(folder: Path, *, suite: bool) -> None:
    """Print the table of a checkout."""
    rows = [*_sizes(folder), *_code(folder / "redis_state"), *_tools(folder), *_measured(folder)]
    if suite:
        rows += _suite(folder)
    print("| | |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


def _sizes(folder: Path) -> Iterator[tuple[str, str]]:
    for tree in _TREES:
        files = _files(folder / tree, "*.lua" if tree == "lua" else "*.py")
        yield f"`{tree}/`: lines, files", f"{sum(map(_lines, files)):,}, {len(files):,}"
    scripts = [file for file in _files(folder / "lua", "*.lua") if "lib" not in file.parts]
    yield "Lua scripts", str(len(scripts))
    sources = _files(folder / "redis_state", "*.py")
    long = sum(_lines(file) > _LONG_FILE for file in sources)
    yield f"longest file, files above {_LONG_FILE}", f"{max(map(_lines, sources))}, {long}"
    modules = Counter(file.parent for file in sources if file.name != "__init__.py")
    full = sum(count > _FULL_FOLDER for count in modules.values())
    most = f"{max(modules.values())}, {full}"
    yield f"most modules of a folder, folders above {_FULL_FOLDER}", most


def _code(package: Path) -> Iterator[tuple[str, str]]:
    classes: Counter[str] = Counter()
    functions: list[int] = []
    for file in _files(package, "*.py"):
        source = file.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(_code_lines(node, lines))
    twice = sum(count > 1 for count in classes.values())
    yield "classes, names of several classes", f"{classes.total():,}, {twice}"
    tenths = statistics.quantiles(functions, n=10)
    spread = f"{statistics.median(functions):g}, {tenths[-1]:g}, {max(functions)}"
    yield "code lines of a function: median, p90, most", f"{spread} ({len(functions):,} functions)"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count the lines of a body that are neither docstring, comment nor empty."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    text = (line.strip() for line in lines[body[0].lineno - 1 : node.end_lineno])
    return sum(bool(line) and not line.startswith("#") for line in text)


def _tools(folder: Path) -> Iterator[tuple[str, str]]:
    for name in ("Makefile", ".ci/run", "noxfile.py"):
        yield f"`{name}`: lines", str(_lines(folder / name))


def _measured(folder: Path) -> Iterator[tuple[str, str]]:
    followed: dict[str, int] = json.loads(_run(folder, str(_ROOT / "tools" / "followed.py")))
    for call, count in followed.items():
        yield f"modules that `{call}` enters", str(count)
    runs = [_run(folder, "-c", _IMPORTING, *_IMPORTS).split() for _ in range(_RUNS)]
    for module, seconds in zip(_IMPORTS, zip(*runs, strict=True), strict=True):
        yield f"`import {module}`", f"{min(map(float, seconds)) * 1000:.0f} ms of CPU"


def _suite(folder: Path) -> Iterator[tuple[str, str]]:
    """Run the suite. What a server uses that is nobody's child is not in its CPU."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["make", "-C", str(folder), "test"], check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield "`make test`", f"{time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU"


def _run(folder: Path, *arguments: str) -> str:
    """Run Python, which imports the package of a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        # `-c` puts the folder of the process before all others.
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder.resolve())},
    ).stdout


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def _count_revision(folder: Path, revision: str, *, suite: bool) -> None:
    command = ["git", "-C", str(folder), "archive", revision]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            unpack(files, name)
        main(Path(name), suite=suite)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.count", description="Count the project.")
    parser.add_argument("folder", nargs="?", type=Path, default=_ROOT)
    parser.add_argument("revision", nargs="?")
    parser.add_argument("--suite", action="store_true", help="run `make test` too")
    given = parser.parse_args()
    if given.revision is None:
        main(given.folder, suite=given.suite)
    else:
        _count_revision(given.folder, given.revision, suite=given.suite)
