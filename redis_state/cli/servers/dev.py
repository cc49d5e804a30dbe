"""The command ``dev``: a server, workers that follow the code, the gateway and its console."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from redis_state import RedisStateStore
from redis_state.cli.commands import app, check_url
from redis_state.cli.exit_codes import or_exit
from redis_state.cli.loading import split_target
from redis_state.cli.output import print_line
from redis_state.cli.servers.dev_browser import opening
from redis_state.cli.servers.dev_watch import CodeWatch, python_changes, watchfiles
from redis_state.cli.servers.gateway import make_server
from redis_state.cli.servers.open_files import raise_open_files
from redis_state.errors import CallerError, KeyReused
from redis_state.transport.connections.address import Address

if TYPE_CHECKING:
    import uvicorn

    from redis_state.cli.servers.dev_workers import DevWorkers
    from redis_state.gateway import Gateway
    from redis_state.worker import TaskClient

_DEMO = "redis_state.demo.agents:worker"
_DEMO_SESSION, _DEMO_ORDERS = "orders", ("order-1", "order-2", "order-3")
_HOST = "127.0.0.1"
_NAMES = ("localhost", _HOST)
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of `redis-state dev`."""

    target: str | None
    workers: int
    port: int
    data: Path
    url: str | None
    reload: bool
    # None for where a person has a screen.
    open_browser: bool | None


@app.command()
def dev(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:WORKER]", help="Where the AgentWorker is. Default: the demo's agents."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=32, help="Worker processes.")] = 2,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port on loopback.")] = 8787,
    data: Annotated[Path, typer.Option(help="Where the embedded server keeps its data.")] = Path(
        ".redis-state"
    ),
    url: Annotated[
        str | None,
        typer.Option(
            "--url", callback=check_url, help="Use this server. Default: an embedded one."
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Replace workers when code changes.")
    ] = True,
    open_browser: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the console in a browser. Default: in a terminal of a machine with a "
            "screen, and neither in CI nor over SSH.",
        ),
    ] = None,
) -> None:
    """Run a server, workers, the gateway and its console on this machine, for development.

    The embedded server keeps its data in --data. When a Python file below the current folder
    changes, new workers start and the old ones hand off what they run: tasks resume in the new code
    at their last step. If the new code cannot be imported, the old workers stay, and the console
    shows the error. Reloading needs the extra `reload`.

    The console is at loopback only, and needs the token that is made at each start. The address
    that is printed has it. A browser opens it by itself where there is one: see --open.

    Try: `redis-state dev`, `redis-state dev my_pool:worker --no-open`.
    """
    options = DevOptions(target, workers, port, data, url, reload, open_browser)
    or_exit(lambda: asyncio.run(run_dev(options)))


