"""What `redis-state dev` does and shows when its watch fails, or its workers end by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("stamina", reason="needs the pool extra")

from redis_state.cli.servers import dev_watch, dev_workers
from redis_state.cli.servers.dev_watch import CodeWatch
from redis_state.cli.servers.dev_workers import DevWorkers, own_server_options
from redis_state.settings import make_settings


async def test_a_watch_that_fails_is_shown_and_begins_again_with_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev_watch, "_AGAIN_S", 0.0)
    shown, said, tries, ended = list[str | None](), list[str](), list[int](), asyncio.Event()

    async def reload() -> bool:
        shown.append(watch.problem)
        if len(shown) == 1:
            raise OSError("no process can be started")
        return True

    async def changes() -> AsyncIterator[set[str]]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("OS file watch limit reached")
        yield set()
        yield {"agents.py"}
        yield set()
        ended.set()
        await asyncio.Event().wait()

    watch = CodeWatch(reload, said.append)
    running = asyncio.create_task(watch.run(changes))
    await ended.wait()
    running.cancel()
    await asyncio.wait({running})
    first, second, third = shown
    assert "OSError: OS file watch limit reached" in str(first)
    assert "no process can be started" in str(second)
    # A change is one only.
    assert (third, watch.problem, len(tries)) == (None, None, 3)
    assert sum("limit reached" in line for line in said) == 1
    assert "agents.py has changed: starting new workers" in said


@pytest.mark.parametrize("project", ["work", ".venv/work", "node_modules/work", ".redis-state/a"])
def test_files_of_a_project_are_code_wherever_it_is_and_those_of_packages_are_not(
    project: str,
) -> None:
    root = Path("/home/ann", project)
    found = {
        name: dev_watch.is_code(root, root / name)
        for name in (
            *("agents.py", "pool/agents.py", "pool/env.py", "notes.md", "venv/lib/a.py"),
            *("a/.venv/a.py", "lib/site-packages/a.py", ".tox/a.py", "a/__pycache__/a.py"),
        )
    }
    assert [name for name, is_code in found.items() if is_code] == [
        *("agents.py", "pool/agents.py", "pool/env.py")
    ]


async def test_a_change_is_noticed_in_a_project_below_a_folder_that_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("watchfiles", reason="reloading needs watchfiles")
    project = tmp_path / ".venv" / "work"
    (project / "venv").mkdir(parents=True)
    monkeypatch.chdir(project)
    found = set[str]()

    async def write() -> None:
        # Again and again: the watch begins at a time of its own.
        for n in count():
            (project / "venv" / "package.py").write_text(str(n))
            (project / "agents.py").write_text(str(n))
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    try:
        async with asyncio.timeout(30), aclosing(dev_watch.python_changes()) as changes:
            async for paths in changes:
                found |= {Path(path).name for path in paths}
                if found:
                    break
    finally:
        writing.cancel()
        await asyncio.wait({writing})
    assert found == {"agents.py"}


async def test_workers_that_end_soon_are_shown_and_start_again_later_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev_workers, "_BOOT", "import sys; print('last words'); sys.exit(3)")
    serving, said = list[SimpleNamespace](), list[str]()

    async def workers() -> list[SimpleNamespace]:
        return serving

    client: Any = SimpleNamespace(workers=workers)
    pool = DevWorkers(client, target="agents:worker", size=1, url="", say=said.append)
    pool._children = [await pool._launch()]
    delays = list[float]()
    for _ in range(7):
        (child,) = pool._children
        await child.process.wait()
        await pool._replace_dead()
        # It waits for its turn.
        await pool._replace_dead()
        assert pool._children == [child]
        assert f"{child.process.pid} ended by itself with 3" in str(pool.problem)
        assert "last words" in str(pool.problem)
        delays.append(child.delay_s)
        child.again_at = 0.0
        await pool._replace_dead()
        assert pool._children != [child]
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert sum("ended by itself" in line for line in said) == 7
    monkeypatch.setattr(dev_workers, "_BOOT", "import sys; sys.stdin.read()")
    (child,) = pool._children
    await child.process.wait()
    await pool._replace_dead()
    child.again_at = 0.0
    await pool._replace_dead()
    await pool._replace_dead()
    assert "ended" in str(pool.problem)
    serving.append(SimpleNamespace(pid=pool.pids[0]))
    await pool._replace_dead()
    assert pool.problem is None
    await pool.__aexit__()


async def test_each_worker_that_ends_waits_for_its_own_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev_workers, "_BOOT", "import sys; sys.exit(3)")
    client: Any = SimpleNamespace()
    said = list[str]()
    pool = DevWorkers(client, target="agents:worker", size=2, url="", say=said.append)
    pool._children = [await pool._launch(), await pool._launch()]
    delays = list[list[float]]()
    for _ in range(3):
        for child in pool._children:
            await child.process.wait()
        await pool._replace_dead()
        delays.append([child.delay_s for child in pool._children])
        for child in pool._children:
            child.again_at = 0.0
        await pool._replace_dead()
    assert delays == [[1, 1], [2, 2], [4, 4]]
    await pool.__aexit__()


def test_workers_on_a_server_of_their_own_take_no_jobs_of_another_servers_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_QUEUE_URL", "redis://production/0")
    monkeypatch.setenv("Redis_State_Password_File", "/run/secrets/production")
    monkeypatch.setenv("REDIS_STATE_GUARANTEE", "replicated")
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", "mine")
    monkeypatch.setenv("REDIS_STATE_ARCHIVE_URL", "postgresql://production/archive")
    archive = SecretStr("postgresql://production/archive")
    for given, kept in ((None, None), ("embedded:///kept", archive)):
        own = own_server_options(given)
        settings = make_settings("embedded:///kept", **own)
        assert (settings.queue_url, settings.password_file) == (None, None)
        assert (settings.guarantee, settings.namespace) == ("fast", "mine")
        # An archive counts beside a server that was named.
        assert settings.archive_url == kept
        left = variables_of_workers(own)
        assert not left & {f"REDIS_STATE_{name.upper()}" for name in own}
        assert "REDIS_STATE_NAMESPACE" in left
        assert ("REDIS_STATE_ARCHIVE_URL" in left) == (kept is not None)
    assert own_server_options("redis://production") == {}
    assert "REDIS_STATE_QUEUE_URL" in variables_of_workers({})


def variables_of_workers(left_out: Iterable[str]) -> set[str]:
    """Return the variables that workers have, in capitals."""
    client: Any = SimpleNamespace()
    pool = DevWorkers(client, target="a:b", size=1, url="", say=print, left_out=left_out)
    return {name.upper() for name in pool._env}
