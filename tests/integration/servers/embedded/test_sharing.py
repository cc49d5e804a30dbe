"""Processes and threads share an embedded server, which goes with the last of them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from redis_state.embedded.server import EmbeddedServer, start_embedded
from tests.support.servers.embedded import (
    DEADLINE_S,
    User,
    client,
    is_gone,
    processes_with,
    run_id,
    servers_in,
    user,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("short_temporary_root")


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


def test_pipes_of_the_starter_close_while_its_server_lives_on(binary: Path, home: Path) -> None:
    with user(home, binary) as starter, start_embedded(home, binary=binary) as server:
        starter.leave()
        assert run_id(server.socket_path)
