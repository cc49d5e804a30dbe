"""The worker test of the guide in several processes at once: one that is killed disturbs none."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state.testing import eventually
from tests.support.processes import children, forkserver
from tests.support.servers.embedded import processes_with
from tests.support.servers.faults import importing

_GUIDE = children.ROOT / "docs" / "guides" / "testing.md"
_SECTION = r"## A worker test in ten lines\n.*?```python\n(.*?)```"

# A plugin of the process that dies: its task sleeps then, and its server runs.
_DIES = """
import os
import signal
from pathlib import Path
from redis_state.testing.pool import Pool

async def skip(pool, by):
    Path("server").write_text(pool.settings.url.get_secret_value())
    os.kill(os.getpid(), signal.SIGKILL)

Pool.skip = skip
"""


async def test_the_ten_lines_pass_in_processes_beside_one_that_is_killed(tmp_path: Path) -> None:
    found = re.search(_SECTION, _GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "test_ann.py").write_text(found[1], encoding="utf-8")
    (tmp_path / "dies.py").write_text(_DIES, encoding="utf-8")
    quiet = ("-q", "-p", "no:randomly", "-p", "no:xdist", *children.LEAN)
    where = ("-c", "/dev/null", "--rootdir", str(tmp_path), "test_ann.py")
    environment = importing(PYTHONPATH=f"{tmp_path}:{importing()['PYTHONPATH']}")
    processes = [
        await forkserver.start(
            *("-m", "pytest", *quiet, *more, *where), environment=environment, folder=tmp_path
        )
        for more in (("-p", "dies"), (), ())
    ]
    try:
        printed = await asyncio.gather(*(process.communicate() for process in processes))
    finally:
        await asyncio.gather(*map(children.end, processes))
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0], printed
    assert all(b"1 passed" in out for out, _ in printed[1:])
    # The server of the one that died ends with it, and its folder goes.
    socket = Path((tmp_path / "server").read_text(encoding="utf-8").removeprefix("unix://"))
    await eventually(
        lambda: not socket.parent.exists() and not processes_with(str(socket.parent)),
        "nothing is left of its server",
        timeout_s=60,
    )
