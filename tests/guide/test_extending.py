"""The examples of `docs/extending.md` are added to a copy of the project, and work there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes import children

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "redis_state").is_dir():
    pytest.skip("the project is copied from a checkout", allow_module_level=True)

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
COPIED = (
    *("redis_state", "lua", "tests", "docs", "tools", "examples", "pyproject.toml", "README.md"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
)
# What notices that a step is missing.
CHECKS = (
    "tests/unit/package/test_imports.py",
    "tests/unit/package/test_public_api.py",
    "tests/unit/scripts/test_lua_headers.py",
    "tests/unit/scripts/test_scripts.py",
    "tests/unit/erasure/test_key_owners.py",
    "tests/guide/test_reference.py",
    "tests/guide/test_hosts.py",
    "tests/guide/test_prose.py::test_every_file_keeps_the_rules",
)
KIT = "tests/integration/conformance/test_conformance.py"
OF_THE_HOST = f"{KIT}::test_a_host_passes_the_checks_that_differ_most[graph_steps:HOST-graphlib]"
# Only ends what hangs: a busy machine takes minutes.
_GIVE_UP_S = 600.0
_STEP = re.compile(r"^<!-- (file|edit): (\S+) -->\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """A step that the page shows: a new file, or an edit of one, with its text."""

    kind: str
    file: str
    text: str

    def do(self, folder: Path) -> None:
        """Do it in a copy of the project."""
        file = folder / self.file
        if self.kind == "edit":
            text = edited(file.read_text(encoding="utf-8"), self.text)
        else:
            assert not file.exists(), self.file
            file.parent.mkdir(parents=True, exist_ok=True)
            text = self.text
        file.write_text(text, encoding="utf-8")


STEPS = [Step(*found) for found in _STEP.findall(PAGE)]
TESTS = [file for kind, file, _ in STEPS if kind == "file" and Path(file).match("test_*.py")]


def edited(text: str, diff: str) -> str:
    """Apply a diff, each part of which is about one place of a text. … is the rest of a line."""
    _, *lines = diff.splitlines()
    for part in "\n".join(lines).split("\n@@\n"):
        pattern, new, groups = "", "", 0
        for line in part.split("\n"):
            sign, rest = line[:1], re.escape(line[1:]).replace("…", ".*") + "\n"
            if sign == "+":
                new += line[1:] + "\n"
                continue
            pattern, groups = f"{pattern}^({rest})", groups + 1
            new += "" if sign == "-" else f"\0{groups}\0"
        places = list(re.finditer(pattern, text, re.MULTILINE))
        assert len(places) == 1, f"this is there {len(places)} times:\n{part}"
        (place,) = places
        filled = re.sub("\0(\\d+)\0", lambda found: place[int(found[1])], new)  # noqa: B023
        text = text[: place.start()] + filled + text[place.end() :]
    return text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy the project, and do all steps of the page."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    for step in STEPS:
        step.do(tmp_path)
    return tmp_path


def run(project: Path, *command: str) -> str:
    """Run a command in the copy, which its Python imports, and return what it printed."""
    # A worker of xdist, and what forks its processes, are this suite's, not that of the copy.
    own = ("PYTEST", "REDIS_STATE_TEST_FORKS")
    environment = {name: each for name, each in os.environ.items() if not name.startswith(own)}
    ran = children.run(
        command,
        cwd=project,
        env=environment | {"PYTHONPATH": str(project)},
        timeout=_GIVE_UP_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    return str(ran.stdout)


def test_each_step_can_be_done_and_leaves_code_that_ruff_accepts(project: Path) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections if _STEP.search(section)] == [
        f"Add a {kind}" for kind in ("script", "kind of state", "host", "command")
    ]
    assert len(STEPS) == len(re.findall("^<!-- (?:file|edit): ", PAGE, re.MULTILINE))
    ruff = pytest.importorskip("ruff", reason="needs ruff").find_ruff_bin()
    files = [step.file for step in STEPS if step.file.endswith(".py")]
    run(project, ruff, "check", "--no-cache", *files)
    run(project, ruff, "format", "--no-cache", "--check", *files)


@pytest.mark.timeout(_GIVE_UP_S)
def test_the_examples_work_and_pass_the_checks(project: Path) -> None:
    run(project, sys.executable, "-m", "tests.guide.reference")
    written = (project / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert "## redis-state rating" in written
    pytest_ = ("-m", "pytest", "-q", "-n", "0", *children.LEAN)
    printed = run(project, sys.executable, *pytest_, *CHECKS, OF_THE_HOST, *TESTS)
    assert re.search(r"^\d+ passed in", printed, re.MULTILINE), printed
