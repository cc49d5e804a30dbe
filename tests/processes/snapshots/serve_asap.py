"""Serve ASAP's own failover worker on the Redis store until killed; say ``port <n>`` first."""

from __future__ import annotations

import json
import socket
import sys

from redis_state.integrations.asap import create_snapshot_store
from tests.asap.real import failover, load


def main(url: str, namespace: str) -> None:
    """Listen on a free port."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = create_snapshot_store(url=url, namespace=namespace)
    app = failover.create_worker_app(port, snapshot_store=store)
    assert app.state.snapshot_store is store
    print("port", port, flush=True)  # noqa: T201
    uvicorn = load("uvicorn")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
