"""What the tests of A2A servers share: replicas as processes, and a client that speaks JSON-RPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx

from redis_state import Settings
from redis_state.http_client.requests.caller import tls_for
from redis_state.stores.a2a.task_model import Phase
from redis_state.testing import eventually
from tests.support.a2a.tasks import caller, server_on
from tests.support.processes import children, forkserver
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.faults import PROCESSES, importing

WAIT_S = 60.0


class RpcError(Exception):
    """What a server answered instead of a result."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


class Replica:
    """One server process, and somebody who calls it."""

    def __init__(self, process: ForkedProcess, url: str, client: Any) -> None:
        self.process = process
        self.url = url
        self.stated: list[str] = []
        self._client: httpx.AsyncClient = client

    async def call(self, method: str, *, user: str = "ann", **params: Any) -> Any:
        """Call a method. Errors: RpcError."""
        answer = await self._client.post("/", json=_rpc(method, params), headers=_headers(user))
        return _result(answer.json())

    async def say(self, text: str, *, user: str = "ann", **more: Any) -> dict[str, Any]:
        """Send a message and return the task as soon as there is one."""
        configuration = {"returnImmediately": True}
        found: dict[str, Any] = await self.call(
            "SendMessage", user=user, message=message(text, **more), configuration=configuration
        )
        task: dict[str, Any] = found["task"]
        return task

    async def stream(
        self, method: str, *, user: str = "ann", **params: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Call a method that streams. Errors: RpcError."""
        async with self._client.stream(
            "POST", "/", json=_rpc(method, params), headers=_headers(user)
        ) as answer:
            if "event-stream" not in answer.headers["content-type"]:
                _result(json.loads(await answer.aread()))
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    event: dict[str, Any] = _result(json.loads(line[5:]))
                    yield event

    async def state(self, task_id: str, **more: Any) -> str:
        """Read a task's state."""
        task = await self.call("GetTask", id=task_id, **more)
        return str(task["status"]["state"]).removeprefix("TASK_STATE_")

    async def kill(self) -> None:
        """Kill the process, as kill -9 does."""
        self.process.kill()
        await self.process.wait()

    async def says(self, line: str) -> None:
        """Wait until the process has written a line of its own."""

        async def stated() -> bool:
            return line in self.stated

        await eventually(stated, f"the server says {line!r}", timeout_s=WAIT_S)


class Listener:
    """Reads a stream in the background."""

    def __init__(self, events: AsyncGenerator[dict[str, Any], None]) -> None:
        self.heard: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._listen(events))

    async def hears(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for an event."""

        async def found() -> dict[str, Any] | None:
            return next((event for event in self.heard if wanted(event)), None)

        event: dict[str, Any] | None = await eventually(
            found, "the event is heard", timeout_s=WAIT_S
        )
        assert event is not None
        return event

    async def hears_piece(self, piece: str) -> None:
        """Wait for a piece of the agent's work."""
        await self.hears(lambda event: piece_of(event) == piece)

    async def ends(self) -> list[dict[str, Any]]:
        """Wait for the end of the stream and give all of it."""
        async with asyncio.timeout(WAIT_S):
            await self._task
        return self.heard

    async def breaks(self) -> None:
        """Wait until the stream broke off with its server."""
        with contextlib.suppress(httpx.HTTPError):
            async with asyncio.timeout(WAIT_S):
                await self._task

    async def _listen(self, events: AsyncGenerator[dict[str, Any], None]) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                self.heard.append(event)


@contextlib.asynccontextmanager
async def command(settings: Settings, *options: str) -> AsyncGenerator[ForkedProcess, None]:
    """Run the example's command on the suite's server, and see to it that it ends."""
    process = await forkserver.start(
        *(PROCESSES / "forking.py", "examples.a2a_server"),
        *("--url", settings.url.get_secret_value(), "--namespace", settings.namespace, *options),
        environment=_untraced(),
    )
    try:
        yield process
    finally:
        await children.end(process)


@contextlib.asynccontextmanager
async def replica(
    settings: Settings, *, lease_s: float = 15.0, options: tuple[str, ...] = ()
) -> AsyncGenerator[Replica, None]:
    """Run a server of the example as a process, and stop it at the end."""
    process = await forkserver.start(
        PROCESSES / "a2a" / "a2a_replica.py",
        *("--replica", "--url", settings.url.get_secret_value()),
        *("--namespace", settings.namespace, "--lease", str(lease_s), *options),
        environment=_untraced(),
    )
    async with asyncio.timeout(WAIT_S):
        url = (await process.stdout.readline()).decode().strip()
    assert url, "the server did not start"
    # No connection is kept: the server closes idle ones, and perhaps while the next call is sent.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=url, timeout=WAIT_S, trust_env=False, limits=limits, verify=tls_for(url)
    ) as client:
        running = Replica(process, url, client)
        reading = asyncio.create_task(_read(process, running.stated))
        try:
            yield running
        finally:
            process.terminate()
            try:
                async with asyncio.timeout(WAIT_S):
                    await process.wait()
            finally:
                await children.end(process)
                await reading
                # Shown with a test that fails.
                sys.stdout.write("\n".join([f"the server at {url} said:", *running.stated, ""]))


