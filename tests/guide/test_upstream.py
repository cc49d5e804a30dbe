"""`make test-upstream` runs hosts' own tests, which are had when it runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.upstream import run, sources
from tools.upstream.host import Host

ROOT = Path(__file__).parents[2]
HOST = Host(
    package="pytest",
    repository=str(ROOT / "no-such-repository"),
    tag="{version}",
    tests="tests/**/test_*.py",
    store=r"TheirStore\(",
    install=lambda _url: None,
    left_out={"test_files": "is about files"},
)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a folder of sources, with tests that are not about a store."""
    monkeypatch.setenv("SOURCES", str(tmp_path))
    (tmp_path / "tests" / "flows").mkdir(parents=True)
    (tmp_path / "tests" / "test_other.py").write_text("x = 1\n", encoding="utf-8")
    return tmp_path


def test_only_files_that_name_the_store_are_run(given: Path) -> None:
    about = given / "tests" / "flows" / "test_flows.py"
    about.write_text("store = TheirStore()\n", encoding="utf-8")
    assert sources.files_of(HOST, sources.sources_of(HOST)) == [str(about)]


def test_sources_without_such_tests_are_refused(given: Path) -> None:
    with pytest.raises(sources.NoSourcesError, match=f"{given.name} has no tests like"):
        sources.sources_of(HOST)


def test_nothing_is_no_success(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tools.upstream.theirs", SimpleNamespace(HOST=HOST))
    assert run.main("theirs") == 1
    assert f"{given.name} has no tests like" in capsys.readouterr().out


def test_a_test_that_does_not_apply_has_its_reason() -> None:
    assert HOST.reason("tests/test_files.py::test_one") == "is about files"
    assert HOST.reason("tests/test_flows.py::test_one") is None


@pytest.mark.skipif(not (ROOT / "noxfile.py").exists(), reason="nox runs in a checkout")
def test_each_host_has_an_environment() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (named,) = re.findall(r"^UPSTREAM = \{(.*?)^\}$", noxfile, re.MULTILINE | re.DOTALL)
    files = (ROOT / "tools" / "upstream").glob("*.py")
    hosts = {each.stem for each in files if "\nHOST = Host(" in each.read_text(encoding="utf-8")}
    assert {
        each.replace("-", "_") for each in re.findall(r'^    "(.+?)": ', named, re.MULTILINE)
    } == hosts
