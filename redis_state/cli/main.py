"""Entry point of the ``redis-state`` command."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "arq": "worker",
    "stamina": "worker",
    "psycopg": "postgres",
    "cronsim": "worker",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "jwt": "gateway",
    "jinja2": "gateway",
}


# They add their commands to `commands.app` when they are imported.
MODULES = (
    *("demo", "tasks.listing", "tasks.reading", "tasks.control", "tasks.messages"),
    *("pool.queues", "pool.schedules", "pool.schedule_editing"),
    *("tasks.finding", "tasks.operate", "tasks.replay", "servers.server", "servers.migrate"),
    *("pool.versions", "pool.rates", "servers.gateway", "servers.dev", "servers.langgraph"),
    *("archive.state", "archive.reading", "archive.running", "archive.keeping", "servers.forget"),
)

_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command line, or say what to install for it."""
    if os.getpid() == 1:
        # The first process of a container is sent no signal that it has no handler for.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        # One that comes while the commands are imported, or before one of them works.
        sys.exit(_interrupted())
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITTEN:
            raise
        # What is still in the buffer would fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(
            1
            if error.errno == errno.EPIPE
            else f"redis-state: the output cannot be written: {error.strerror}"
        )


def _interrupted() -> int:
    """Print what `or_exit` does, whose module may not be imported yet; return the status."""
    if sys.stderr is not None:
        print("redis-state: interrupted", file=sys.stderr)
    return 130


def _run() -> None:
    try:
        for more in MODULES:
            import_module(f"redis_state.cli.{more}")
        from redis_state.cli.commands import app  # noqa: PLC0415
        from redis_state.cli.sessions.session import session  # noqa: PLC0415

        app.add_typer(session)
        app()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        sys.exit(
            f"redis-state: {error.name} is missing, which the extra {extra!r} brings. "
            "Install all of them: pip install 'redis_state[all]'"
        )


if __name__ == "__main__":
    main()
