"""The documents tell the truth: their examples run, their links resolve, their table is current."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

import redis_state
from tests.support.processes import children, forkserver
from tests.support.servers.faults import PROCESSES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *ROOT.glob("SECURITY.md"),  # not beside the tests of an installed wheel
]
_EXAMPLE = re.compile(r"<!-- test: runs as it stands -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, code in enumerate(_EXAMPLE.findall(path.read_text(encoding="utf-8")))
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


async def _start(program: Path, environment: dict[str, str], *, fresh: bool) -> children.Process:
    if not fresh:
        return await forkserver.start(
            PROCESSES / "example.py", str(program), environment=environment, folder=program.parent
        )
    return await children.start(
        *(sys.executable, "-W", "error::ResourceWarning", str(program)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=program.parent,
        env=environment,
    )


# In `make test-full` each example has an interpreter that has imported nothing before.
@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("code", EXAMPLES)
async def test_an_example_runs_as_it_stands(code: str, tmp_path: Path, *, fresh: bool) -> None:
    if "redis_state.worker" in code:
        pytest.importorskip("arq", reason="needs the worker extra")
    if "from pydantic_ai" in code:
        pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")
    if "from agents import" in code:
        pytest.importorskip("agents", reason="needs the openai-agents extra")
    if "from mcp" in code:
        pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")
    if "from penguiflow" in code:
        pytest.importorskip("penguiflow.state", reason="needs the published package")
    program = tmp_path / "example.py"
    program.write_text(code, encoding="utf-8")
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"}
    process = await _start(program, environment, fresh=fresh)
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "Warning" not in err.decode()


def test_the_examples_of_tests_pass(tmp_path: Path) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    page = (ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
    found = re.findall(r"<!-- test: runs under pytest -->\n```python\n(.*?)```", page, re.DOTALL)
    for number, code in enumerate(found):
        (tmp_path / f"test_example_{number}.py").write_text(code, encoding="utf-8")
    unused = ("-p", "no:randomly", "-p", "no:xdist", "-p", "no:hypothesispytest", *children.LEAN)
    ran = children.run(
        [sys.executable, "-m", "pytest", "-q", *unused],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"},
    )
    assert len(found) > 1
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_resolves(path: Path) -> None:
    review = pytest.importorskip("examples.review.engine", reason="needs markdown-it-py")
    findings = review.check_links(review.parse(path), root=ROOT)
    assert [finding.message for finding in findings if finding.severity == "error"] == []


def test_every_file_that_a_promise_names_as_proof_is_there() -> None:
    page = ROOT / "docs" / "explanation" / "guarantees.md"
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", page.read_text(encoding="utf-8"))
    assert len(named) >= 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    page = ROOT / "docs" / "guides" / "troubleshooting.md"
    headings = re.findall(r"^### (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    messages = [part for heading in headings for part in re.findall(r"`([^`]+)`", heading)]
    package = Path(redis_state.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    # A literal may be cut into lines, and a name may stand in its middle.
    code = re.sub(r'"\s*f?"', "", " ".join(sources))
    assert len(messages) >= 25
    assert [text for text in messages if text not in code] == []


def test_the_page_for_contributors_names_every_target_of_the_makefile() -> None:
    if not (ROOT / "noxfile.py").exists():
        pytest.skip("only a checkout has all of them")
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"test-exhaustive", "test-matrix"} <= set(_targets())
    assert [name for name in _targets() if f"`make {name}`" not in page and name != "help"] == []


def _targets() -> list[str]:
    printed = children.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True)
    return re.findall(r"^  make ([a-z0-9-]+) +\S", printed.stdout, re.MULTILINE)


def test_each_target_that_the_makefile_leaves_to_nox_is_a_session() -> None:
    pytest.importorskip("nox", reason="needs nox")
    if not (ROOT / "noxfile.py").exists():
        pytest.skip("nox runs in a checkout")
    listing = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-l", "--json"]
    listed = children.run(listing, capture_output=True, text=True, check=True).stdout
    sessions = {each["name"] for each in json.loads(listed)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    left = {name for name in _targets() if not re.search(rf"^{name}:.*##", makefile, re.MULTILINE)}
    assert len(left) > 15
    assert {name.replace("-", "_") for name in left} <= sessions
