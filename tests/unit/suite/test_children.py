"""No test leaves a process, however it ends."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

from tests.support.processes import children
from tests.support.servers.faults import importing

TESTS = Path(__file__).resolve().parents[2]
STARTERS = {
    *("subprocess.run", "subprocess.Popen", "subprocess.call"),
    *("subprocess.check_call", "subprocess.check_output"),
    *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "os.system"),
    *("asyncio.subprocess.create_subprocess_exec", "os.posix_spawn", "os.spawnv"),
}
# Each begins a process that begins another one, and goes on as long as it likes.
LEAVING = '''
import asyncio
import subprocess
import sys
from pathlib import Path

from tests.support.processes import children

SLEEP = "import time; time.sleep(600)"
BEGIN = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(os.getpid(), child.pid, flush=True)
{SLEEP}
"""
COMMAND = (sys.executable, "-c", BEGIN)
PIDS = Path(__file__).with_name("pids")


def note(line):
    with PIDS.open("ab") as pids:
        pids.write(line)


async def begun():
    process = await children.start(*COMMAND, stdout=asyncio.subprocess.PIPE)
    note(await process.stdout.readline())
    return process


async def test_that_passes():
    await begun()


async def test_that_fails():
    await begun()
    raise AssertionError


async def test_that_waits_too_long():
    process = await begun()
    await process.wait()


async def test_that_ends_its_own_in_time():
    await children.end(await begun())


def test_that_blocks_too_long():
    with PIDS.open("ab") as pids:
        children.run(COMMAND, stdout=pids)


def test_that_leaves_one_without_a_loop():
    note(children.launch(COMMAND, stdout=subprocess.PIPE).stdout.readline())
    raise AssertionError
'''


def test_a_test_that_fails_or_times_out_leaves_no_process_and_one_that_passes_may_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    own = ("-q", "-p", "tests.conftest", "-o", "asyncio_mode=auto", *children.LEAN)
    # A traceback that parses the source breaks Python 3.11 ("AST constructor recursion depth
    # mismatch"), if the collector ends what was killed meanwhile. So: native, without columns.
    limits = ("--timeout", "2", "--tb", "native")
    ran = children.run(
        [sys.executable, "-X", "no_debug_ranges", "-m", "pytest", *own, *limits, str(tmp_path)],
        capture_output=True,
        text=True,
        env=importing(),
    )
    # There may be a warning of asyncio's about what was killed.
    assert re.search(r"4 failed, 2 passed.*, 1 error in", ran.stdout), ran.stdout
    assert "left running" in ran.stdout
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 12
    assert not [pid for pid in pids if children.is_at_work(pid)]


def starters_in(text: str) -> list[str]:
    """List the calls that start a process, and those that give a thread such a call to make."""
    return [
        f"{name.lineno}: {ast.unparse(name)}"
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        for name in (call.func, *call.args)
        if isinstance(name, ast.Attribute) and ast.unparse(name) in STARTERS
    ]


def test_no_other_file_of_the_tests_starts_a_process() -> None:
    texts = {
        path.relative_to(TESTS): path.read_text(encoding="utf-8")
        for path in sorted(TESTS.rglob("*.py"))
        if path != TESTS / "support" / "processes" / "children.py"
    }
    found = [
        f"{path}:{line}"
        for path, text in texts.items()
        if any(name in text for name in STARTERS)
        for line in starters_in(text)
    ]
    assert not found, os.linesep.join(found)
    assert starters_in("run(subprocess.run, ['a'])") == ["1: subprocess.run"]
    assert starters_in("x = await asyncio.create_subprocess_exec('a')")
    assert not starters_in("x: subprocess.Popen[str] = children.launch(['a'])")
