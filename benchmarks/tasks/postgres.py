"""A PostgreSQL for one run: on a socket of its own, nothing synced to the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.driver import NotMeasured

SETTINGS = "fsync=off, synchronous_commit=off, full_page_writes=off, shared_buffers=256MB"
_START_S = 30.0
_USER = "postgres"


class BenchPostgres:
    """The server, by the user that its package makes: it refuses to run as root.

    Errors: NotMeasured where there is none.
    """

    def __init__(self) -> None:
        programs = self.programs = _programs()
        self._user = _USER if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="redis-state-bench-pg-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._run(programs / "initdb", "-D", data, "-A", "trust", "-U", _USER, "--no-sync")
            options = [f"-c{setting}" for setting in SETTINGS.split(", ")]
            options += ["-cmax_connections=200", "-clisten_addresses=", f"-k{self._folder}"]
            with (self._folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [programs / "postgres", "-D", data, *options],
                    stdout=log,
                    stderr=log,
                    user=self._user,
                    cwd=self._folder,
                )
            self._wait_until_ready(programs)
            version = subprocess.check_output([programs / "postgres", "--version"], text=True)
        except BaseException:
            self.stop()
            raise
        self.version: str = "PostgreSQL " + version.split()[2]

    @property
    def url(self) -> str:
        """The address to connect to."""
        return f"postgresql://{_USER}@/{_USER}?host={self._folder}"

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, *command: str | Path) -> None:
        ran = subprocess.run(
            command, capture_output=True, check=False, user=self._user, cwd=self._folder
        )
        if ran.returncode:
            said = ran.stderr.decode("utf-8", "replace").strip()
            raise NotMeasured(f"PostgreSQL: {said[-200:]}")

    def _wait_until_ready(self, programs: Path) -> None:
        deadline = time.monotonic() + _START_S
        asking: list[str | Path] = [programs / "pg_isready", "-q", "-h", self._folder]
        while subprocess.run(asking, check=False).returncode:
            if time.monotonic() > deadline:
                raise NotMeasured("PostgreSQL did not start")
            time.sleep(0.05)


def _programs() -> Path:
    """Find its programs: Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise NotMeasured("no PostgreSQL here")
