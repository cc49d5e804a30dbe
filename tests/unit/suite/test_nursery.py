"""The processes of xdist are forked from one that has collected the tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import children
from tests.support.servers.faults import importing

TESTS = """
import os
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def note(name, *line):
    with (HERE / name).open("a") as file:
        print(*line, file=file)


note("imported", os.getpid())


def named(number):
    note("collected", os.getpid())
    return f"number {number}"


@pytest.mark.parametrize("number", range(8), ids=named)
def test_each_waits_for_the_other_process(number):
    note("ran", os.getpid(), os.environ["PYTEST_XDIST_WORKER"])
    deadline = time.monotonic() + 60
    while len({line.split()[1] for line in (HERE / "ran").read_text().splitlines()}) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_that_fails():
    assert 1 + 1 == 3


def test_that_dies():
    os._exit(3)
"""
# In a folder, whose hooks and fixtures a process knows that did not collect it.
BELOW = """
def test_below(own, pytestconfig, request):
    assert own == request.node.name
    assert pytestconfig is request.config and pytestconfig.workerinput
"""
CONFTEST = """
import pytest


def pytest_runtest_setup(item):
    item.own = item.name


@pytest.fixture
def own(request):
    return request.node.own
"""
SKIPPED = """
import pytest

pytest.skip("there is no such host", allow_module_level=True)
"""


def command(folder: Path) -> list[str]:
    # In their order, so that each process begins with some that wait.
    own = ("-q", "-p", "tests.conftest", "-p", "no:randomly", "-n", "2", *children.LEAN)
    return [sys.executable, "-m", "pytest", *own, "--import-mode=importlib", str(folder)]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_tests_are_collected_once_and_run_by_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name, text in (
        ("test_forked.py", TESTS),
        ("test_skipped.py", SKIPPED),
        ("below/conftest.py", CONFTEST),
        ("below/test_below.py", BELOW),
    ):
        (tmp_path / name).write_text(text)
    ran = children.run(command(tmp_path), capture_output=True, text=True, env=importing())
    imported = (tmp_path / "imported").read_text().split()
    collected = (tmp_path / "collected").read_text().split()
    rows = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(imported) == 1, ran.stdout
    assert set(collected) == set(imported)
    assert "assert (1 + 1) == 3" in ran.stdout
    assert "crashed while running" in ran.stdout
    assert "2 failed, 9 passed, 1 skipped" in ran.stdout
    # One more if the process that died had not run all of its tests.
    assert len({worker for _, worker in rows}) == len({pid for pid, _ in rows}) >= 2
    assert not {pid for pid, _ in rows} & set(imported)


@pytest.mark.timeout(300)
def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_forked.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    ran = children.run(command(tmp_path), capture_output=True, text=True, env=importing())
    assert "No module named 'nothing_of_this_name'" in ran.stdout
    assert "1 error" in ran.stdout
    assert ran.returncode != 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("text", "chosen"),
    [("import sys\n\nsys.exit()\n", []), ("", ["-k", "good and ("])],
    ids=["an exit", "a wrong choice"],
)
def test_what_ends_the_collection_ends_the_run(
    tmp_path: Path, text: str, chosen: list[str]
) -> None:
    (tmp_path / "test_a.py").write_text("def test_good():\n    pass\n")
    (tmp_path / "test_b.py").write_text(text)
    (tmp_path / "test_c.py").write_text("def test_good_too():\n    assert False\n")
    ran = children.run(
        [*command(tmp_path), *chosen], capture_output=True, text=True, env=importing()
    )
    assert ran.returncode not in (0, 1), ran.stdout
    assert " passed" not in ran.stdout


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_forked.py").write_text(TESTS.replace("< 2", "< 3"))
    run = children.launch(command(tmp_path), stdout=subprocess.DEVNULL, env=importing())
    ran = tmp_path / "ran"
    try:
        wait_until(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    finally:
        run.kill()
        run.wait()
    pids = [int(line.split()[0]) for line in ran.read_text().splitlines()]
    # The workers, and what forked them.
    wait_until(lambda: not any(map(children.is_at_work, pids)) and not children.at_work(run.pid))