class _Stopper:
    """Ends this process's command at a signal: its start, or the server that is up then."""

    def __init__(self) -> None:
        self.asked = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._server: uvicorn.Server | None = None

    def listen(self) -> None:
        """Take SIGTERM and SIGINT, until uvicorn takes them; it raises them again at its end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def serves(self, server: uvicorn.Server) -> None:
        """End the server at a signal from now on."""
        self._server = server

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        elif self._task is not None and not self.asked:
            self._task.cancel()
        self.asked = True


async def run_dev(options: DevOptions) -> None:
    """Run until SIGTERM or SIGINT, also one that comes while it starts.

    Errors: CallerError, ConfigError.
    """
    if options.target is not None:
        split_target(options.target)
    raise_open_files()
    stopper = _Stopper()
    stopper.listen()
    try:
        await _run(options, stopper)
    except asyncio.CancelledError:
        if not stopper.asked:
            raise


async def _run(options: DevOptions, stopper: _Stopper) -> None:
    from redis_state.cli.servers.dev_workers import (  # noqa: PLC0415 - needs the extra
        DevWorkers,
        own_server_options,
    )
    from redis_state.worker import TaskClient  # noqa: PLC0415 - needs the extra

    beside = own_server_options(options.url)
    with _listening(options.port) as listening:
        async with (
            dev_server(options) as (url, words),
            RedisStateStore.from_url(url, **beside) as store,
            TaskClient(store) as client,
        ):
            target = options.target or _DEMO
            pool = DevWorkers(
                client,
                target=target,
                size=options.workers,
                url=url,
                say=_say,
                left_out=beside,
            )
            watch = CodeWatch(pool.reload, _say)
            token, application = make_dev_app(store, lambda: pool.problem or watch.problem)
            async with pool, application_closed(application):
                if options.target is None:
                    await _submit_demo(client)
                port = listening.getsockname()[1]
                address = f"http://{_HOST}:{port}/?token={token}"
                watching = asyncio.create_task(_watch(watch, reload=options.reload))
                try:
                    serves = f"{options.workers} x {target} ({await _listed(pool)})"
                    lines = [
                        f"Server    {words}",
                        f"Console   {address}   API /v1/openapi.json",
                        f"Workers   {serves}   {_reloading(reload=options.reload)}",
                    ]
                    # An access log would have the token.
                    server = make_server(
                        application, log_level="warning", access_log=False, lifespan="off"
                    )
                    stopper.serves(server)
                    wanted = options.open_browser
                    with opening(address, options.data, _say, wanted=wanted) as show:
                        await _serve(server, listening, lines, show)
                finally:
                    watching.cancel()
                    await asyncio.wait({watching})


def make_dev_app(store: RedisStateStore, banner: Callable[[], str | None]) -> tuple[str, Gateway]:
    """Make the gateway of `redis-state dev`; return its token too."""
    from redis_state.gateway import (  # noqa: PLC0415 - needs the extra
        ApiKeys,
        ConsoleOptions,
        GatewayLimits,
        create_gateway,
    )
    from redis_state.gateway.auth.api_keys import make_api_key  # noqa: PLC0415 - needs the extra

    token, kept = make_api_key("dev", ["admin:*"])
    console = ConsoleOptions(login_by_url=True, banner=banner)
    application = create_gateway(
        store,
        auth=ApiKeys([kept]),
        hosts=_NAMES,
        console=console,
        limits=GatewayLimits(requests_per_s=None),
    )
    return token, application


@asynccontextmanager
async def application_closed(application: Gateway) -> AsyncGenerator[None]:
    """Close what an application has opened, after the block."""
    try:
        yield
    finally:
        await application.aclose()


@asynccontextmanager
async def dev_server(options: DevOptions) -> AsyncGenerator[tuple[str, str]]:
    """Start the embedded server for the length of the block, or use the one that was named."""
    if options.url is not None and Address.parse(options.url).scheme != "embedded":
        # The address is shown without its password.
        yield options.url, f"as given   {Address.parse(options.url)}"
        return
    from redis_state.embedded.running import embedded_server  # noqa: PLC0415 - not on Windows

    given = None if options.url is None else Address.parse(options.url).directory
    directory = options.data if given is None else Path(given)
    async with embedded_server(directory) as server:
        # Not the socket's: who comes by this address uses the server, and starts it if it has died.
        url = f"embedded://{quote(os.fsencode(server.directory))}"
        words = f"embedded, version {server.version}, data in {directory}"
        yield url, f"{words}   REDIS_STATE_URL={url}"


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        # Now: until then another process may bind it too.
        listening.listen()
    except OSError as error:
        listening.close()
        raise CallerError(
            f"port {port} cannot be used: {error.strerror}; give another --port"
        ) from None
    return listening


async def _serve(
    server: uvicorn.Server, listening: socket.socket, lines: list[str], show: Callable[[], None]
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not (server.started or serving.done()):
        await asyncio.wait({serving}, timeout=_POLL_S)
    for line in lines:
        print_line(f"  {line}")
    sys.stdout.flush()
    show()
    await serving


async def _watch(watch: CodeWatch, *, reload: bool) -> None:
    """Replace the workers whenever a Python file has changed."""
    if reload and watchfiles() is not None:
        await watch.run(python_changes)


def _reloading(*, reload: bool) -> str:
    if not reload:
        return "not reloading"
    if watchfiles() is None:
        return 'not reloading: pip install "redis_state[reload]"'
    return "reloading on *.py"


async def _listed(pool: DevWorkers) -> str:
    names = await pool.handlers()
    return ", ".join(names) or "none started yet"


async def _submit_demo(client: TaskClient) -> None:
    """Submit orders to look at and to approve. The same orders are found at the next start.

    What stands under their ids with another input, of another version or a person's, stays.
    """
    for order in _DEMO_ORDERS:
        with suppress(CallerError, KeyReused):
            await client.submit(
                "prepare_order", {"pace_s": 0.5}, session_id=_DEMO_SESSION, task_id=order
            )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
