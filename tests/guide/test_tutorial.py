"""The tutorial's two files, started as the page says: watched, cut, resumed, approved, stopped."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from redis_state import Settings
from redis_state.http_client.requests.caller import tls_for
from tests.support.processes import forkserver
from tests.support.servers.faults import importing
from tests.support.servers.ports import free_port

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("fastapi", reason="needs fastapi")
pytest.importorskip("uvicorn", reason="needs uvicorn")

pytestmark = [pytest.mark.worker]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "guides" / "fastapi.md"]
_FILE = re.compile(r"<!-- file: ([\w./-]+) -->\n```python\n(.*?)```", re.DOTALL)
# Only ends what hangs.
_GIVE_UP_S = 60.0


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str | None
    kind: str
    data: dict[str, Any]


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: page.stem)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the tutorial into a folder; for the guide, with its stream."""
    folder = tmp_path_factory.mktemp("tutorial")
    for page in {PAGES[0], request.param}:
        for name, text in _FILE.findall(page.read_text(encoding="utf-8")):
            (folder / name).write_text(text, encoding="utf-8")
    if (folder / "sse.py").exists():
        with (folder / "app.py").open("a", encoding="utf-8") as app:
            app.write("\n\nfrom sse import server_sent_events\n")
    return folder


@asynccontextmanager
async def service(program: Path, settings: Settings) -> AsyncGenerator[httpx.AsyncClient]:
    """Run the worker and the service; wait until the service answers."""
    port = free_port()
    environment = importing(
        REDIS_STATE_URL=settings.url.get_secret_value(), REDIS_STATE_NAMESPACE=settings.namespace
    )
    worker = ("-m", "redis_state", "worker", "agent:worker")
    server = ("-m", "uvicorn", "app:app", "--port", str(port))
    async with (
        forkserver.running(*worker, environment=environment, folder=program),
        forkserver.running(*server, environment=environment, folder=program),
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=_GIVE_UP_S, verify=tls_for("http://here")
        ) as http,
    ):
        async with asyncio.timeout(_GIVE_UP_S):
            while True:
                try:
                    await http.get("/tasks/none")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        yield http


async def watch(
    http: httpx.AsyncClient, task_id: str, after: str | None = None
) -> AsyncGenerator[Event, None]:
    """Read the events of a task until the service ends the stream."""
    headers = {"Last-Event-ID": after} if after else {}
    async with http.stream("GET", f"/tasks/{task_id}/events", headers=headers) as response:
        assert response.status_code == 200
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif fields.get("data") is not None:
                data = json.loads(fields["data"])
                yield Event(fields.get("id"), fields.get("event", "message"), data)
                fields = {}


async def read(
    http: httpx.AsyncClient, task_id: str, after: str | None = None, *, until: str
) -> list[Event]:
    """Read events until one of a type or kind; then cut the connection."""
    found: list[Event] = []
    async with asyncio.timeout(_GIVE_UP_S), aclosing(watch(http, task_id, after)) as events:
        async for event in events:
            found.append(event)
            if until in (event.kind, event.data.get("update_type")):
                return found
    raise AssertionError(f"the stream ended before {until}: {found}")


async def test_a_task_is_watched_cut_resumed_approved_and_another_one_is_stopped(
    program: Path, settings: Settings
) -> None:
    async with service(program, settings) as http:
        body = {"topic": "tea"}
        for _ in range(2):  # the same key is the same task
            made = await http.post("/tasks", json=body, headers={"Idempotency-Key": "tea-1"})
            assert (made.status_code, made.json()) == (202, {"task_id": "tea-1"})

        first = await read(http, "tea-1", until="PROGRESS")
        second = await read(http, "tea-1", first[-1].id, until="CHECKPOINT")
        pause_id = second[-1].data["content"]["pause_id"]

        unknown = await http.post("/tasks/other/approve", json={"pause_id": pause_id})
        assert unknown.status_code == 404
        decided = [
            (await http.post("/tasks/tea-1/approve", json={"pause_id": pause_id})).status_code
            for _ in range(2)
        ]
        assert decided == [200, 409]

        third = await read(http, "tea-1", second[-1].id, until="end")
        whole = await read(http, "tea-1", until="end")
        assert [*first, *second, *third] == whole
        ids = [event.id for event in whole[:-1]]
        assert len(set(ids)) == len(ids)
        progress = [e.data["content"]["message"] for e in whole if "PROGRESS" in e.data.values()]
        sources = ("history", "people", "trade", "weather", "maps")
        assert progress == [f"reading {source}" for source in sources]

        ended = (await http.get("/tasks/tea-1")).json()
        assert (ended["status"], ended["result"]["actor"]) == ("COMPLETE", "ann")

        await http.post("/tasks", json=body, headers={"Idempotency-Key": "tea-2"})
        await read(http, "tea-2", until="PROGRESS")
        steered = await http.post("/tasks/tea-2/steer", json={"instruction": "cocoa"})
        assert steered.status_code == 202
        checkpoint = (await read(http, "tea-2", until="CHECKPOINT"))[-1]
        assert "of cocoa shows" in checkpoint.data["content"]["payload"]["details"]["draft"]
        stopped = await http.post("/tasks/tea-2/stop")
        assert stopped.json() == {"cancelled": True}
        assert (await read(http, "tea-2", until="end"))[-1].kind == "end"
        assert (await http.get("/tasks/tea-2")).json()["status"] == "CANCELLED"

        gap = await read(http, "tea-1", "of no log", until="gap")
        assert gap[-1].id is not None
        assert (await http.get("/tasks/none/events")).status_code == 404
