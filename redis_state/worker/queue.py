"""The queue: arq carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A job that is lost, doubled or late is harmless: starting a task
is decided by the record, in one script.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from arq.connections import ArqRedis, RedisSettings
from redis.exceptions import RedisError

from redis_state import codec
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.transport.address import Address
from redis_state.transport.keys import escape

RUN_TASK = "run_task"
DEFAULT_QUEUE = "redis_state:tasks"

# One point of priority is worth as much as having been queued a minute earlier.
_SENIORITY = timedelta(minutes=1)
_HIGHEST_PRIORITY = 100_000
_EPOCHS_BACK = 10


class QueueSettings(RedisSettings):
    """The queue's server, as arq wants it. ``repr()`` does not show its password."""

    def __repr__(self) -> str:
        return f"<QueueSettings {self.unix_socket_path or f'{self.host}:{self.port}'}>"


def queue_settings(settings: Settings) -> QueueSettings:
    """Read the queue's server from the settings, as arq wants it.

    Errors: ConfigError for an address that arq cannot use.
    """
    url = (settings.queue_url or settings.url).get_secret_value()
    address = Address.parse(url)
    if address.scheme == "embedded":
        raise ConfigError(
            "a worker needs a server it can share: start the embedded one with a directory and "
            "give its unix:// address, or name a redis:// server"
        )
    options = address.options
    return QueueSettings(
        host=options.get("host", "localhost"),
        port=options.get("port", 6379),
        unix_socket_path=options.get("path"),
        database=options.get("db", 0),
        username=options.get("username"),
        password=options.get("password"),
        ssl=address.scheme == "rediss",
        ssl_keyfile=options.get("ssl_keyfile"),
        ssl_certfile=options.get("ssl_certfile"),
        ssl_ca_certs=options.get("ssl_ca_certs"),
        ssl_cert_reqs=options.get("ssl_cert_reqs", "required"),
        ssl_check_hostname=options.get("ssl_check_hostname", False),
        conn_timeout=max(1, round(settings.connect_timeout_s)),
        conn_retries=3,
    )


def serialize(job: dict[str, Any]) -> bytes:
    """Write a job as JSON. What is not JSON, an exception say, is its text: nothing to execute."""
    return codec.encode(job)


def deserialize(data: bytes) -> dict[str, Any]:
    """Read a job."""
    job: dict[str, Any] = codec.decode(data)
    return job


class Queue:
    """The queue's client side. Connects at the first use, once per event loop."""

    def __init__(self, settings: Settings, *, name: str = DEFAULT_QUEUE) -> None:
        self._settings = settings
        self._name = name
        self._clients: dict[asyncio.AbstractEventLoop, ArqRedis] = {}

    async def put(self, session_id: str, task_id: str, *, epoch: int, priority: int) -> None:
        """Queue a task for any worker, once per epoch. Errors: BackendUnavailable."""
        async with self._talking() as client:
            await client.enqueue_job(
                RUN_TASK,
                {"session_id": session_id, "task_id": task_id, "epoch": epoch},
                _job_id=_job_id(session_id, task_id, epoch),
                _queue_name=self._name,
                _defer_until=datetime.now(UTC) - _seniority(priority),
                # arq would drop what has waited for a day.
                _expires=self._settings.active_task_ttl,
            )

    async def move(
        self, session_id: str, task_id: str, *, epoch: int, before: int, after: int
    ) -> None:
        """Move a queued task by the difference of two priorities. Errors: BackendUnavailable.

        It is queued under the epoch of its last run or, if that was handed over, an earlier one.
        """
        earlier_ms = (_seniority(after) - _seniority(before)) // timedelta(milliseconds=1)
        async with self._talking() as client:
            for each in range(max(0, epoch - _EPOCHS_BACK), epoch + 1):
                job_id = _job_id(session_id, task_id, each)
                await client.zadd(self._name, {job_id: -earlier_ms}, xx=True, incr=True)

    async def clear(self) -> None:
        """Forget everything queued. The tasks stay as they are. Errors: BackendUnavailable."""
        async with self._talking() as client:
            await client.delete(self._name)

    async def aclose(self) -> None:
        """Disconnect this loop. Safe to repeat."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose(close_connection_pool=True)

    @asynccontextmanager
    async def _talking(self) -> AsyncGenerator[ArqRedis, None]:
        deadline_s = self._settings.connect_timeout_s + self._settings.call_timeout_s
        client = self._client()
        try:
            async with asyncio.timeout(deadline_s):
                yield client
        except (RedisError, OSError) as error:
            url = (self._settings.queue_url or self._settings.url).get_secret_value()
            raise BackendUnavailable(str(Address.parse(url)), type(error).__name__) from error

    def _client(self) -> ArqRedis:
        loop = asyncio.get_running_loop()
        for other in [known for known in self._clients if known.is_closed()]:
            del self._clients[other]
        if loop not in self._clients:
            self._clients[loop] = _connect(queue_settings(self._settings))
        return self._clients[loop]


def _connect(server: QueueSettings) -> ArqRedis:
    # arq's own create_pool connects at once, and again and again while the server is away.
    return ArqRedis(
        host=server.host,
        port=server.port,
        unix_socket_path=server.unix_socket_path,
        db=server.database,
        username=server.username,
        password=server.password,
        ssl=server.ssl,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
        ssl_ca_certs=server.ssl_ca_certs,
        ssl_cert_reqs=server.ssl_cert_reqs,
        ssl_check_hostname=server.ssl_check_hostname,
        socket_connect_timeout=server.conn_timeout,
        job_serializer=serialize,
        job_deserializer=deserialize,
    )


def _job_id(session_id: str, task_id: str, epoch: int) -> str:
    return f"{escape('session_id', session_id)}/{escape('task_id', task_id)}:{epoch}"


def _seniority(priority: int) -> timedelta:
    return min(max(priority, 0), _HIGHEST_PRIORITY) * _SENIORITY
