"""What `make test` leaves out is in one list; of a test with several cases one stays."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.support import costs
from tests.support.processes import children, forkserver

ROOT = Path(__file__).resolve().parents[3]


def test_each_line_of_the_list_is_a_test() -> None:
    lines = costs.FILE.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    functions = [costs.function_of(line) for line in lines]
    assert len(functions) == len(set(functions))
    # A file may have the tests of another one.
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}
    gone = [
        line
        for line in functions
        if line.rpartition("::")[2] not in names or not (ROOT / line.partition("::")[0]).exists()
    ]
    assert not gone, "renamed? Then rename them in tests/costly.txt too"


TESTS = """
import pytest

@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.full), *range(1, 9)])
def test_sweep(case): pass

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.full)])
def test_one_size(case): pass

def test_alone(): pass

@pytest.mark.parametrize("case", [1, 2])
def test_quick(case): pass

@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_of_kinds(case): pass

@pytest.mark.parametrize("case", [1, 2])
def test_dear(case): pass
"""
# Given to the process as a plugin.
LIST = """
import tests.conftest
from tests.support import costs

names = ("sweep", "one_size", "alone", "of_kinds[b]", "dear[]")
tests.conftest._COSTLY = costs.listed("\\n".join(f"test_some.py::test_{name}" for name in names))
"""


async def run_pytest(folder: Path, *arguments: str, **environment: str) -> str:
    """Run the tests above as the suite's own are run."""
    (folder / "test_some.py").write_text(TESTS)
    (folder / "own_list.py").write_text(LIST)
    own = ("-q", "--assert=plain", "-p", "tests.conftest", *children.LEAN, "-p", "own_list")
    where = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(folder))
    process = await forkserver.start(
        *("-m", "pytest", *own, *arguments, *where),
        environment=os.environ | environment,
        folder=folder,
    )
    printed, _ = await process.communicate()
    return printed.decode()


async def test_of_a_costly_test_the_case_that_is_named_or_has_the_first_id_stays(
    tmp_path: Path,
) -> None:
    printed = await run_pytest(tmp_path, "--collect-only", "-m", "exhaustive")
    found = sorted(re.findall(r"::(\S+)", printed))
    # The tests were shuffled before.
    kinds = ["test_of_kinds[a]", "test_of_kinds[c]"]
    sweep = [f"test_sweep[{at}]" for at in range(2, 9)]
    dear = ["test_dear[1]", "test_dear[2]"]
    assert found == ["test_alone", *dear, *kinds, "test_one_size[1]", *sweep]


async def test_no_costly_test_begins_once_its_time_is_over(tmp_path: Path) -> None:
    # Seven cases of the sweep, two kinds, both dear ones, and the two tests without further cases.
    late = await run_pytest(tmp_path, REDIS_STATE_COSTLY_UNTIL=str(time.time() - 1))
    assert re.search(r"SKIPPED \[13\].*no time is left for it: make test-exhaustive", late)
    assert "4 passed, 15 skipped" in late
    early = await run_pytest(tmp_path, REDIS_STATE_COSTLY_UNTIL=str(time.time() + 3600))
    assert "17 passed, 2 skipped" in early


def test_the_list_names_what_costs_most_for_each_case() -> None:
    rows = [("a::sweep[1]", 3.0), ("a::sweep[2]", 5.0), ("a::table[1]", 1.0), ("a::one", 6.0)]
    rows += [("tests/unit/package/test_imports.py::test_that_costs_much", 9.0)]
    rows += [(f"a::table[{number}]", 1.0) for number in range(2, 6)]
    # 29 seconds: the one saves 6, and the sweep the 5 of its second case.
    assert costs.costliest(rows, 0.2) == ["a::one"]
    assert costs.costliest(rows, 0.37) == ["a::one", "a::sweep"]
    assert costs.costliest(rows, 0.4) == ["a::one", "a::sweep", "a::table"]
