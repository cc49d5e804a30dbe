"""The socket of an embedded server, as a path that starts the server when it is first needed.

Every part of a process that talks to an ``embedded://`` address has an `EmbeddedSocket` of its own:
the store's transport, each client of the queue, arq's own runner. Each is a user of the server like
any other process, so none stops the server under another one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from redis_state.embedded.server import EmbeddedServer, start_embedded
from redis_state.errors import BackendUnavailable, ConfigError


class EmbeddedSocket(os.PathLike[str]):
    """The socket of a directory's server, used from the first ``locate()`` to ``release()``.

    May be used by several threads, and again after ``release()``. ``os.fspath()`` is ``locate()``,
    so it can stand wherever the path of a socket is expected.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._server: EmbeddedServer | None = None
        self._located = False

    def __repr__(self) -> str:
        return f"<the socket of embedded://{self._directory or ''}>"

    def __fspath__(self) -> str:
        return str(self.locate().socket_path)

    def locate(self) -> EmbeddedServer:
        """Return the server, started or joined. Blocks: not for an event loop.

        The first user that comes restarts a directory's dead server. Errors: ConfigError;
        BackendUnavailable if it is late, or was reached before, because it may return.
        """
        with self._lock:
            server = self._server
            if server is None or (self._directory is not None and not server.lives()):
                self._leave()
                server = self._server = self._start()
            return server

    def release(self) -> None:
        """Stop using the server; the last user stops it. Blocks. Safe to repeat."""
        with self._lock:
            self._leave()

    def _start(self) -> EmbeddedServer:
        try:
            server = start_embedded(self._directory)
        except ConfigError as error:
            # One that was late may be in time at the next try.
            if not self._located and not isinstance(error.__cause__, TimeoutError):
                raise
            shown = f"embedded://{self._directory or ''}"
            raise BackendUnavailable(shown, str(error)) from error
        self._located = True
        return server

    def _leave(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
