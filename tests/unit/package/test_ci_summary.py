"""The last line of .ci/run counts every test of every stage, and stages that broke without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.processes import children

SUMMARY = Path(__file__).parents[3] / "tools" / "summary.py"

pytestmark = pytest.mark.skipif(not SUMMARY.is_file(), reason="tools/ is not beside the tests")


def summary(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(SUMMARY), str(folder), *arguments]
    printed: str = children.run(command, capture_output=True, text=True, check=True).stdout
    return printed.strip()


def test_counts_are_added_up(tmp_path: Path) -> None:
    for name, counts in {
        "one": 'tests="10" failures="1" errors="1" skipped="2"',
        "two": 'tests="5" failures="0" errors="0" skipped="0"',
    }.items():
        (tmp_path / f"{name}.xml").write_text(f"<testsuites><testsuite {counts}/></testsuites>")
    (tmp_path / "cut.xml").write_text("<testsuites>")
    assert summary(tmp_path, "0") == "11 passed, 2 failed, 2 skipped"
    # A stage with failed tests is counted by them; one without, as one.
    assert summary(tmp_path, "1", "one", "cut", "two") == "11 passed, 4 failed, 3 skipped"
    assert summary(tmp_path / "none", "0") == "0 passed, 0 failed, 0 skipped"
