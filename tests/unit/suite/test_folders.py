"""CI runs the tests of the server by their folders, so that it imports no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import SERVER

TESTS = Path(__file__).resolve().parents[2]
RUN = TESTS.parent / ".ci" / "run"
MARK = "mark." + "server"


def test_it_names_every_folder_of_a_test_that_bears_the_mark() -> None:
    if not RUN.exists():
        pytest.skip("the script of CI is not beside the tests")
    named = re.search(r"tests/lua \$\(echo tests/integration/\{([\w,]+)\}\)", RUN.read_text())
    assert named is not None
    marked = {
        path.relative_to(TESTS).parts[:2]
        for path in (TESTS / "integration").rglob("test_*.py")
        if SERVER & set(path.relative_to(TESTS).parts) or MARK in path.read_text(encoding="utf-8")
    }
    assert marked == {("integration", name) for name in named[1].split(",")}
