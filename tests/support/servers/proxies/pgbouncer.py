"""PgBouncer before a PostgreSQL: each transaction may have another connection of few."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import children
from tests.support.servers.faults import short_directory
from tests.support.servers.ports import free_port, listens
from tests.support.servers.postgres import OwnPostgres

_USER = "postgres"
_START_S = 60.0


class PgBouncer:
    """A pooler that lends a connection for a transaction, not for a session.

    All clients share ``connections`` of them. It knows nothing of prepared statements before 1.21.
    """

    def __init__(self, postgres: OwnPostgres, *, connections: int = 2) -> None:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if program is None:
            pytest.skip("no PgBouncer here: apt-get install pgbouncer")
        self._program = program
        self._postgres = postgres
        self._connections = connections
        self._port = free_port()
        self._stack = ExitStack()
        self._folder: Path = self._stack.enter_context(short_directory())
        self._user = _USER if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._running: ExitStack | None = None

    @property
    def url(self) -> str:
        """The address for its clients."""
        return f"postgresql://{_USER}@127.0.0.1:{self._port}/{_USER}"

    def start(self) -> None:
        """Start it; return once it listens."""
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={self._postgres.folder} user={_USER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\n"
            "unix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
            f"default_pool_size = {self._connections}\nmax_client_conn = 200\n"
            # A server that comes back is asked again at once.
            "server_login_retry = 0.1\n"
        )
        self._running = ExitStack()
        log = self._running.enter_context((self._folder / "log").open("ab"))
        options = {"cwd": self._folder, **({} if self._user is None else {"user": self._user})}
        process = self._running.enter_context(
            children.popen([self._program, settings], stdout=log, stderr=log, **options)
        )
        self._process = process
        deadline = time.monotonic() + _START_S
        while not listens(self._port):
            assert process.poll() is None, (self._folder / "log").read_text()[-300:]
            assert time.monotonic() < deadline, "PgBouncer did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it (SIGKILL). Safe to repeat."""
        if self._running is not None:
            self._process.kill()
            self._process.wait()
            self._running.close()
            self._running = None

    def close(self) -> None:
        """End it, and remove its files."""
        self.kill()
        self._stack.close()
