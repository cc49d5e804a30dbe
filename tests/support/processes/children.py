"""The processes that tests start: each leads a group of its own, which ends with the test.

No other file of the tests starts a process (`tests/unit/suite/test_children.py`). What is left when
a test has failed or timed out is killed, with all that it has started, by a fixture in
`tests/conftest.py`. If the test has passed, a process that is left fails it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

# The group of each process that was started and not ended here; its leader's id is its own.
_groups: set[int] = set()
# Forked in this test, and killed by it on purpose: `tools/hosts.py` adds them up.
counted: Counter[str] = Counter()
# Killed processes are gone at once: this only ends a wait for what the kernel cannot end.
_GONE_S = 30.0

Word = str | Path

ROOT = Path(__file__).parents[3]
# Options of a pytest that a test starts: what other packages bring takes longer than its tests.
_PLUGINS = ("cacheprovider", "langsmith_plugin", "schemathesis", "valkey", "anyio", "platformdirs")
LEAN = tuple(word for name in _PLUGINS for word in ("-p", f"no:{name}"))


class Process(Protocol):
    """A process, started or forked."""

    @property
    def pid(self) -> int:
        """Its id, and that of its group."""
        ...

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        ...

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """What it reads, if a test writes that."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """What it prints."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        """What it complains of."""
        ...

    async def communicate(self) -> tuple[bytes, bytes]:
        """Read all that it prints, and wait for its end."""
        ...

    async def wait(self) -> int:
        """Wait for its end."""
        ...

    def send_signal(self, signal: int, /) -> None:
        """Send it a signal."""

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def kill(self) -> None:
        """Send it SIGKILL."""


async def start(*command: Word, **options: Any) -> asyncio.subprocess.Process:
    """Start a process, to be ended by `end` or with the test."""
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    _groups.add(process.pid)
    return process


def adopt(pid: int) -> None:
    """Have a process that leads a group end with the test."""
    counted["processes"] += 1
    _groups.add(pid)


async def end(process: Process) -> None:
    """Kill a process and all that it has started, whatever state they are in. Safe to repeat."""
    _kill(process.pid)
    with suppress(RuntimeError):  # a task of the test's own reads what it prints
        await process.communicate()
    await process.wait()
    _groups.discard(process.pid)


@asynccontextmanager
async def running(
    *command: Word, **options: Any
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Run a process for the length of the block."""
    process = await start(*command, **options)
    try:
        yield process
    finally:
        await end(process)


def launch(command: Sequence[Word], **options: Any) -> subprocess.Popen[Any]:
    """Start a process without a loop, to be ended with the test."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    _groups.add(process.pid)
    return process


@contextmanager
def popen(command: Sequence[Word], **options: Any) -> Generator[subprocess.Popen[Any]]:
    """Run a process for the length of the block, without a loop; it may outlast a test."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            _kill(process.pid)


def run(
    command: Sequence[Word],
    *,
    timeout: float = 90.0,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end, as `subprocess.run` does, and kill its group if it does not end."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        out, err = process.communicate(timeout=timeout)
        ran = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        ran.check_returncode()
    return ran


def end_all() -> list[str]:
    """Kill what is left of this test's processes; describe each that was still at work."""
    left = [line for group in _groups for line in at_work(group)]
    for group in _groups:
        _kill(group)
    deadline = time.monotonic() + _GONE_S
    while any(at_work(group) for group in _groups):
        assert time.monotonic() < deadline, f"cannot be killed: {left}"
        time.sleep(0.01)
    _groups.clear()
    return left


def is_at_work(pid: int) -> bool:
    """Tell whether a process has not ended yet."""
    ran = run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return ran.stdout.strip()[:1] not in ("", "Z")


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def at_work(group: int) -> list[str]:
    """Describe a group's processes, without those that have ended and were not waited for."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS says the second of what has ended
        return []
    command = ["ps", "-ww", "-A", "-o", "pgid=,pid=,stat=,args="]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=3) for line in listing.splitlines()]
    own = [row for row in rows if row[0] == str(group) and not row[2].startswith("Z")]
    return [f"{row[1]}: {row[-1]}" for row in own]
