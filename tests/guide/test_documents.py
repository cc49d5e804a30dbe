"""The documents tell the truth: their examples run, their links resolve, their table is current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.guide.key_table import BEGIN, END, key_table
from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_EXAMPLE = re.compile(r"<!-- test: runs as it stands -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, code in enumerate(_EXAMPLE.findall(path.read_text(encoding="utf-8")))
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_as_it_stands(code: str, tmp_path: Path) -> None:
    if "redis_state.worker" in code:
        pytest.importorskip("arq", reason="needs the worker extra")
    if "from penguiflow" in code:
        pytest.importorskip("penguiflow.state", reason="needs the published package")
    program = tmp_path / "example.py"
    program.write_text(code, encoding="utf-8")
    ran = children.run(
        [sys.executable, "-W", "error::ResourceWarning", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_resolves(path: Path) -> None:
    review = pytest.importorskip("redis_state.demo.review", reason="needs the cli extra")
    findings = review.check_links(review.parse(path), root=ROOT)
    assert [finding.message for finding in findings if finding.severity == "error"] == []


def test_the_key_table_is_the_one_of_the_docstrings() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == key_table().strip(), (
        "run: python tests/guide/key_table.py"
    )


def test_every_file_that_the_readme_names_as_proof_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
