"""An archiver in a process of its own: ``redis-state archive run --follow``."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

from benchmarks.driver import ROOT, NotMeasured
from benchmarks.server import BenchServer
from benchmarks.tasks.pool import NAMESPACE

_END_S = 30.0


class FollowingArchiver:
    """The process, from `__enter__` to `__exit__`. Errors: NotMeasured if it ended by itself."""

    def __init__(self, server: BenchServer, url: str) -> None:
        self._environment = dict(
            os.environ,
            PYTHONPATH=str(ROOT),
            REDIS_STATE_URL=server.url,
            REDIS_STATE_NAMESPACE=NAMESPACE,
            REDIS_STATE_ARCHIVE_URL=url,
        )
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "redis_state", "archive", "run", "--follow"]
        # A pipe that nobody reads would stop the process once it is full.
        self._errors = TemporaryFile("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            text=True,
            env=self._environment,
            cwd=ROOT,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        ended = self._process.poll()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        self._errors.close()
        if ended is not None:
            raise NotMeasured(f"the archiver ended by itself: {said[-1:]}")
