"""How `redis-state dev` opens its console: whether by itself, and without showing the token."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
# These have a screen without an address of it in the environment.
_WITH_SCREEN = ("darwin", "win32", "cygwin")
# They would take the terminal that the command prints to.
_OF_TERMINALS = frozenset({"w3m", "lynx", "links", "elinks", "www-browser", "browsh"})


def opens_by_itself(
    environment: Mapping[str, str], *, terminal: bool, platform: str, browser: str | None
) -> bool:
    """Return whether a browser is opened where no option decides it.

    ``terminal`` is whether a person reads the output, ``browser`` the program that would be
    started, if there is one. Not in CI, over SSH, or without a display, as in a container: there is
    no screen then, or it is another machine's.
    """
    if not terminal or browser is None or Path(browser).name in _OF_TERMINALS:
        return False
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    if any(environment.get(name) for name in _REMOTE):
        return False
    return platform in _WITH_SCREEN or any(environment.get(name) for name in _DISPLAYS)


@contextmanager
def page_to(address: str, folder: Path | None = None) -> Generator[str]:
    """Write a page that leads to an address, for the length of the block; return its own address.

    All users of a machine see the arguments of a browser, and this user alone sees the page.
    """
    with TemporaryDirectory(prefix="console-", dir=folder) as private:
        page = Path(private).resolve() / "open.html"
        leads = f'<meta http-equiv="refresh" content="0; url={address}">'
        page.write_text(f"<!doctype html><title>redis_state</title>{leads}\n", encoding="utf-8")
        yield page.as_uri()


@contextmanager
def opening(
    address: str, folder: Path, say: Callable[[str], None], *, wanted: bool | None
) -> Generator[Callable[[], None]]:
    """Return what opens an address in a browser, for the length of the block, or does nothing.

    ``wanted`` is what an option says; None for what `opens_by_itself` decides.
    """
    if not (_opens_here() if wanted is None else wanted):
        yield lambda: None
        return

    def show() -> None:
        if not webbrowser.open(page):
            say("no browser could be opened: open the address of the console yourself")

    # Some browsers see no temporary files, but those of a user's own folders.
    with page_to(address, folder if folder.is_dir() else None) as page:
        # A browser of the terminal lasts as long as a person reads: nothing waits for it.
        yield threading.Thread(target=show, daemon=True).start


def _opens_here() -> bool:
    return opens_by_itself(
        os.environ,
        terminal=sys.stdout.isatty(),
        platform=sys.platform,
        browser=_default_browser(),
    )


def _default_browser() -> str | None:
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return None
    # Those of an operating system have a name too.
    return str(getattr(found, "name", type(found).__name__))
