"""Whether `redis-state dev` opens a browser by itself, and what it gives to one."""

from __future__ import annotations

import sys
import threading
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("typer", reason="needs the cli extra")

from redis_state.cli.servers.dev_browser import opening, opens_by_itself

SCREEN = {"DISPLAY": ":0"}
ADDRESS = "http://127.0.0.1:8787/?token=rsk_dev_secret"


@pytest.mark.parametrize(
    ("environment", "different", "opens"),
    [
        (SCREEN, {}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, {}, True),
        ({}, {"platform": "darwin"}, True),
        (SCREEN | {"CI": "false"}, {}, True),
        # A container, or a server.
        ({}, {}, False),
        ({"BROWSER": "/usr/bin/firefox"}, {}, False),
        (SCREEN, {"terminal": False}, False),
        (SCREEN, {"browser": None}, False),
        (SCREEN, {"browser": "/usr/bin/w3m"}, False),
        (SCREEN | {"CI": "true"}, {}, False),
        # The screen of another machine, also where it is forwarded.
        (SCREEN | {"SSH_CONNECTION": "192.0.2.1 50000 192.0.2.2 22"}, {}, False),
        ({"SSH_TTY": "/dev/pts/0"}, {"platform": "darwin"}, False),
    ],
)
def test_a_browser_is_opened_by_itself_where_a_person_has_a_screen(
    environment: dict[str, str], different: dict[str, Any], *, opens: bool
) -> None:
    facts: dict[str, Any] = {"terminal": True, "platform": "linux", "browser": "xdg-open"}
    assert opens_by_itself(environment, **(facts | different)) is opens


@pytest.mark.parametrize(
    ("wanted", "terminal", "opens"),
    [
        (None, True, True),
        (None, False, False),
        (True, False, True),
        (False, True, False),
    ],
)
def test_the_browser_gets_a_private_page_and_no_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wanted: bool | None,
    terminal: bool,
    opens: bool,
) -> None:
    given, seen = list[str](), threading.Event()

    def opened(address: str) -> bool:
        given.append(address)
        seen.set()
        return True

    for name in ("CI", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(name="firefox"))
    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    with opening(ADDRESS, tmp_path, lambda _: None, wanted=wanted) as show:
        show()
        if opens:
            assert seen.wait(60)
            assert "secret" not in given[0]
            page = Path(unquote(urlsplit(given[0]).path))
            assert page.parents[1] == tmp_path.resolve()
            assert page.parent.stat().st_mode & 0o077 == 0
            assert f"url={ADDRESS}" in page.read_text()
        else:
            assert not list(tmp_path.iterdir())
    assert bool(given) is opens
    assert not list(tmp_path.iterdir())


def test_a_browser_that_cannot_be_opened_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, seen = list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        seen.set()

    def refuses(_: str) -> bool:
        return False

    monkeypatch.setattr(webbrowser, "open", refuses)
    with opening(ADDRESS, tmp_path / "absent", say, wanted=True) as show:
        show()
        assert seen.wait(60)
    assert said == ["no browser could be opened: open the address of the console yourself"]
