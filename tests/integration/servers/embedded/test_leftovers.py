"""Folders of private servers that were killed with all users go with the next start, no others."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from redis_state.embedded import leftovers
from redis_state.embedded import supervisor as embedded_keeper
from redis_state.embedded.server import start_embedded
from tests.support.servers.embedded import (
    client,
    is_gone,
    keeper_of,
    left_in,
    run_id,
    user,
    wait_for,
)

LOCKS = (
    embedded_keeper.USERS_LOCK,
    embedded_keeper.START_LOCK,
    embedded_keeper.KEEPER_LOCK,
    embedded_keeper.SERVER_LOCK,
)


def age(folder: Path) -> None:
    """Have a folder as if it had been made an hour ago."""
    hour_ago = time.time() - 3600
    os.utime(folder / leftovers.MARK, (hour_ago, hour_ago))


def start_another(binary: Path) -> None:
    """Start a private server of this process, and stop it."""
    with start_embedded(None, binary=binary) as server:
        assert run_id(server.socket_path)


def left_folder(root: Path) -> Path:
    """Make a folder as an hour ago, whose owner is gone."""
    folder = root / f"{embedded_keeper.TEMPORARY}abcd_123"
    folder.mkdir(mode=0o700)
    (folder / leftovers.MARK).write_text(leftovers._this_machine())
    for name in LOCKS:
        (folder / name).touch(0o600)
    age(folder)
    return folder


def test_the_folder_of_a_server_that_was_killed_with_all_users_goes_with_the_next_start(
    binary: Path, short_temporary_root: Path
) -> None:
    with user(None, binary) as other:
        keeper = keeper_of(other)
        # It would remove the folder, as long as it can.
        os.kill(keeper, signal.SIGSTOP)
        other.kill(signal.SIGKILL)
        for pid in (other.pid, keeper):
            os.kill(pid, signal.SIGKILL)
            wait_for(partial(is_gone, pid), "all are gone")
    assert other.directory.parent == short_temporary_root
    # As for a start whose owner has not come to its first lock.
    start_another(binary)
    assert left_in(other.directory)
    age(other.directory)
    start_another(binary)
    assert list(short_temporary_root.iterdir()) == []


def test_a_server_that_others_use_keeps_its_folder(binary: Path) -> None:
    with user(None, binary) as other:
        age(other.directory)
        start_another(binary)
        assert run_id(other.socket_path)
        assert (other.directory / leftovers.MARK).exists()


@pytest.mark.parametrize("name", LOCKS)
def test_a_folder_of_which_one_lock_is_held_stays(
    binary: Path, short_temporary_root: Path, name: str
) -> None:
    folder = left_folder(short_temporary_root)
    lock = embedded_keeper.open_lock(folder / name)
    assert embedded_keeper.try_lock(lock, fcntl.LOCK_SH)
    start_another(binary)
    assert sorted(each.name for each in folder.iterdir()) == sorted({*LOCKS, leftovers.MARK})
    os.close(lock)
    start_another(binary)
    assert not folder.exists()


def test_what_a_removal_that_was_killed_left_goes(binary: Path, short_temporary_root: Path) -> None:
    left = short_temporary_root / f"{embedded_keeper.TEMPORARY}abcd_123.gone"
    left.mkdir()
    (left / embedded_keeper.LOG).touch()
    start_another(binary)
    assert not left.exists()


def test_a_socket_elsewhere_goes_with_its_folder(binary: Path, short_temporary_root: Path) -> None:
    folder = left_folder(short_temporary_root)
    mine, others = (
        short_temporary_root / name / embedded_keeper.SOCKET
        for name in (f"{embedded_keeper._elsewhere(folder)}1f", f"{embedded_keeper.TEMPORARY}0-1f")
    )
    for path in (mine, others):
        path.parent.mkdir()
        path.touch()
    (folder / embedded_keeper.SOCKET).symlink_to(mine)
    start_another(binary)
    assert (folder.exists(), mine.parent.exists(), others.exists()) == (False, False, True)
    others.unlink()
    others.parent.rmdir()


@pytest.mark.parametrize("text", ["another machine", ""])
def test_a_folder_of_another_machine_stays(
    binary: Path, short_temporary_root: Path, text: str
) -> None:
    folder = left_folder(short_temporary_root)
    (folder / leftovers.MARK).write_text(text)
    age(folder)
    start_another(binary)
    assert folder.exists()
    embedded_keeper.remove_tree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_stays(binary: Path, short_temporary_root: Path) -> None:
    folder = left_folder(short_temporary_root)
    os.chown(folder, 12345, -1)
    start_another(binary)
    assert folder.exists()
    embedded_keeper.remove_tree(folder)


def test_a_link_is_not_followed(binary: Path, short_temporary_root: Path, tmp_path: Path) -> None:
    kept = left_folder(tmp_path)
    link = short_temporary_root / kept.name
    link.symlink_to(kept)
    start_another(binary)
    assert kept.exists()
    assert link.is_symlink()
    link.unlink()


def test_data_that_is_kept_in_a_folder_of_such_a_name_stays(
    binary: Path, short_temporary_root: Path
) -> None:
    # Also if the folder was a private server's once.
    folder = left_folder(short_temporary_root)
    with start_embedded(folder, binary=binary) as server:
        client(server).set("k", "v")
    for name in (folder, *folder.iterdir()):
        os.utime(name, (0, 0))
    start_another(binary)
    with start_embedded(folder, binary=binary) as server:
        assert client(server).get("k") == "v"
    embedded_keeper.remove_tree(folder)
