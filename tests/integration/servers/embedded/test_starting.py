"""An embedded server in its directory: where it listens, what it keeps, what is no directory."""

from __future__ import annotations

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from redis_state.embedded.server import start_embedded
from redis_state.embedded.supervisor import SOCKET, is_loading
from redis_state.errors import ConfigError
from tests.support.processes import children
from tests.support.servers.embedded import (
    ROOT,
    client,
    client_of,
    is_gone,
    keeper_of,
    run_id,
    user,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("short_temporary_root")


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


def test_long_path_keeps_its_socket_elsewhere(binary: Path, tmp_path: Path) -> None:
    home = tmp_path / ("long " * 12) / ("path" * 12)
    with start_embedded(home, binary=binary) as server:
        assert len(os.fsencode(server.socket_path)) <= 100
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        with user(home, binary) as other:
            assert other.pid == server.pid
            assert other.socket_path == server.socket_path
    assert not server.socket_path.parent.exists()
    with start_embedded(home, binary=binary) as again:
        # A client that is not told of a restart finds the server.
        assert again.socket_path == server.socket_path
    with start_embedded(tmp_path / ("long " * 12) / ("else" * 12), binary=binary) as other:
        assert other.socket_path != server.socket_path


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_what_others_have_put_in_the_place_of_a_socket_is_not_used(
    binary: Path, tmp_path: Path, kind: str
) -> None:
    home = tmp_path / ("long " * 12) / ("path" * 12)
    with start_embedded(home, binary=binary) as server:
        taken = server.socket_path.parent
    if kind == "open":
        taken.mkdir()
        taken.chmod(0o777)
    elif kind == "link":
        taken.symlink_to(tmp_path)
    else:
        taken.touch()
    try:
        with start_embedded(home, binary=binary) as other:
            assert other.socket_path.parent not in (taken, tmp_path)
            assert other.socket_path.parent.lstat().st_mode & 0o777 == 0o700
            assert run_id(other.socket_path)
        assert not other.socket_path.parent.exists()
        assert taken.is_symlink() or taken.exists()
    finally:
        if kind == "open":
            taken.rmdir()
        else:
            taken.unlink()
    assert not (home / "redis.sock").is_symlink()


def test_any_directory_name_will_do(binary: Path, home: Path) -> None:
    with (
        start_embedded(home / "a b'c\"ümläut %20?#\\s", binary=binary) as server,
        client_of(server.url) as redis,
    ):
        assert redis.ping()


def test_it_runs_in_a_session_of_its_own(binary: Path, home: Path) -> None:
    with start_embedded(home, binary=binary) as server:
        keeper = keeper_of(server)
        assert os.getsid(server.pid) == keeper
        assert os.getsid(0) != keeper
        assert os.getpgid(server.pid) != os.getpgid(0)


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


def test_the_home_of_no_user_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no embedded server in ~nobody-of-this-name"):
        start_embedded("~nobody-of-this-name/data")


def test_a_server_that_loads_for_longer_than_the_deadline_is_waited_for(
    binary: Path, home: Path
) -> None:
    with (
        start_embedded(home, binary=binary) as server,
        client(server) as redis,
        redis.pipeline(transaction=False) as calls,
    ):
        for number in range(10_000):
            calls.set(f"key {number}", "value")
        calls.execute()
    slow = home / "slow"
    # Of the server's own tests: it sleeps so many us behind each key.
    slow.write_text(f'#!/bin/sh\nexec {binary} "$@" --key-load-delay 100\n')
    slow.chmod(0o755)
    with ThreadPoolExecutor() as beside:
        starting = beside.submit(start_embedded, home, binary=slow, deadline_s=60)
        wait_for(lambda: is_loading(home / SOCKET), "the server loads its data")
        # It joins the one that another user starts, which loads for several times as long.
        try:
            second = start_embedded(home, binary=slow, deadline_s=1.0)
        finally:
            first = starting.result()
            first.stop()
    with second, client(second) as reading:
        assert second.pid == first.pid
        assert reading.dbsize() == 10_000
