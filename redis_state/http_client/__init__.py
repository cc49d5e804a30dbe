"""The client of a gateway: `TaskClient` over HTTP. Needs the extras ``http`` and ``worker``."""

from __future__ import annotations

from redis_state.http_client.client import HttpTaskClient
from redis_state.http_client.collections import HttpQueues, HttpRates, HttpSchedules
from redis_state.http_client.documents import TaskTree, Timeline
from redis_state.http_client.requests.caller import Credentials

__all__ = [
    "Credentials",
    "HttpQueues",
    "HttpRates",
    "HttpSchedules",
    "HttpTaskClient",
    "TaskTree",
    "Timeline",
]
