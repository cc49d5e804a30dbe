"""Count what the table of hosts in docs/guides/which-store.md says.

    .venv/bin/python tools/hosts.py [--write] [REPORT.xml...]

prints for each host the lines of its adapter and the number of its test functions. With reports of
pytest (`--junitxml`) it prints how many of its tests passed, how many processes these started and
killed, and what the kit of conformance found, which `make test-full` runs.
`--write` writes lines and tests into the table. `tests/guide/test_hosts.py` checks the table.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "redis_state" / "integrations"
PAGE = ROOT / "docs" / "guides" / "which-store.md"
# What a test of the kit records is named so, with its row behind.
RECORDED = "host "
# What each test has of its processes, see `tests/support/processes/children.py`.
PROCESSES = ("processes", "killed")
# Cells of a row, the first behind its first line.
_LINES, _TESTS = 5, 6
_CELLS = 7
_OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
_NUMBER = r"\d(?:[\d,]*\d)?"


@dataclass(frozen=True)
class Host:
    """A row of the table: how it begins, where its adapter is, its tests, and folders left out."""

    row: str
    adapter: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()


def _of(row: str, adapter: str, *tests: str, shared: bool = False) -> Host:
    folders = (adapter, "agent_runs") if shared else (adapter,)
    return Host(row, folders, tests)


HOSTS = (
    _of("[pydantic-ai]", "pydantic_ai", "integration/pydantic_ai", shared=True),
    _of("[OpenAI Agents SDK]", "openai_agents", "integration/openai_agents", shared=True),
    Host(
        "[LangGraph]",
        ("langgraph",),
        ("integration/langgraph", "lua/graph"),
        ("importing",),
    ),
    _of("[PenguiFlow](penguiflow.md), flows", "penguiflow", "integration/penguiflow"),
    _of("[MCP servers]", "mcp", "integration/mcp"),
    _of("[A2A servers]", "a2a", "integration/a2a/test_a2a_", "integration/a2a/versions"),
    _of("[task state]", "embabel", "integration/a2a/task_states"),
    _of("[Google ADK]", "google_adk", "hosts/test_google_adk"),
    _of("[LlamaIndex]", "llama_index", "hosts/test_llama_index"),
    _of("[Agent Framework]", "agent_framework", "hosts/test_agent_framework"),
    _of("[CrewAI]", "crewai", "hosts/test_crewai"),
    _of("[ASAP]", "asap", "asap"),
)


@cache
def count_lines(host: Host) -> int:
    """Count the lines of an adapter, with docstrings."""
    left_out = set(host.without)
    return sum(
        file.read_bytes().count(b"\n")
        for folder in host.adapter
        for file in (HOME / folder).rglob("*.py")
        if not left_out & set(file.relative_to(HOME / folder).parts)
    )


@cache
def count_tests(host: Host) -> int:
    """Count the test functions of an adapter. One that has parameters counts once."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in _test_files(host))
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for tree in trees
        for node in ast.walk(tree)
    )


def rounded(count: int) -> int:
    """Return a count of lines as the table has it: fifties above a thousand, tens below."""
    step = 50 if count >= 1000 else 10  # noqa: PLR2004 - where the table is coarser
    return round(count / step) * step


def stated_of(host: Host, page: str) -> tuple[int, int]:
    """Return the lines and tests of a host's row. Errors: ValueError if it has none."""
    (line,) = [line for line in page.splitlines() if _is_row(line, host)]
    cells = line.split("|")
    lines, tests = (re.findall(_NUMBER, cells[place])[0] for place in (_LINES, _TESTS))
    return int(lines.replace(",", "")), int(tests.replace(",", ""))


def written(page: str) -> str:
    """Return the page with the counts of now."""
    made: list[str] = []
    for line in page.splitlines():
        for host in HOSTS:
            if _is_row(line, host):
                cells = line.split("|")
                for place, count in (
                    (_LINES, rounded(count_lines(host))),
                    (_TESTS, count_tests(host)),
                ):
                    cells[place] = re.sub(_NUMBER, f"{count:,}", cells[place], count=1)
                line = "|".join(cells)  # noqa: PLW2901 - the line as it is written
        made.append(line)
    return "\n".join(made) + "\n"


def outcomes(reports: Iterable[Path]) -> tuple[dict[str, Counter[str]], dict[str, str]]:
    """Read reports: outcomes and processes of each host's tests, by name; the kit's rows."""
    found = {host.row: Counter[str]() for host in HOSTS}
    recorded: dict[str, str] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
            place = case.get("classname", "").replace(".", "/")
            outcome = next(
                (_OUTCOMES[part.tag] for part in case if part.tag in _OUTCOMES), "passed"
            )
            of = [found[host.row] for host in HOSTS if _is_test_of(host, place)]
            for counts in of:
                counts[outcome] += 1
            for each in case.iter("property"):
                name = each.get("name", "")
                if name in PROCESSES:
                    for counts in of:
                        counts[name] += int(each.get("value", "0"))
                if name.startswith(RECORDED) and outcome == "passed":
                    recorded[name.removeprefix(RECORDED)] = each.get("value", "")
    return found, recorded


def _is_test_of(host: Host, place: str) -> bool:
    return any(place.startswith(f"tests/{tests}") for tests in host.tests)


def _test_files(host: Host) -> Iterator[Path]:
    for each in host.tests:
        given = ROOT / "tests" / each
        yield from (
            given.rglob("test_*.py") if given.is_dir() else given.parent.glob(f"{given.name}*.py")
        )


def _is_row(line: str, host: Host) -> bool:
    return line.startswith(f"| {host.row}") and line.count("|") > _CELLS


def main(arguments: list[str]) -> None:
    """Print the counts, and write those that are asked for."""
    found, recorded = outcomes(map(Path, (each for each in arguments if each != "--write")))
    width = max(len(host.row) for host in HOSTS)
    for host in HOSTS:
        passed = ", ".join(f"{count} {word}" for word, count in sorted(found[host.row].items()))
        lines, tests = count_lines(host), count_tests(host)
        print(f"{host.row:{width}}  {lines:>5} lines  {tests:>3} tests  {passed}")
    for row, value in recorded.items():
        print(f"{row}: {value}")
    if "--write" in arguments:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