class Hook:
    """An HTTP server that notes what is pushed to it: the token and the event."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.url: str = ""

    async def hears(self, state: str) -> None:
        """Wait for a state."""

        async def reported() -> bool:
            return state in [state_of(event) for _, event in self.heard]

        await eventually(reported, f"the hook hears {state}", timeout_s=WAIT_S)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call and close."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head.splitlines()[1:])
            }
            body = await reader.readexactly(int(fields["content-length"]))
        except asyncio.IncompleteReadError:
            # Its caller was killed, or gave up.
            writer.close()
            return
        self.heard.append((fields.get("x-a2a-notification-token", ""), json.loads(body)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def hook() -> AsyncGenerator[Hook, None]:
    """Run a hook."""
    made = Hook()
    async with await asyncio.start_server(made.take, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        yield made


async def ended_within(
    settings: Settings, task_id: str, since_ms: int, seconds: float, *, user: str = "ann"
) -> None:
    """Check by the clock of the Redis server when a task was ended, without a look at its owner."""
    backend = server_on(settings)
    found = await backend.tasks.read(backend.ref(task_id, caller(user)))
    await backend.aclose()
    assert found is not None
    assert found.phase is Phase.ENDED
    assert found.version.at_ms - since_ms < 1000 * seconds


def message(text: str, **more: Any) -> dict[str, Any]:
    """Make a message of a user."""
    parts = [{"text": text}]
    return {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts, **more}


def state_of(event: dict[str, Any]) -> str:
    """Tell the state that an event tells, '' for none."""
    reported: dict[str, Any] = event.get("task") or event.get("statusUpdate") or {}
    return str(reported.get("status", {}).get("state", "")).removeprefix("TASK_STATE_")


def piece_of(event: dict[str, Any]) -> str:
    """Tell the piece that an event brings, '' for none."""
    parts = event.get("artifactUpdate", {}).get("artifact", {}).get("parts", [])
    return str(parts[0]["text"]) if parts else ""


def pieces(events: list[dict[str, Any]]) -> list[str]:
    """List all pieces: those of a task that was read, and those that events brought."""
    found: list[str] = []
    for event in events:
        kept = event.get("task", {}).get("artifacts", [])
        found += [artifact["parts"][0]["text"] for artifact in kept]
        if piece_of(event):
            found.append(piece_of(event))
    return found


def _rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _headers(user: str) -> dict[str, str]:
    return {"A2A-Version": "1.0", "x-user": user}


def _result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise RpcError(answer["error"])
    return answer["result"]


def _untraced() -> dict[str, str]:
    """Give the environment without what makes a process measure its coverage: that is too slow."""
    measuring = ("COVERAGE_", "COV_CORE_")
    return {name: value for name, value in importing().items() if not name.startswith(measuring)}


async def _read(process: ForkedProcess, stated: list[str]) -> None:
    while line := await process.stderr.readline():
        stated.append(line.decode().rstrip())
