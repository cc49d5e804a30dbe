"""Which documents the demo reviews."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from redis_state.errors import ConfigError

_OWN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_MOST = 12
_LONGEST = 4
_LONGEST_BYTES = 400_000
_PASSED_OVER = {"node_modules", "demo-output", "site-packages", "venv", "__pycache__"}
_OWN_OUTPUT = (".report.md", ".reviewed.md")
# A user's whole home is not searched to its end.
_MOST_FOLDERS = 5_000


def choose_documents(paths: Iterable[Path], here: Path) -> list[Path]:
    """Return the given Markdown files, those in given folders, or by default what is found here.

    The default is this folder's own README, its docs, and the longest Markdown files found in it
    and beside it. Errors: ConfigError names a path that is not there, or says that nothing was
    found.
    """
    given = list(paths)
    chosen = _given(given) if given else _found(here)
    if not chosen:
        where = ", ".join(map(str, given)) or here
        raise ConfigError(f"no Markdown documents in {where}: name some")
    return chosen


def _given(paths: list[Path]) -> list[Path]:
    chosen: list[Path] = []
    for path in paths:
        if path.is_dir():
            chosen += sorted(_markdown(path))
        elif path.is_file():
            chosen.append(path)
        else:
            raise ConfigError(f"no such document: {path}")
    return list(dict.fromkeys(path.resolve() for path in chosen))


def _found(here: Path) -> list[Path]:
    own = [here / name for name in _OWN if (here / name).is_file()]
    own += sorted(_markdown(here / "docs")) if (here / "docs").is_dir() else []
    own = [path.resolve() for path in own][: _MOST - _LONGEST]
    # Beside this folder too, but not in all of a disk.
    places = [here] if here.parent == here.parent.parent else [here, here.parent]
    others = {path.resolve() for place in places for path in _markdown(place)} - set(own)
    sizes = {path: path.stat().st_size for path in others if path.exists()}
    longest = sorted(
        (path for path in sizes if 0 < sizes[path] <= _LONGEST_BYTES),
        key=lambda path: (-sizes[path], str(path)),
    )
    return own + longest[:_LONGEST]


def _markdown(folder: Path) -> Iterable[Path]:
    for place, folders, files in islice(os.walk(folder), _MOST_FOLDERS):
        folders[:] = sorted(
            name for name in folders if name not in _PASSED_OVER and not name.startswith(".")
        )
        for name in files:
            path = Path(place, name)
            ours = name.endswith(_OWN_OUTPUT)
            if path.suffix.lower() == ".md" and not ours and path.is_file():
                yield path
