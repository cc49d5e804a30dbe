"""What the documents show and no test runs is at least well formed, and names what exists."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import pytest

from redis_state.cli.main import MODULES
from redis_state.rights import Role, user_rule
from redis_state.settings import make_settings
from redis_state.transport.keys import Keys
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.jobs.job_format import payload_key
from tests.guide.test_documents import DOCUMENTS

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:    )?(?:\$ )?(redis-state [^#|&<>\n]*)", re.MULTILINE)
_CALL = re.compile(r"`(redis-state [^`\n|]*)")


def _blocks(language: str) -> list[Any]:
    found: list[Any] = []
    for path in DOCUMENTS:
        blocks = _BLOCK.findall(path.read_text(encoding="utf-8"))
        codes = [code for name, code in blocks if name == language]
        found += [pytest.param(code, id=f"{path.name}-{n}") for n, code in enumerate(codes)]
    return found


@pytest.mark.parametrize("code", _blocks("python"))
def test_a_python_example_compiles(code: str) -> None:
    compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("code", _blocks("yaml"))
def test_a_yaml_example_can_be_read(code: str) -> None:
    yaml = pytest.importorskip("yaml", reason="needs pyyaml")
    assert list(yaml.safe_load_all(code))


@pytest.mark.parametrize("code", _blocks("ini"))
def test_a_unit_file_can_be_read(code: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(code if "\n[" in f"\n{code}" else f"[variables]\n{code}")
    assert parser.sections()


def test_every_alert_is_about_a_metric_that_exists() -> None:
    reference = next(path for path in DOCUMENTS if path.name == "metrics.md")
    known = set(re.findall(r"`(redis_state_\w+)`", reference.read_text(encoding="utf-8")))
    named: set[str] = set()
    for path in DOCUMENTS:
        named |= set(re.findall(r"\b(redis_state_\w+_\w+)\b", path.read_text(encoding="utf-8")))
    metrics = {re.sub(r"_(bucket|count|sum)$", "", name) for name in named}
    fixtures = {f"redis_state_{name}" for name in ("store", "server", "pool")}
    fixtures.add("pytest_redis_state")
    assert {name for name in metrics if name not in known | fixtures} == set()


def test_the_rights_that_are_shown_are_those_that_are_printed() -> None:
    settings = make_settings("redis://localhost:6379/0", namespace="acme")
    keys = {f"~{pattern}" for pattern in user_rule(settings, Role.WORKER).keys}
    shown = list(_shown_rights())
    assert {name for name, _ in shown} == {"servers.md", "workers.md"}
    assert [(name, patterns) for name, patterns in shown if patterns != keys] == []
    job = payload_key(Job("session-1", "task-1", 0, 0).id_under(Keys("acme").jobs_tag))
    assert any(fnmatchcase(f"~{job}", pattern) for pattern in keys)


def _shown_rights() -> Iterator[tuple[str, set[str]]]:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8").replace("<namespace>", "acme")
        for rule in re.findall(r"ACL SETUSER acme-worker on ([^`\n]+)", text):
            yield path.name, {word for word in rule.split() if word[0] == "~"}
        # A pattern alone, as the page about workers has it.
        for pattern in re.findall(r"`(arq:\*:[^`]*/\*)`", text):
            yield path.name, {f"~{pattern}", "~acme:*"}


def _calls() -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for call in [*_COMMAND.findall(text), *_CALL.findall(text)]:
            yield path.name, call.strip()


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    pytest.importorskip("typer", reason="needs the cli extra")
    pytest.importorskip("arq", reason="needs the worker extra")
    typer = import_module("typer")
    for more in MODULES:
        import_module(f"redis_state.cli.{more}")
    app = import_module("redis_state.cli.commands").app
    commands: dict[str, Any] = dict(typer.main.get_command(app).commands)
    groups: dict[str, Any] = {
        name: command.commands for name, command in commands.items() if hasattr(command, "commands")
    }

    wrong: list[str] = []
    seen = 0
    for page, call in _calls():
        _, *words = shlex.split(call.replace("…", "X").replace("'", "").replace('"', ""))
        known = commands
        if words and words[0] in groups and len(words) > 1 and words[1] in groups[words[0]]:
            known, words = groups[words[0]], words[1:]
        name = words[0] if words else ""
        if not name.islower() or name == "session":
            continue
        seen += 1
        command = known.get(name)
        if command is None:
            wrong.append(f"{page}: {call}")
            continue
        options = {
            option for each in command.params for option in (*each.opts, *each.secondary_opts)
        } | {"--help"}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        wrong += [f"{page}: {call}: {option}" for option in given - options]
    assert wrong == []
    assert seen > 30
