from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore, Settings, TaskClient, __version__
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.support.commands import Ran, begin, end
from tests.support.processes import children
from tests.support.samples import update as make_update
from tests.support.servers.faults import importing


async def cli(
    *arguments: str, folder: Path | None = None, environment: dict[str, str] | None = None
) -> Ran:
    return await end(await begin(None, *arguments, folder=folder, environment=environment))


async def test_help_teaches_the_way_in_and_the_exit_statuses() -> None:
    ran = await cli("--help")
    assert ran.status == 0
    for word in ("redis-state demo", "REDIS_STATE_URL", "Exit status", "worker", "health"):
        assert word in ran.out


@pytest.mark.parametrize("command", ["demo", "worker", "health", "acl", "doctor", "version"])
async def test_every_command_has_a_help(command: str) -> None:
    ran = await cli(command, "--help")
    assert ran.status == 0
    assert "Usage" in ran.out


async def test_version_is_the_packages() -> None:
    ran = await end(
        await children.start(
            *(sys.executable, "-m", "redis_state", "version"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=importing(),
        )
    )
    assert ran.out.strip() == __version__


async def test_an_unknown_command_ends_with_status_2() -> None:
    assert (await cli("dance")).status == 2


async def test_health_tells_of_a_server_that_is_there(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    ran = await cli("health", "--json", "--url", url)
    assert ran.status == 0
    found = json.loads(ran.out)
    assert found["ok"] is True
    assert found["details"]["redis_version"]
    ran = await cli("health", environment={"REDIS_STATE_URL": url})
    assert ran.status == 0
    assert "redis_version" in ran.out


async def test_acl_prints_a_rule_and_contacts_nobody(unused_tcp_port: int) -> None:
    away = {"REDIS_STATE_URL": f"redis+cluster://127.0.0.1:{unused_tcp_port}"}
    ran = await cli("acl", "--namespace", "acme", "--role", "watcher", environment=away)
    assert ran.status == 0
    assert ran.out.startswith("ACL SETUSER acme-watcher on ~acme:* resetchannels ")
    assert "+hset" not in ran.out
    ran = await cli("acl", "--no-cluster", "--json", environment=away)
    found = json.loads(ran.out)
    assert "HSET" in found["commands"]
    assert {"rs:*", "arq:*:{queues-rs}/*"} <= set(found["keys"])
    assert (await cli("acl", "--namespace", "a*")).status == 2


@pytest.mark.role("any", why="it is refused what it looks for")
async def test_doctor_names_what_is_wrong_and_ends_with_1(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    ran = await cli("doctor", "--json", "--url", url)
    states = [each["state"] for each in json.loads(ran.out)]
    # The suite's server keeps nothing.
    assert ran.status == int("finding" in states)
    assert "sound" in states
    ran = await cli("doctor", environment={"REDIS_STATE_URL": url})
    assert "It means: a restart loses" in ran.out


@pytest.mark.role("any", why="it examines all keys")
async def test_doctor_says_how_many_keys_it_has_examined(settings: Settings) -> None:
    async with RedisStateStore(settings) as store:
        for number in range(20):
            await store.save_update(make_update(f"u{number}", session_id=f"s{number}"))
    url = settings.url.get_secret_value()
    for sample, most in (("7", 7), ("all", None)):
        ran = await cli("doctor", "--json", "--sample", sample, "--url", url)
        (found,) = (each for each in json.loads(ran.out) if each["question"] == "lifetimes")
        assert found["examined"] == (most or found["total"])
        assert found["total"] > 7
    for wrong in ("0", "-1", "some", ""):
        assert (await cli("doctor", "--sample", wrong, "--url", url)).status == 2


async def test_doctor_of_a_server_that_is_away_is_status_5(unused_tcp_port: int) -> None:
    url = f"redis://:s3cret@127.0.0.1:{unused_tcp_port}/0"
    ran = await cli("doctor", "--url", url, environment={"REDIS_STATE_CALL_TIMEOUT_S": "0.3"})
    assert ran.status == 5
    assert "s3cret" not in ran.out + ran.err


async def test_health_of_a_server_that_is_away_is_status_5(unused_tcp_port: int) -> None:
    url = f"redis://:s3cret@127.0.0.1:{unused_tcp_port}/0"
    ran = await cli(
        "health", "--json", "--url", url, environment={"REDIS_STATE_CALL_TIMEOUT_S": "0.3"}
    )
    assert ran.status == 5
    found = json.loads(ran.out)
    assert found["ok"] is False
    assert str(unused_tcp_port) in found["problem"]
    assert "s3cret" not in ran.out + ran.err


async def test_health_shows_an_address_of_ipv6_whole() -> None:
    away = {"REDIS_STATE_URL": "redis://[fd00::1]:6379/0", "REDIS_STATE_CALL_TIMEOUT_S": "0.3"}
    ran = await cli("health", environment=away)
    assert ran.status == 5
    assert "address" in ran.out
    assert "redis://[fd00::1]:6379/0" in ran.out


@pytest.mark.parametrize(
    ("environment", "stated"),
    [
        ({"REDIS_STATE_URL": "ftp://x"}, "unknown scheme 'ftp'"),
        (
            {"REDIS_STATE_CALL_TIMEOUT_S": "soon"},
            "unable to parse string as a number (from REDIS_STATE_CALL_TIMEOUT_S)",
        ),
        (
            {"REDIS_STATE_ARCHIVE_CLASSES": "events"},
            "archive_classes: is not JSON (from REDIS_STATE_ARCHIVE_CLASSES)",
        ),
        ({"REDIS_STATE_NAMESPACE": "a b"}, "namespace"),
    ],
)
async def test_a_wrong_setting_is_named(environment: dict[str, str], stated: str) -> None:
    ran = await cli("health", environment=environment)
    assert ran.status == 2
    assert stated in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("target", "stated"),
    [
        ("workers", "not of the form MODULE:WORKER"),
        (".workers:worker", "not of the form MODULE:WORKER"),
        (":worker", "not of the form MODULE:WORKER"),
        ("no_such_module:worker", "No module named 'no_such_module'"),
        ("redis_state:nothing", "has no attribute 'nothing'"),
        ("redis_state:Settings", "not an AgentWorker"),
    ],
)
async def test_a_worker_that_cannot_be_loaded_is_named(target: str, stated: str) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    ran = await cli("worker", target)
    assert ran.status == 2
    assert stated in ran.err
    assert "Traceback" not in ran.err


_BROKEN = {
    "raises.py": "import json\n\nLIMIT = json.loads('[') and 1\n",
    "imports.py": "from json import nothing_of_this_name\n",
    "reads.py": "def read(:\n",
    "leads.py": "import raises\n",
}


@pytest.mark.parametrize(
    ("module", "status", "stated"),
    [
        ("raises", 1, ["JSONDecodeError: Expecting value", 'raises.py", line 3', "LIMIT ="]),
        ("imports", 2, ["cannot import name 'nothing_of_this_name'", 'imports.py", line 1']),
        ("reads", 1, ["SyntaxError: invalid syntax", 'reads.py", line 1', "^"]),
        ("leads", 1, ["JSONDecodeError: ", 'leads.py", line 1', 'raises.py", line 3']),
    ],
)
@pytest.mark.parametrize("command", ["worker", "replay"])
async def test_code_that_cannot_be_imported_is_named_with_its_own_lines(
    tmp_path: Path, command: str, module: str, status: int, stated: list[str]
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    for name, text in _BROKEN.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ran = await cli(command, f"{module}:worker", folder=tmp_path)
    said, *lines = stated
    first, *rest = ran.err.splitlines()
    assert ran.status == status
    assert first.startswith(f"redis-state: '{module}:worker' cannot be loaded: {said}")
    assert [line for line in lines if not any(line in each for each in rest)] == []
    assert "importlib" not in ran.err
    assert "redis_state/cli" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("--grace", "inf"), {}, "grace_s"),
        ((), {"REDIS_STATE_ARCHIVE_CLASSES": "events"}, "archive_classes: is not JSON"),
        ((), {"REDIS_STATE_QUEUE_URL": "localhost"}, "queue_url: unknown scheme"),
        ((), {"REDIS_STATE_PAUSE_TTL": "-1"}, "(from REDIS_STATE_PAUSE_TTL)"),
    ],
)
async def test_a_worker_with_a_wrong_setting_ends_with_2(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({})\n"
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    ran = await cli("worker", "my_pool:mine", *arguments, folder=tmp_path, environment=environment)
    assert (ran.status, said in ran.err) == (2, True), ran.err


def test_a_ctrl_c_while_the_commands_are_imported_is_one_line() -> None:
    program = """import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "redis_state.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from redis_state.cli.main import main

main()
"""
    ran = children.run(
        [sys.executable, "-c", program, "version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=importing(),
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "redis-state: interrupted\n")


async def test_as_the_first_process_of_a_container_a_command_ends_with_sigterm(
    store: RedisStateStore,
) -> None:
    # It numbers its processes from 1, as a container does.
    unshare = ("unshare", "--fork", "--pid", "--kill-child")
    if not shutil.which("unshare") or children.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    await store.save_update(make_update("one"))
    own = store.settings
    process = await children.start(
        *(*unshare, sys.executable, "-m", "redis_state", "tail", "session"),
        stdout=asyncio.subprocess.PIPE,
        env=importing(
            REDIS_STATE_URL=own.url.get_secret_value(), REDIS_STATE_NAMESPACE=own.namespace
        ),
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            # It shows what is there, and waits for more.
            assert await process.stdout.readline()
            found = children.run(
                ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=True
            )
            os.kill(int(found.stdout), signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
    finally:
        await children.end(process)


async def test_a_variable_with_a_misspelt_name_is_found(settings: Settings, tmp_path: Path) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    url = settings.url.get_secret_value()
    wrong = {"REDIS_STATE_NAMESPCE": "x", "REDIS_STATE_PASSWORD": "s3cret", "REDIS_STATE_TEAM": "a"}
    ran = await cli("doctor", "--json", "--url", url, environment=wrong)
    found = [each for each in json.loads(ran.out) if each["question"] == "variables"]
    assert [each["says"].split()[0] for each in found] == [
        "REDIS_STATE_NAMESPCE",
        "REDIS_STATE_PASSWORD",
    ]
    assert "REDIS_STATE_NAMESPACE" in found[0]["do"]
    assert ran.status == 1
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({}, grace_s=0)\n"
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    process = await begin(None, "worker", "my_pool:mine", folder=tmp_path, environment=wrong)
    async with asyncio.timeout(60):
        _, *warnings = [(await process.stderr.readline()).decode() for _ in range(3)]
    process.terminate()
    assert [each.count("names no setting and is ignored") for each in warnings] == [1, 1]
    ran = await end(process)
    assert (ran.status, "s3cret" in ran.err) == (0, False)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_worker_is_found_in_the_current_folder_and_ends_with_its_input(
    settings: Settings, tmp_path: Path, loop: str
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    pytest.importorskip(loop, reason="needs the uvloop extra")
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({}, grace_s=0)\n"
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    url = settings.url.get_secret_value()
    arguments = ("worker", "my_pool:mine", "--queue", f"q-{settings.namespace}")
    ran = await cli(
        *arguments,
        "--stop-with-stdin",
        "-v",
        *(("--uvloop",) if loop == "uvloop" else ()),
        folder=tmp_path,
        environment={"REDIS_STATE_URL": url},
    )
    assert ran.status == 0, ran.err
    assert "Traceback" not in ran.err


_ENDLESS = """
import asyncio, os, threading, time
from redis_state.cli import commands
from redis_state.worker import AgentWorker

commands._STOP_S = 0.2

async def threads(ctx):
    await asyncio.to_thread(threading.Event().wait)

async def holds(ctx):
    open("held", "w").close()
    time.sleep(600)

async def prints(ctx):
    while True:
        print("on", flush=True)
        await asyncio.sleep(0.01)

mine = AgentWorker({each.__name__: each for each in (threads, holds, prints)}, grace_s=GRACE_S)
"""


@asynccontextmanager
async def _endless(
    settings: Settings, folder: Path, *, grace_s: float, reading: bool = True
) -> AsyncGenerator[tuple[children.Process, TaskClient, int]]:
    """Run a worker whose handlers do not end, a client of it, and the end of what it prints."""
    pytest.importorskip("arq", reason="needs the worker extra")
    (folder / "my_pool.py").write_text(_ENDLESS.replace("GRACE_S", str(grace_s)), encoding="utf-8")
    queue = f"q-{settings.namespace}"
    read, write = os.pipe()
    arguments = ("worker", "my_pool:mine", "--queue", queue, "-v", "--stop-with-stdin")
    process = await children.start(
        *(sys.executable, "-m", "redis_state", *arguments),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=write,
        stderr=asyncio.subprocess.PIPE if reading else write,
        env=importing(
            REDIS_STATE_URL=settings.url.get_secret_value(),
            REDIS_STATE_NAMESPACE=settings.namespace,
        ),
    )
    os.close(write)
    try:
        async with RedisStateStore(settings) as store, TaskClient(store, queue=queue) as client:
            yield process, client, read
            await client.drop_queue()
    finally:
        with suppress(OSError):
            os.close(read)
        await children.end(process)


async def _runs(client: TaskClient, handler: str) -> str:
    task = await client.submit(handler, session_id="s")

    async def begun() -> bool:
        state = await client.get("s", task)
        return state is not None and state.status is TaskStatus.RUNNING

    await eventually(begun, "it runs", timeout_s=40)
    return task


async def test_a_worker_stops_though_a_thread_of_a_handler_works_on(
    settings: Settings, tmp_path: Path
) -> None:
    async with _endless(settings, tmp_path, grace_s=0) as (process, client, _):
        task = await _runs(client, "threads")
        process.terminate()
        async with asyncio.timeout(40):
            _, errors = await process.communicate()
        assert (process.returncode, b"a run is begun" in errors) == (0, True), errors
        state = await client.get("s", task)
        assert state is not None
        assert state.status is TaskStatus.PENDING


async def test_a_worker_whose_handler_holds_its_loop_ends_with_its_input(
    settings: Settings, tmp_path: Path
) -> None:
    async with _endless(settings, tmp_path, grace_s=0) as (process, client, _):
        await _runs(client, "holds")
        # Until then it ends by itself.
        await eventually((tmp_path / "held").exists, "the handler holds its loop", timeout_s=40)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(40):
            assert await process.wait() == -signal.SIGKILL


async def test_a_handler_that_prints_is_handed_off_when_who_read_it_has_died(
    settings: Settings, tmp_path: Path
) -> None:
    async with _endless(settings, tmp_path, grace_s=1, reading=False) as (process, client, read):
        task = await _runs(client, "prints")
        os.close(read)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(40):
            assert await process.wait() == 0
        state = await client.get("s", task)
        assert state is not None
        assert (state.status, state.error) == (TaskStatus.PENDING, None)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_worker_told_to_end_while_its_loop_is_made_ends_quietly(
    tmp_path: Path, loop: str
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    pytest.importorskip(loop, reason="needs the uvloop extra")
    # Any loop makes itself a pair of sockets.
    text = """
import os, signal, socket
from redis_state.worker import AgentWorker

mine = AgentWorker({})
make = socket.socketpair

def told_meanwhile(*arguments):
    print("told")
    os.kill(os.getpid(), signal.SIGTERM)
    return make(*arguments)

socket.socketpair = told_meanwhile
"""
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    environment = {"REDIS_STATE_URL": "redis://127.0.0.1:1"}
    flags = ("--uvloop",) if loop == "uvloop" else ()
    ran = await cli("worker", "my_pool:mine", *flags, folder=tmp_path, environment=environment)
    assert "told" in ran.out
    assert (ran.status, ran.err) == (0, "")


async def test_a_worker_cannot_share_a_server_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({})\n"
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    ran = await cli(
        "worker", "my_pool:mine", folder=tmp_path, environment={"REDIS_STATE_URL": "embedded://"}
    )
    assert ran.status == 2
    assert "name a directory, embedded:///path" in ran.err


def test_uvloop_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({})\n"
    (tmp_path / "my_pool.py").write_text(text, encoding="utf-8")
    ran = without("uvloop", "worker", "my_pool:mine", "--uvloop", folder=tmp_path)
    assert ran.returncode == 2
    assert "pip install redis_state[uvloop]" in ran.stderr.replace("\n", " ")


def without(
    missing: str, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command where a module is not installed."""
    program = f"""import sys
sys.modules[{missing!r}] = None
from redis_state.cli.main import main

main()
"""
    return children.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
        env=importing(),
    )


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        ("typer", "cli", ["--help"]),
        ("rich", "cli", ["version"]),
        ("stamina", "worker", ["demo"]),
        ("stamina", "worker", ["worker", "x:y"]),
    ],
)
def test_without_its_extra_a_command_says_what_to_install(
    missing: str, extra: str, arguments: list[str]
) -> None:
    ran = without(missing, *arguments)
    assert ran.returncode == 1
    assert missing in ran.stderr
    assert f"the extra {extra!r} brings" in ran.stderr
    assert "pip install 'redis_state[all]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
@pytest.mark.parametrize(
    "arguments", [("acl", "--json"), ("acl",), ("version",), ("--help",)], ids=" ".join
)
def test_a_full_disk_under_the_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = children.run(
            [sys.executable, "-m", "redis_state", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env=importing(),
        )
    assert ran.returncode == 1
    assert ran.stderr == "redis-state: the output cannot be written: No space left on device\n"


def test_what_needs_no_worker_works_without_its_extra() -> None:
    assert without("stamina", "version").stdout.strip() == __version__
