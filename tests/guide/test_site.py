"""The site is built without a warning: every page is reached, every link resolves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.processes import children

pytest.importorskip("sphinx", reason="needs the docs extra")
pytest.importorskip("myst_parser", reason="needs the docs extra")
pytest.importorskip("furo", reason="needs the docs extra")

ROOT = Path(__file__).resolve().parents[2]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    built = children.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-b",
            "html",
            "docs",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,  # below the time that a test has
    )
    assert built.returncode == 0, built.stderr
    api = (tmp_path / "reference" / "api.html").read_text(encoding="utf-8")
    names = ("RedisStateStore", "worker.TaskClient.submit", "worker.TaskContext.step")
    assert [name for name in names if f'id="redis_state.{name}"' not in api] == []
