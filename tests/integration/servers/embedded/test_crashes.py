"""What a crash leaves of an embedded server is found, ended and cleared by the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from redis_state.embedded import supervisor as embedded_keeper
from redis_state.embedded.server import start_embedded
from redis_state.errors import ConfigError
from tests.support.processes import children
from tests.support.servers.embedded import (
    DEADLINE_S,
    client,
    is_gone,
    keeper_log,
    keeper_of,
    kill_keeper,
    left_in,
    run_id,
    servers_in,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("short_temporary_root")


def test_socket_elsewhere_of_a_crashed_keeper_is_cleared(binary: Path, tmp_path: Path) -> None:
    home = tmp_path / ("path" * 25)
    with start_embedded(home, binary=binary) as crashed:
        kill_keeper(crashed)
        with start_embedded(home, binary=binary) as server:
            assert run_id(server.socket_path)
            assert server.socket_path == crashed.socket_path
    assert left_in(server.socket_path.parent) == [], keeper_log(home)


def test_a_copy_of_the_directory_leaves_the_socket_of_the_server_that_lives(
    binary: Path, tmp_path: Path
) -> None:
    home, copy = tmp_path / ("path" * 25), tmp_path / ("copy" * 25)
    with start_embedded(home, binary=binary) as server:
        shutil.copytree(home, copy, symlinks=True)
        with start_embedded(copy, binary=binary) as other:
            assert other.pid != server.pid
            assert other.socket_path != server.socket_path
        assert embedded_keeper.ask_server(server.socket_path) is not None


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


def test_stale_files_of_a_crash_do_not_matter(binary: Path, home: Path) -> None:
    home.mkdir()
    gone = home.parent / f"{embedded_keeper._elsewhere(home)}gone"
    gone.mkdir()
    (home / "redis.sock").symlink_to(gone / "redis.sock")
    for name in ("users", "start", "keeper", "server"):
        (home / f"{name}.lock").write_text("stale")
    with start_embedded(home, binary=binary) as server:
        assert server.socket_path == home / "redis.sock"
        assert not gone.exists()
        assert run_id(server.socket_path)


def test_damaged_data_is_a_config_error_with_the_log(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server, client(server) as redis:
        redis.set("a", "b")
    (log,) = (home / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(b"nonsense\r\n" + log.read_bytes())
    with pytest.raises(ConfigError, match=r"(?s)did not start.*Bad file format"):
        start_embedded(home, binary=binary)
    assert not servers_in(home)


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
