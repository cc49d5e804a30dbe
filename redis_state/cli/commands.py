"""The commands. `redis_state.cli.exit_codes` has their exit statuses."""

from __future__ import annotations

import atexit
import errno
import io
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_state import RedisStateStore, __version__
from redis_state.cli.exit_codes import STATUSES, ExitCode, complain, or_exit, run
from redis_state.cli.loading import load
from redis_state.cli.output import harmless
from redis_state.errors import CallerError

if TYPE_CHECKING:
    from redis_state.worker import AgentWorker

app: typer.Typer = typer.Typer(
    name="redis-state",
    help="State for running agents, on plain Redis or Valkey.\n\n"
    "Begin with `redis-state demo`: it needs nothing but itself. `redis-state dev` runs a pool of "
    "your own, with a console.\n\n"
    "The server is REDIS_STATE_URL (redis://, redis+sentinel://, redis+cluster://, with TLS "
    "rediss…://, unix://, embedded:///directory), else redis://localhost:6379/0, unless --url "
    "names another. Every setting of the store is REDIS_STATE_<NAME> in the environment.\n\n"
    "With a running pool: `submit` adds a task, `find`, `sessions`, `tasks` and `tree` list tasks, "
    "`show` and `tail` show one task, `approve`, `reject`, `steer` and `cancel` change it, "
    "`retry`, `rerun` and `fork` begin it again. Each takes --json.\n\n"
    f"Exit status: {STATUSES}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# How long threads of handlers may work on behind the end of their worker.
_THREADS_S = 1.0
_MAIN = threading.main_thread()
# What asyncio calls those of `to_thread`.
_HANDLER_THREADS = "asyncio_"


def check_url(url: str | None) -> str | None:
    """Refuse a --url beside the queue of another server's tasks: it would get the jobs."""
    named = {name.upper(): value for name, value in os.environ.items()}
    if url not in (None, named.get("REDIS_STATE_URL")) and named.get("REDIS_STATE_QUEUE_URL"):
        complain(
            "--url names another server than REDIS_STATE_URL, and REDIS_STATE_QUEUE_URL has the "
            "queue of that one: unset it, or set both variables"
        )
        raise typer.Exit(ExitCode.USAGE)
    return url


Url = Annotated[
    str | None,
    typer.Option("--url", callback=check_url, help="Server address. Default: REDIS_STATE_URL."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER",
            help="Where the AgentWorker is, for example workers.settings:worker.",
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Take tasks of this queue. May be repeated, the preferred queue first."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each task.")] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option(help="Stop when standard input ends, as with SIGTERM.")
    ] = False,
    uvloop: Annotated[
        bool, typer.Option("--uvloop", help="Use uvloop's event loop; needs the extra of its name.")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace", min=0, help="Seconds to finish tasks on SIGTERM. Default: the worker's."
        ),
    ] = None,
) -> None:
    """Run a worker process until SIGTERM, through restarts of the server.

    On SIGTERM, SIGINT or SIGHUP it takes no more tasks. Running tasks may finish for a while, the
    rest is handed off. A second SIGINT hands all of them off at once.

    Status 0 after that. Status 1 if importing the module raises an error, 2 if there is no such
    module or worker, or a setting cannot be used. Status 5 if the server refuses the worker at its
    start, and a retry is useless: for a password, a certificate, a missing right, or because it is
    a server of another kind or too old. An unreachable server is waited for. So is any server once
    the worker has polled it.

    `arq workers.settings.WorkerSettings` runs the same tasks under arq's own command, which exits
    when the server restarts.
    """
    from redis_state.worker import AgentWorker  # noqa: PLC0415 - needs the extra

    if stop_with_stdin:
        sys.stdout, sys.stderr = _Output.of(sys.stdout), _Output.of(sys.stderr)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # The start line names queues and address, also without --verbose.
    logging.getLogger("redis_state.worker.pool.serving").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, _end_at_once)
    found = or_exit(lambda: _load_worker(target, AgentWorker))
    chosen = or_exit(lambda: found.with_queues(*queue)) if queue else found
    if grace is not None:
        chosen = or_exit(partial(replace, chosen, grace_s=grace))
    if stop_with_stdin:
        from redis_state.worker.pool.serving import STOP_S  # noqa: PLC0415 - needs the extra

        longest_s = chosen.grace_s + STOP_S
        threading.Thread(target=_stop_with_stdin, args=(longest_s,), daemon=True).start()
    or_exit(partial(chosen.run, uvloop=uvloop))
    threading.Thread(target=_leave_threads, daemon=True).start()


@app.command()
def health(url: Url = None, as_json: AsJson = False) -> None:
    """Check the server and its settings.

    Status 0 if all is well, 1 if a setting endangers data, 5 if the server cannot be reached.
    """

    async def ask_server() -> dict[str, Any]:
        async with RedisStateStore.from_url(url) as store:
            return asdict(await store.health())

    found = run(ask_server())
    if as_json:
        print(json.dumps(found))
    else:
        details: dict[str, str] = found.pop("details")
        found["problems"] = "\n".join(found["problems"]) or None
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, show_edge=False)
        for name, value in (found | details).items():
            if value is not None:
                table.add_row(name, Text("\n".join(map(harmless, str(value).splitlines()))))
        Console().print(table)
    if not found["ok"]:
        raise typer.Exit(ExitCode.UNAVAILABLE if found["problem"] else ExitCode.FAILED)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _load_worker(target: str, kind: type[AgentWorker]) -> AgentWorker:
    found = load(target)
    if not isinstance(found, kind):
        raise CallerError(f"{target!r} is {type(found).__name__}, not an AgentWorker")
    return found


def _end_at_once(*_: object) -> None:
    """End a worker that does not run yet: there is nothing to hand off.

    Not by an exception, which would interrupt what is just being made, such as the event loop.
    """
    for stream in (sys.stdout, sys.stderr):
        # It may be what was interrupted.
        with suppress(Exception):
            stream.flush()
    os._exit(0)


class _Output(io.FileIO):
    """An output of a process whose reader may die: a handler's print() does not raise then."""

    @classmethod
    def of(cls, stream: TextIO) -> TextIO:
        """Return a stream that writes where another one does, line by line."""
        stream.flush()
        raw = io.BufferedWriter(cls(stream.fileno(), "w", closefd=False))
        return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)

    def write(self, data: Any, /) -> int:
        """Write, or drop what nobody can read any more: of a pipe, or of a terminal."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in {errno.EPIPE, errno.EIO}:
                raise
            return memoryview(data).nbytes


def _leave_threads() -> None:
    """End the process of a worker that has stopped, though threads of `to_thread` work on.

    Those of the pool's own are waited for, and what is registered for the end is called.
    """
    while True:
        time.sleep(_THREADS_S)
        left = [each.name for each in threading.enumerate() if not each.daemon and each != _MAIN]
        if not left:
            return
        if all(name.startswith(_HANDLER_THREADS) for name in left):
            break
    atexit._run_exitfuncs()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no other way
    _end_at_once()


def _stop_with_stdin(longest_s: float) -> None:
    # Not through sys.stdin: its lock, held at exit by a thread that waits, is a fatal error.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # Who has started this process may be dead, so nobody else kills a worker whose loop is held.
    time.sleep(longest_s)
    os.kill(os.getpid(), signal.SIGKILL)
