"""The command line, run against the test's server and namespace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

# Also because old versions import what newer ones of click deprecate, and warnings are errors.
pytest.importorskip("typer", reason="needs the cli extra")

from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from redis_state import Settings
from redis_state.cli import commands
from redis_state.cli.main import MODULES
from tests.support.processes import children, forkserver
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.faults import PROCESSES, importing

# The parsers of all commands take longer to make than most commands to run.
_parser = cache(get_command)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What ``tail --json`` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


async def begin(
    settings: Settings | None,
    *arguments: str,
    folder: Path | None = None,
    stdin: bool = False,
    environment: Mapping[str, str] | None = None,
    program: str = "command_line.py",
) -> ForkedProcess:
    """Start a command as a process of its own."""
    own = {"COLUMNS": "200"} if settings is None else _environment(settings)
    return await forkserver.start(
        PROCESSES / program,
        *arguments,
        environment=importing(**own, **(environment or {})),
        folder=folder,
        stdin=stdin,
    )


async def end(process: children.Process, *, timeout_s: float = 60.0) -> Ran:
    """Wait until a command has ended."""
    async with asyncio.timeout(timeout_s):
        out, err = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return Ran(process.returncode, out.decode(), err.decode())


async def cli(
    settings: Settings,
    *arguments: str,
    app: Typer = commands.app,
    stdin: str | None = None,
    **environment: str,
) -> Ran:
    """Run a command in a thread of this process, which is quicker than one of its own."""
    prepare()
    with patch("typer.testing._get_command", _parser):
        result = await asyncio.to_thread(
            CliRunner().invoke,
            app,
            list(arguments),
            input=stdin,
            env=_environment(settings) | environment,
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def prepare() -> None:
    """Make the parsers of all commands."""
    for module in MODULES:
        import_module(f"redis_state.cli.{module}")
    _parser(commands.app)


def _environment(settings: Settings) -> dict[str, str]:
    return {
        "COLUMNS": "200",
        "REDIS_STATE_URL": settings.url.get_secret_value(),
        "REDIS_STATE_NAMESPACE": settings.namespace,
    }
