"""Contenders as processes: started once, asked in turn, ended at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import Measured

ROOT = Path(__file__).resolve().parents[1]
PEERS_HOME = Path(os.environ.get("REDIS_STATE_BENCH_PEERS", ROOT / ".nox"))
# A process that answers nothing for so long is killed: the other parts are measured without it.
PATIENCE_S = 180.0


class NotMeasured(Exception):
    """A contender cannot be measured here; the text says why."""


class Contender:
    """A process of ``benchmarks.contender``, or another that speaks lines of JSON."""

    def __init__(
        self,
        *arguments: str,
        module: str = "benchmarks.contender",
        python: Path | None = None,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name: str = arguments[0]
        python = python or Path(sys.executable)
        if not python.is_file():
            raise NotMeasured(f"{self.name}: no environment of its own ({python.parents[1].name})")
        environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONWARNINGS="ignore")
        environment.update(settings or {})
        if folder is not None:
            environment["REDIS_STATE_BENCH_FOLDER"] = str(folder)
        # A pipe that nobody reads would stop the process once it is full.
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        try:
            self.said: dict[str, Any] = self._heard()
        except NotMeasured:
            self.stop()
            raise

    def measure(self, operation: str, *, callers: int, seconds: float) -> Measured:
        """Have an operation measured. Errors: NotMeasured."""
        asked = {"operation": operation, "callers": callers, "seconds": seconds}
        return Measured(**self.ask(asked))

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Send a line and hear one. Errors: NotMeasured."""
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(json.dumps(asked) + "\n")
                pipe.flush()
        except OSError:
            pass  # it has ended; hearing tells why
        return self._heard()

    def stop(self) -> None:
        """End the process."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _heard(self) -> dict[str, Any]:
        overdue = Timer(PATIENCE_S, self._process.kill)
        overdue.daemon = True
        overdue.start()
        try:
            return self._next()
        finally:
            overdue.cancel()

    def _next(self) -> dict[str, Any]:
        while line := self._process.stdout.readline() if self._process.stdout else "":
            if not line.startswith("{"):
                continue  # a peer's own printing
            reply: dict[str, Any] = json.loads(line)
            if "error" in reply:
                raise NotMeasured(f"{self.name}: {reply['error']}")
            return reply
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip()
        last = said.splitlines()[-1] if said else f"ended with {self._process.returncode}"
        raise NotMeasured(f"{self.name}: {last[:200]}")
