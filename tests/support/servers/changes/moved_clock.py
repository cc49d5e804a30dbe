"""A server whose wall clock is moved while it runs."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from tests.support.processes import children
from tests.support.processes.children import Word
from tests.support.servers.changes.rollback import OwnServer

_SOURCE = Path(__file__).with_name("moved_clock.c")


def compiler() -> str | None:
    """Find a C compiler."""
    return shutil.which("cc") or shutil.which("gcc")


class MovedClockServer(OwnServer):
    """A server of a test's own with a library that moves its clock. It needs a `compiler`."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory, "--appendonly", "no", *options)
        library, named = directory / "moved_clock.so", compiler()
        assert named is not None
        command: list[Word] = [named, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE]
        children.run(command, check=True)
        self._moved = directory / "moved_clock"
        self._moved.write_bytes(bytes(8))
        preloaded = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._moved)}
        self.environment = os.environ | preloaded

    def move(self, seconds: int) -> None:
        """Let its clock be off by so much from now on."""
        with self._moved.open("r+b") as file:
            file.write(struct.pack("q", seconds))
