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


# They add these commands to `commands.app` when they are imported.
MODULES: dict[str, str] = {
    "commands": "worker health version",
    "demo": "demo",
    "tasks.listing": "tasks",
    "tasks.reading": "show tree tail workers",
    "tasks.control": "cancel steer approve reject delegate",
    "tasks.messages": "signal request value",
    "pool.queues": "queues",
    "pool.schedules": "schedules",
    "pool.schedule_editing": "schedules",
    "tasks.finding": "submit find sessions",
    "tasks.operate": "retry rerun fork",
    "tasks.replay": "replay history",
    "servers.server": "acl doctor",
    "servers.migrate": "migrate",
    "pool.versions": "versions",
    "pool.rates": "rates",
    "servers.gateway": "gateway",
    "servers.dev": "dev",
    "servers.langgraph": "langgraph",
    "archive.state": "archive",
    "archive.reading": "archive",
    "archive.running": "archive",
    "archive.keeping": "archive",
    "servers.forget": "forget",
    "sessions.session": "session",
}

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


def modules_of(command: str = "") -> list[str]:
    """List the modules that a command is in; for help, or a command that there is not, all."""
    found = [module for module, commands in MODULES.items() if command in commands.split()]
    return found or [*MODULES]


def _run() -> None:
    try:
        for more in modules_of(*sys.argv[1:2]):
            import_module(f"redis_state.cli.{more}")
        from redis_state.cli.commands import app  # noqa: PLC0415

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
