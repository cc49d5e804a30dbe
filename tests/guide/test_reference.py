"""The reference pages are those that the code gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
pytest.importorskip("typer", reason="needs the cli extra")

from typer.main import get_command

import redis_state.doctor
from redis_state.cli.commands import app
from redis_state.cli.main import MODULES
from redis_state.cli.servers.server import doctor
from tests.guide import reference

GUIDES = reference.FOLDER.parent / "guides"


@pytest.mark.parametrize(("name", "build"), reference.pages().items())
def test_a_reference_page_is_current(name: str, build: Callable[[], str]) -> None:
    page = reference.FOLDER / name
    assert page.read_text(encoding="utf-8") == reference.write(build), (
        "run: python -m tests.guide.reference"
    )


def test_every_reference_page_is_in_the_folder() -> None:
    written = {path.name for path in reference.FOLDER.glob("*.md")}
    assert written == {*reference.pages(), "api.md", "index.md"}


def test_the_guide_to_commands_names_each_of_them() -> None:
    for module in MODULES:
        import_module(f"redis_state.cli.{module}")
    group: Any = get_command(app)
    commands: dict[str, Any] = group.commands
    page = (GUIDES / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z-]+)", page, re.MULTILINE)) | {"reject"}
    assert sorted({*commands} - named) == []


def test_the_help_and_the_guide_have_each_question_of_doctor() -> None:
    folder = Path(redis_state.doctor.__file__).parent
    sources = " ".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    asked = {
        *re.findall(r'\("([a-z ]+)", self\._[a-z]+\)', sources),
        *re.findall(r'Finding\(\s*[\w.]+,\s*"([a-z ]+)"', sources),
        *re.findall(r'_QUESTION = "([a-z ]+)"', sources),
    }
    assert {"memory", "queue", "jobs", "tasks", "durable events", "variables"} <= asked
    text = " ".join((doctor.__doc__ or "").split())
    page = (GUIDES / "servers.md").read_text(encoding="utf-8")
    assert [each for each in sorted(asked) if each not in text or f"`{each}`" not in page] == []
