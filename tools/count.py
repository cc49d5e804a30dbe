"""Count the project, so that one commit can be compared with another.

    .venv/bin/python tools/count.py [FOLDER [REVISION]]

prints a table of a checkout. With a revision it counts that one of the repository in FOLDER. Import
times are the CPU of a process of its own, the median of some; this needs the installed package, and
is left out for a revision.
"""

from __future__ import annotations

import ast
import io
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.unpacking import unpack

_RUNS = 15
_IMPORTS = ("redis_state", "redis_state.store", "redis_state.worker")
_TREES = ("redis_state", "lua", "examples", "tests")
# Above these a file, or a folder, may hold two ideas.
_LONG_FILE, _FULL_FOLDER = 400, 12


def main(folder: Path) -> None:
    """Print the table of a checkout."""
    rows = [*_sizes(folder), *_code(folder / "redis_state"), *_tools(folder)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")


def _sizes(folder: Path) -> Iterator[tuple[str, str]]:
    for tree in _TREES:
        files = _files(folder / tree, "*.lua" if tree == "lua" else "*.py")
        yield f"{tree}: lines / files", f"{sum(map(_lines, files)):,} / {len(files)}"
    scripts = [file for file in _files(folder / "lua", "*.lua") if "lib" not in file.parts]
    yield "Lua scripts", str(len(scripts))
    sources = _files(folder / "redis_state", "*.py")
    long = sum(_lines(file) > _LONG_FILE for file in sources)
    yield f"redis_state: longest file / above {_LONG_FILE}", f"{max(map(_lines, sources))} / {long}"
    modules = Counter(file.parent for file in sources if file.name != "__init__.py")
    full = sum(count > _FULL_FOLDER for count in modules.values())
    most = f"{max(modules.values())} / {full}"
    yield f"redis_state: most modules of a folder / above {_FULL_FOLDER}", most


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
    yield "classes", str(classes.total())
    yield "class names used twice", str(sum(count > 1 for count in classes.values()))
    yield "functions", f"{len(functions):,}"
    tenths = statistics.quantiles(functions, n=10)
    spread = f"{statistics.median(functions):g} / {tenths[-1]:g} / {max(functions)}"
    yield "code lines of a function: median / p90 / max", spread


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count the lines of a body that are neither docstring, comment nor empty."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    text = (line.strip() for line in lines[body[0].lineno - 1 : node.end_lineno])
    return sum(bool(line) and not line.startswith("#") for line in text)


def _tools(folder: Path) -> Iterator[tuple[str, str]]:
    makefile, run = (_lines(folder / name) for name in ("Makefile", ".ci/run"))
    yield "Makefile + .ci/run", f"{makefile} + {run}"
    if folder.resolve() == Path(__file__).resolve().parents[1]:
        for module in _IMPORTS:
            yield f"import {module}", f"{_import_ms(module):.0f} ms of CPU"


def _import_ms(module: str) -> float:
    """Measure an import, without the start of the interpreter."""
    loaded, nothing = (
        statistics.median(_cpu_s(code) for _ in range(_RUNS)) for code in (f"import {module}", "")
    )
    return (loaded - nothing) * 1000


def _cpu_s(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def _count_revision(folder: Path, revision: str) -> None:
    command = ["git", "-C", str(folder), "archive", revision]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            unpack(files, name)
        main(Path(name))


if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    if len(sys.argv) > 2:  # noqa: PLR2004 - a folder and a revision
        _count_revision(given, sys.argv[2])
    else:
        main(given)
