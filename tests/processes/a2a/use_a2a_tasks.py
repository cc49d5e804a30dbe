"""Change, follow or serve A2A tasks, as one process of several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
from penguiflow import Message as FlowMessage
from penguiflow import Node, NodePolicy, create
from penguiflow_a2a import A2AService, create_a2a_http_app
from penguiflow_a2a.models import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    TaskState,
    TaskStatus,
)

from redis_state.integrations.penguiflow import PenguiflowA2ATaskStore, create_a2a_task_store

TASK = "task"
JSON = {"content-type": "application/a2a+json"}


def message(name: str) -> Message:
    """Make a message whose id tells its writer."""
    return Message(message_id=name, role=Role.AGENT, parts=[Part(text=name)])


def artifact(artifact_id: str, *texts: str) -> Artifact:
    """Make an artifact of some parts."""
    return Artifact(artifact_id=artifact_id, parts=[Part(text=text) for text in texts])


def reported(event: StreamResponse) -> str:
    """Tell an update by the text that its writer gave it."""
    if event.artifact_update is not None:
        return str(event.artifact_update.artifact.parts[0].text)
    assert event.status_update is not None
    metadata = event.status_update.metadata or {}
    return "end" if event.status_update.final else str(metadata["name"])


async def write(store: PenguiflowA2ATaskStore, argument: dict[str, Any]) -> None:
    """Add history, parts of one artifact, artifacts and statuses, so many of each."""
    who = argument["who"]
    for n in range(argument["times"]):
        name = f"{who}-{n}"
        await store.add_history(TASK, message(name))
        for part, append in (("shared", True), (name, False)):
            await store.add_artifact(
                TASK, artifact(part, f"{part} {name}"), append=append, last_chunk=False
            )
        status = TaskStatus(state=TaskState.WORKING)
        await store.update_status(TASK, status, final=False, metadata={"name": name})


async def follow(store: PenguiflowA2ATaskStore, _: dict[str, Any]) -> list[str]:
    """Tell what a subscriber hears until the end."""
    queue, unsubscribe = await store.subscribe(TASK)
    await store.update_status(
        TASK, TaskStatus(state=TaskState.WORKING), final=False, metadata={"name": "subscribed"}
    )
    heard: list[str] = []
    while heard[-1:] != ["end"]:
        heard.append(reported(await queue.get()))
    await unsubscribe()
    return heard


def card() -> AgentCard:
    """Make the card of a plain agent."""
    return AgentCard(
        protocol_versions=["0.3"],
        name="agent",
        description="a plain agent",
        version="1",
        supported_interfaces=[AgentInterface(url="http://agent", protocol_binding="http")],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="s", name="s", description="s", tags=["t"])],
    )


def service(store: Any, go_on: asyncio.Event) -> A2AService:
    """Make upstream's server of a flow that streams three chunks, the last two when told."""

    async def speak(requested: FlowMessage, context: Any) -> None:
        for n in range(3):
            await context.emit_chunk(parent=requested, text=f"chunk {n}", done=n == 2)
            if n == 0:
                await go_on.wait()

    node = Node(speak, name="speak", policy=NodePolicy(validate="none"))
    return A2AService(create(node.to()), agent_card=card(), store=store)


@contextlib.asynccontextmanager
async def serving(store: Any, go_on: asyncio.Event) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve over ASGI; give a client of it."""
    served = service(store, go_on)
    transport = httpx.ASGITransport(app=create_a2a_http_app(served))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        try:
            yield client
        finally:
            await served.stop()


async def serve(store: PenguiflowA2ATaskStore, argument: dict[str, Any]) -> str:
    """Run a task on this process's server, its last chunks once a status asks for them."""
    go_on = asyncio.Event()
    async with serving(store, go_on) as client:
        request = {
            "message": {"messageId": "m", "role": "user", "parts": [{"text": "hello"}]},
        }
        sent = await client.post("/message:send", json=request, headers=JSON)
        sent.raise_for_status()
        task_id: str = sent.json()["task"]["id"]
        queue, unsubscribe = await store.subscribe(task_id)
        print(task_id, flush=True)  # noqa: T201
        while True:
            event = await queue.get()
            if event.status_update is not None and event.status_update.final:
                break
            if event.status_update is not None and event.status_update.metadata == {"go": "on"}:
                go_on.set()
        await unsubscribe()
    return task_id


async def main(argument: dict[str, Any]) -> Any:
    """Do what the argument says."""
    does = {f.__name__: f for f in (write, follow, serve)}
    async with create_a2a_task_store(url=argument["url"], namespace=argument["namespace"]) as store:
        return await does[argument["does"]](store, argument)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
