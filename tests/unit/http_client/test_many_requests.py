"""A call that makes many requests makes few of them at a time."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("httpx", reason="needs the http extra")

import httpx

from redis_state.http_client import HttpTaskClient


class _Counting(httpx.AsyncBaseTransport):
    """A gateway of a task with many children, of which none is kept any more."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        # All that may ask at the same time have asked.
        for _ in range(50):
            await asyncio.sleep(0)
        self.now -= 1
        if request.url.path.endswith("/tree"):
            children = [{"task_id": f"c{number}"} for number in range(100)]
            return httpx.Response(200, json={"children": children})
        return httpx.Response(404, json={"error": {"code": "not_found", "message": "none"}})


async def test_the_children_of_a_task_are_read_some_at_a_time() -> None:
    counting = _Counting()
    async with HttpTaskClient("http://gateway", transport=counting) as http:
        assert await http.children("s", "t") == []
    assert counting.all == 101
    assert 2 <= counting.most <= 16
