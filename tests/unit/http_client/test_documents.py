"""Documents of gateways of earlier versions are read too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("httpx", reason="needs the http extra")

from redis_state.http_client.documents import read_queue


def test_a_queue_of_a_gateway_that_does_not_count_workers_is_read() -> None:
    numbers = dict.fromkeys(("waiting", "later", "running", "oldest_s"), 0)
    limits: dict[str, Any] = {
        "paused": False,
        "limit": None,
        "per_key": None,
        "rate": None,
        "keys": {},
    }
    queue = read_queue({"name": "q", **numbers, **limits})
    assert (queue.name, queue.workers) == ("q", 0)
