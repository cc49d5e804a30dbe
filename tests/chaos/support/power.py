"""A power cut: the server dies, and with it all of its files that no sync has written down."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.processes import children
from tests.support.processes.children import Word

_SOURCE = Path(__file__).with_name("synced_sizes.c")


class Power:
    """What a server's files are sure to have kept, noted by a library in its process."""

    def __init__(self, library: Path, notes: Path) -> None:
        self._notes = notes
        self.environment: dict[str, str] = {
            "LD_PRELOAD": str(library),
            "SYNCED_SIZES": str(notes),
        }

    def cut(self, folder: Path) -> int:
        """Take from the files of a dead server what was not synced; return how many bytes."""
        synced: dict[int, int] = {}
        for line in self._notes.read_text().splitlines():
            inode, size = line.split()
            synced[int(inode)] = int(size)
        assert synced, "the server has synced nothing: was the library loaded?"
        taken = 0
        for path in folder.glob("appendonlydir/*"):
            stated = path.stat()
            kept = min(synced.get(stated.st_ino, 0), stated.st_size)
            taken += stated.st_size - kept
            os.truncate(path, kept)
        return taken


def compiler() -> str | None:
    """Find a C compiler."""
    return shutil.which("cc") or shutil.which("gcc")


def power(folder: Path) -> Power:
    """Make the library that notes what is synced. It needs a `compiler`."""
    library = folder / "synced_sizes.so"
    named = compiler()
    assert named is not None
    command: list[Word] = [named, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"]
    children.run(command, check=True)
    return Power(library, folder / "synced_sizes")
