"""Forked processes: the command lines that they stand for, and how they end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes import forkserver
from tests.support.processes.forkserver import ForkedPopen

SHOW = "import os, sys; print(os.getpid(), os.getpgrp(), *sys.argv)"


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
async def test_it_runs_what_an_interpreter_would_as_the_leader_of_a_group(
    tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    command = {"-c": ("-c", SHOW), "-m": ("-m", "show"), "script": (str(script),)}[kind]
    process = await forkserver.start(*command, "a", "b", environment=os.environ, folder=tmp_path)
    out, err = await process.communicate()
    named = "-c" if kind == "-c" else str(script)
    assert out.decode().split() == [str(process.pid), str(process.pid), named, "a", "b"]
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("code", "status", "stated"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
async def test_it_ends_as_an_interpreter_does(code: str, status: int, stated: str) -> None:
    process = await forkserver.start("-c", code, environment=os.environ)
    _, err = await process.communicate()
    assert process.returncode == status
    assert stated in err.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_it_is_forked_from_a_process_without_threads() -> None:
    count = "import os; print(len(os.listdir(f'/proc/{os.getppid()}/task')))"
    process = await forkserver.start("-c", count, environment=os.environ)
    out, _ = await process.communicate()
    assert out == b"1\n"


async def test_it_stands_for_an_interpreter_that_a_process_starts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = await forkserver.execute(
            *(sys.executable, "-c", "print(input())"), stdin=-1, stdout=output, env={"A": "1"}
        )
    process.stdin.write(b"given\n")
    assert await process.communicate() == (b"", b"")
    assert log.read_bytes() == b"given\n"


def test_without_a_loop_it_is_spoken_to_and_killed_like_any_other() -> None:
    process = ForkedPopen("-c", "print(input(), flush=True)", environment=os.environ)
    assert process.communicate("given\n") == ("given\n", "")
    assert process.returncode == 0
    process = ForkedPopen("-c", "print(input(), flush=True)", environment=os.environ)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
