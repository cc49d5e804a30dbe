"""Files for their owner alone: whole or not at all, and never open to others without a word."""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from redis_state.payloads.claims import FolderClaims
from redis_state.private_file import NotPrivate, private, write_private
from tests.support.processes import children
from tests.support.servers.faults import importing


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new files as on a mount that gives every file the same rights, and keeps them."""
    opens = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = opens(path, flags, mode)
        if flags & os.O_CREAT:
            Path(path).chmod(0o755)
        return descriptor

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fchmod", refused)


def test_a_file_is_replaced_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"earlier")
    path.chmod(0o644)
    earlier = path.stat().st_ino
    write_private(path, b"later")
    assert (path.read_bytes(), rights(path)) == (b"later", 0o600)
    assert path.stat().st_ino != earlier
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"earlier")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, b"later")
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_meanwhile_leaves_what_was_there(tmp_path: Path, number: int) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"earlier")
    program = f"""import os
from redis_state.private_file import write_private

def die(_):
    os.kill(os.getpid(), {int(number)})

os.fsync = die
write_private({str(path)!r}, b"later")
"""
    ran = children.run([sys.executable, "-c", program], capture_output=True, env=importing())
    assert ran.returncode != 0
    assert path.read_bytes() == b"earlier"
    assert all(not rights(each) & 0o077 for each in tmp_path.iterdir() if each != path)


def test_a_name_may_be_as_long_as_a_file_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_private(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_folder_that_cannot_be_synced_has_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, refused = os.fsync, list[int]()

    def of_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files)
    write_private(tmp_path / "x", b"x")
    assert len(refused) == 1
    assert (tmp_path / "x").read_bytes() == b"x"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_a_file_that_is_protected_from_writing_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"earlier")
    path.chmod(0o400)
    with pytest.raises(PermissionError):
        write_private(path, b"later")
    assert (path.read_bytes(), rights(path)) == (b"earlier", 0o400)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "x.json", tmp_path / "link"
    link.symlink_to(path)
    for text in (b"first", b"second"):
        write_private(link, text)
        assert (link.is_symlink(), path.read_bytes(), rights(path)) == (True, text, 0o600)


def test_what_is_no_file_is_written_through(tmp_path: Path) -> None:
    before = Path("/dev/null").stat()
    write_private("/dev/null", b"x")
    assert os.path.samestat(before, Path("/dev/null").stat())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_another_process_has_open_is_written_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "out"
    program = "from redis_state.private_file import write_private\n"
    program += "write_private('/dev/stdout', b'x')\nprint('y', flush=True)\n"
    with path.open("ab") as out:
        children.run([sys.executable, "-c", program], check=True, stdout=out, env=importing())
    assert path.read_bytes() == b"xy\n"


def test_a_file_that_is_mounted_by_itself_is_written_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"earlier")
    place = path.stat().st_ino

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", busy)
    write_private(path, b"later")
    assert (path.read_bytes(), rights(path), path.stat().st_ino) == (b"later", 0o600, place)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="needs Linux")
def test_a_file_whose_rights_stay_is_named_and_not_written() -> None:
    comm = Path("/proc/self/comm")
    name = comm.read_bytes()
    for write in (lambda: write_private(comm, b"secret"), lambda: private(str(comm), os.O_WRONLY)):
        with pytest.raises(NotPrivate, match=r"\(044\) cannot be taken away: chmod: ") as refused:
            write()
        assert refused.value.filename == str(comm)
    assert comm.read_bytes() == name


@pytest.mark.usefixtures("open_mount")
def test_a_mount_that_is_open_to_others_gets_no_export(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(NotPrivate, match="055"):
        write_private(path, b"secret")
    assert list(tmp_path.iterdir()) == []


def test_a_chmod_without_effect_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.touch(0o644)
    path.chmod(0o644)

    def kept(*_: object) -> None:
        """Change nothing."""

    monkeypatch.setattr(os, "fchmod", kept)
    with pytest.raises(NotPrivate, match="no effect"):
        private(str(path), os.O_WRONLY)


@pytest.mark.usefixtures("open_mount")
async def test_claims_on_a_mount_that_is_open_to_others_are_kept_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claims = FolderClaims(tmp_path)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            await claims.put(f"rs/2026-01-01/{name}", b"x")
            assert await claims.get(f"rs/2026-01-01/{name}") == b"x"
    (warned,) = caplog.records
    assert str(tmp_path) in warned.getMessage()
    assert "cannot be taken away" in warned.getMessage()
