"""The fork server: it imports the packages when it starts, and forks a process for each request.

``python -m tests.support.processes.forking <number>`` serves the listening socket of that number
until its standard input ends. Arguments of pytest may follow: then it collects the tests that they
name, for processes that run tests (`tests/support/processes/nursery.py`).

Each request is a connection: it brings the three standard streams and a JSON document, and gets two
lines back. The first is the id of the process, the second tells how it ended and the CPU seconds
that it took. `tests/support/processes/forkserver.py` makes the requests.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn, cast

# Whatever of it there is: the suite also runs without the queue and without PenguiFlow.
_PRELOADED = (
    "redis_state.worker",
    "redis_state.worker.agents",
    "redis_state.http_client",
    "arq.worker",
    "redis_state.agents",
    "redis_state.testing.conformance",
    "redis_state.integrations.penguiflow",
    "redis_state.integrations.penguiflow.pauses",
    "redis_state.integrations.penguiflow.sessions",
    "redis_state.integrations.pydantic_ai",
    "pydantic_ai.models.function",
    # What it imports when it is first used.
    "genai_prices.data",
    "genai_prices.data_units",
    "anyio._backends._asyncio",
    "redis_state.integrations.openai_agents",
    "agents.testing",
    "redis_state.integrations.mcp",
    "redis_state.integrations.mcp.resuming",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "redis_state.integrations.langgraph",
    "langgraph.graph",
    "redis_state.gateway",
    "redis_state.gateway.console",
    "redis_state.demo.run",
    "typer.rich_utils",
    "rich.markdown",
    "rich.traceback",
    "examples.review.driver",
    "examples.a2a_server.server",
    "penguiflow.planner",
    "redis_state.archive.postgres.archive",
    "redis_state.archive.parquet.archive",
    "pyarrow.dataset",
    "hypothesis",
    "cryptography.fernet",
    "tests.support.processes.pools",
    "tests.support.servers.faults",
    "tests.support.servers.sets.nodes",
)
# Types of which pydantic-ai makes itself a schema when it first records such a value.
_RECORDED = ("ModelResponse", "StreamedModelRequestResult", "CallToolResult")
# Those of openai's that make themselves one when they are first made.
_ANSWERED = ("Response", "ResponseOutputItemAddedEvent", "ResponseOutputItemDoneEvent")


def serve(number: int, *collecting: str) -> None:
    """Fork a process for each request, and report how each ended, until standard input ends."""
    listener = socket.socket(fileno=number)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _wake)
    running: dict[int, socket.socket] = {}
    _load(collecting)
    with selectors.DefaultSelector() as selector:
        for each in (0, woken, number):
            selector.register(each, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready:
                break
            if woken in ready:
                os.read(woken, 1 << 10)
            if number in ready:
                request, _ = listener.accept()
                theirs, document = _read(request)
                pid = os.fork()
                if pid == 0:
                    # Held open here, the connections of others would not end with them.
                    selector.close()
                    for held in (listener, *running.values()):
                        held.close()
                    _become(request, theirs, **document)
                running[pid] = request
                for each in theirs:
                    os.close(each)
            # Also after a request: the process may have ended before it was noted.
            _report(running)
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _load(collecting: tuple[str, ...]) -> None:
    if collecting:
        # It imports pytest, and the other processes do without.
        from tests.support.processes import nursery  # noqa: PLC0415

        nursery.collect(collecting)
    else:
        for name in (*_PRELOADED, *_commands()):
            with suppress(ImportError):
                import_module(name)
        for make in (_make_schemas_of_pydantic_ai, _make_schemas_of_openai):
            with suppress(ImportError, AttributeError):
                make()
    gc.collect()
    gc.freeze()


def _make_schemas_of_pydantic_ai() -> None:
    """Make what takes a process of an agent a fifth of its time."""
    codec: Any = import_module("pydantic_ai.durable_exec._codec").JSON_CODEC
    of = import_module("pydantic_ai.durable_exec._base")
    for name in _RECORDED:
        codec._adapter(getattr(of, name))


def _make_schemas_of_openai() -> None:
    """Make what takes a process of an agent a third of its time."""
    of = import_module("openai.types.responses")
    for name in _ANSWERED:
        getattr(of, name).model_rebuild()


def _commands() -> list[str]:
    return [f"redis_state.cli.{name}" for name in import_module("redis_state.cli.main").MODULES]


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: that there is a handler wakes the selector."""
    del number, frame


def _read(request: socket.socket) -> tuple[list[int], dict[str, Any]]:
    head, theirs, _, _ = socket.recv_fds(request, 4, 3)
    length = int.from_bytes(head, "big")
    data = b""
    while more := length - len(data):
        data += request.recv(more) or b" " * more
    return theirs, json.loads(data or b"{}")


def _report(running: dict[int, socket.socket]) -> None:
    """Write how each process ended that has ended by now."""
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as request, suppress(OSError):
            seconds = used.ru_utime + used.ru_stime
            request.sendall(b"%d %.3f\n" % (os.waitstatus_to_exitcode(status), seconds))


def _become(
    request: socket.socket,
    theirs: list[int],
    *,
    command: list[str],
    environment: dict[str, str],
    folder: str,
) -> NoReturn:
    """Be a process that was just started, and run its program to the end."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, number in enumerate(theirs):
        os.dup2(number, place)
        os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if not any(name.startswith("COVERAGE_") for name in environment):
        sys.settrace(None)
    random.seed()
    with request:
        request.sendall(b"%d\n" % os.getpid())
    status: Any = 1
    try:
        _run(*command)
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _exit(status)


def _run(*command: str) -> None:
    """Run what an interpreter's command line names: ``-c <code>``, ``-m <module>``, or a script."""
    first, rest = command[0], command[1:]
    if first == "-c":
        sys.argv[:] = [first, *rest[1:]]
        sys.path[0] = ""
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)  # noqa: S102
    elif first == "-m":
        sys.argv[:] = list(rest)
        sys.path[0] = str(Path.cwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = list(command)
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def _exit(status: Any) -> NoReturn:
    """End as the interpreter does: threads, what was registered, what is printed."""
    code = status if isinstance(status, int) else int(status is not None)
    with suppress(BaseException):
        if status is not None and not isinstance(status, int):
            sys.stderr.write(f"{status}\n")
        cast("Any", threading)._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(int(sys.argv[1]), *sys.argv[2:])
