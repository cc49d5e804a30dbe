"""An A2A server with replicas: one command starts them on one Redis.

    python -m examples.a2a_server                two replicas, a server of their own
    python -m examples.a2a_server --replicas 3 --url redis://localhost:6379/0

Its agent does what the message says: ``count 5 0.2`` writes five pieces, one each 0.2 s; ``wait``
works for ever and writes nothing; ``ask`` needs an answer; any other text is returned. The
header ``x-user`` names the caller: good for an example only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress

import httpx
import uvicorn
from a2a.auth.user import UnauthenticatedUser, User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import EventQueue
from a2a.server.request_handlers import (
    DefaultRequestHandler,
    LegacyRequestHandler,
    RequestHandler,
)
from a2a.server.routes import (
    DefaultServerCallContextBuilder,
    create_agent_card_routes,
    create_jsonrpc_routes,
)
from a2a.server.tasks import (
    BasePushNotificationSender,
    PushNotificationSender,
    TaskUpdater,
)
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.applications import Starlette
from starlette.requests import Request

from redis_state.embedded.server import start_embedded
from redis_state.integrations.a2a import (
    A2ABackend,
    A2AOptions,
    connect,
    create_agent_executor,
    create_event_stream,
    create_push_config_store,
    create_push_sender,
    create_queue_manager,
    create_task_store,
    create_versioned_task_store,
)

_STOP_S = 5.0
_PUSH_S = 5.0


class DemoAgent(AgentExecutor):
    """An agent that does what the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on a task until it is done, or for ever; say so when it is stopped."""
        try:
            await self._obey(context, event_queue)
        except asyncio.CancelledError:
            print(f"stopped: {context.task_id}", file=sys.stderr, flush=True)
            raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Publish the end; the work can be interrupted at any place."""
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def _obey(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        says = TaskUpdater(event_queue, task_id, context_id)
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            status.timestamp.GetCurrentTime()
            history = [context.message] if context.message else []
            await event_queue.enqueue_event(
                Task(id=task_id, context_id=context_id, status=status, history=history)
            )
        await says.start_work()
        match context.get_user_input().split():
            case ["count", most, pause_s]:
                for number in range(int(most)):
                    await asyncio.sleep(float(pause_s))
                    await says.add_artifact([Part(text=str(number))], f"piece-{number}")
                await says.complete()
            case ["wait"]:
                await asyncio.Event().wait()
            case ["ask"]:
                await says.requires_input(says.new_agent_message([Part(text="What next?")]))
            case words:
                answer = says.new_agent_message([Part(text=" ".join(words))])
                await says.complete(answer)


class _NamedUser(User):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class _UserFromHeader(DefaultServerCallContextBuilder):
    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        name = request.headers.get("x-user", "")
        context.user = _NamedUser(name) if name else UnauthenticatedUser()
        return context


def make_handler(
    backend: A2ABackend,
    card: AgentCard,
    *,
    agent: AgentExecutor | None = None,
    sender: PushNotificationSender | None = None,
    legacy: bool = False,
) -> RequestHandler:
    """Make the request handler of a replica; ``legacy`` is the one that knows no versions."""
    executor = create_agent_executor(agent or DemoAgent(), backend)
    push = create_push_config_store(backend)
    if legacy:
        return LegacyRequestHandler(
            agent_executor=executor,
            task_store=create_task_store(backend, holds_lease=True),
            agent_card=card,
            queue_manager=create_queue_manager(backend),
            push_config_store=push,
            push_sender=sender,
        )
    return DefaultRequestHandler(
        agent_executor=executor,
        task_store=create_versioned_task_store(backend),
        agent_card=card,
        push_config_store=push,
        push_sender=sender,
        event_stream=create_event_stream(backend),
    )


def make_card(url: str) -> AgentCard:
    """Describe the agent."""
    skill = AgentSkill(id="obey", name="Obey", description="Does what you say", tags=["demo"])
    return AgentCard(
        name="redis_state demo",
        description="One agent, as many replicas as you like",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )


def make_app(
    url: str, namespace: str, address: str, *, lease_s: float, legacy: bool = False
) -> Starlette:
    """Make a replica's application. At its end running tasks end, and their subscribers learn it.

    Events of a task are pushed to its push configurations, also its end when its server has died.
    """
    backend = connect(url, A2AOptions(lease_s=lease_s), namespace=namespace)
    client = httpx.AsyncClient(timeout=_PUSH_S, trust_env=False)
    own = BasePushNotificationSender(client, create_push_config_store(backend))
    sender = create_push_sender(own, backend)
    card = make_card(address)
    handler = make_handler(backend, card, sender=sender, legacy=legacy)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with client, backend:
            yield
            if isinstance(handler, DefaultRequestHandler):
                await handler.aclose()

    routes = create_jsonrpc_routes(handler, "/", context_builder=_UserFromHeader())
    return Starlette(routes=[*routes, *create_agent_card_routes(card)], lifespan=lifespan)


def run_replica(url: str, namespace: str, *, port: int, lease_s: float, legacy: bool) -> None:
    """Serve until SIGTERM. The first line printed is the replica's address."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        config = uvicorn.Config(
            make_app(url, namespace, address, lease_s=lease_s, legacy=legacy),
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
        listening.listen()
        print(address, flush=True)
        uvicorn.Server(config).run(sockets=[listening])


async def run_replicas(arguments: argparse.Namespace) -> int:
    """Start the replicas as processes, print where they are, and stop them at the end.

    Return what to exit with: the failure of one that could not start ends all.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    replicas: list[asyncio.subprocess.Process] = []
    with ExitStack() as ending:
        url = arguments.url or ending.enter_context(start_embedded(None)).url
        options = ["--url", url, "--namespace", arguments.namespace]
        options += ["--lease", str(arguments.lease)] + ["--legacy"] * arguments.legacy
        try:
            for _ in range(arguments.replicas):
                # Each by itself: what was started is stopped, also if the next one fails.
                replicas.append(await _start(options))  # noqa: PERF401
            for place, replica in enumerate(replicas, 1):
                line = await _first_line(replica, stop)
                if not line:
                    return 0 if stop.is_set() else abs(await replica.wait()) or 1
                print(f"replica {place} (pid {replica.pid}): {line}", flush=True)
            await stop.wait()
        finally:
            await _stop(replicas)
    return 0


async def _start(options: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.a2a_server", "--replica", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


async def _first_line(replica: asyncio.subprocess.Process, stop: asyncio.Event) -> str:
    """Read where a replica is; empty if it ended first, or everything is to stop."""
    assert replica.stdout is not None  # noqa: S101 - started with a pipe
    reading = asyncio.create_task(replica.stdout.readline())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    line = reading.result().decode().strip() if reading.done() else ""
    for task in (reading, stopping):
        task.cancel()
    await asyncio.gather(reading, stopping, return_exceptions=True)
    return line


async def _stop(replicas: list[asyncio.subprocess.Process]) -> None:
    """Stop the replicas, and kill those that do not stop."""
    for replica in replicas:
        with suppress(ProcessLookupError):
            replica.terminate()
    ends = [asyncio.create_task(replica.wait()) for replica in replicas]
    if ends:
        await asyncio.wait(ends, timeout=_STOP_S)
    for replica in replicas:
        if replica.returncode is None:
            with suppress(ProcessLookupError):
                replica.kill()
    await asyncio.gather(*ends)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="An A2A server with replicas on one Redis")
    parser.add_argument("--url", default="", help="the Redis server; without it one is started")
    parser.add_argument("--namespace", default="a2a-demo")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--lease", type=float, default=5.0, help="silence before an end, in s")
    parser.add_argument("--legacy", action="store_true", help="use the SDK's legacy handler")
    parser.add_argument("--replica", action="store_true", help="be one replica")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.replica:
        sys.exit(asyncio.run(run_replicas(arguments)))
    run_replica(
        arguments.url,
        arguments.namespace,
        port=arguments.port,
        lease_s=arguments.lease,
        legacy=arguments.legacy,
    )
