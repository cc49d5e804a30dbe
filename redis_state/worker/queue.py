"""The queue: arq carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A job that is lost, doubled or late is harmless: starting a task
is decided by the record, in one script.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from arq.connections import ArqRedis, RedisSettings
from redis.exceptions import RedisError

from redis_state import codec
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.transport.address import Address
from redis_state.transport.keys import escape
from redis_state.worker.telemetry import carried

log: logging.Logger = logging.getLogger(__name__)

RUN_TASK = "run_task"
DEFAULT_QUEUE = "redis_state:tasks"

# One point of priority is worth as much as having been queued a minute earlier.
_SENIORITY = timedelta(minutes=1)
_HIGHEST_PRIORITY = 100_000
_EPOCHS_BACK = 10

_BEYOND = ("ssl_min_version", "ssl_ciphers", "client_name")
_NO_JOB: Mapping[str, Any] = {"t": None, "f": RUN_TASK, "a": [None], "k": {}, "et": 0}
# What datetime still reads.
_END_OF_TIME_MS = 253_402_300_799_000


@dataclass(repr=False)
class QueueSettings(RedisSettings):
    """The queue's server, as arq wants it. ``repr()`` does not show its password.

    ``beyond`` are options that redis-py knows and arq's own settings have no place for.
    """

    beyond: dict[str, Any] = field(default_factory=dict[str, Any])

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
    encrypted = address.scheme == "rediss"
    return QueueSettings(
        host=options.get("host", "localhost"),
        port=options.get("port", 6379),
        unix_socket_path=options.get("path"),
        database=options.get("db", 0),
        username=options.get("username"),
        password=options.get("password"),
        ssl=encrypted,
        ssl_keyfile=options.get("ssl_keyfile"),
        ssl_certfile=options.get("ssl_certfile"),
        ssl_ca_certs=options.get("ssl_ca_certs"),
        ssl_ca_data=options.get("ssl_ca_data"),
        ssl_cert_reqs=options.get("ssl_cert_reqs", "required"),
        ssl_check_hostname=options.get("ssl_check_hostname", encrypted),
        conn_timeout=max(1, round(settings.connect_timeout_s)),
        conn_retries=3,
        beyond={name: options[name] for name in _BEYOND if name in options},
    )


def serialize(job: dict[str, Any]) -> bytes:
    """Write a job as JSON. What is not JSON, an exception say, is its text: nothing to execute."""
    return codec.encode(job)


def deserialize(data: bytes) -> dict[str, Any]:
    """Read a job. What is none becomes one that names no task, and is dropped by its worker.

    arq itself would end the worker for some of them.
    """
    try:
        job: Any = codec.decode(data)
    except ValueError:
        job = None
    return cast("dict[str, Any]", job) if _is_job(job) else dict(_NO_JOB)


def _is_job(job: Any) -> bool:
    if not isinstance(job, dict):
        return False
    parts = cast("dict[str, Any]", job)
    arguments, made, tries = parts.get("a"), parts.get("et"), parts.get("t")
    return (
        parts.get("f") == RUN_TASK
        and type(arguments) is list
        and len(arguments) == 1  # pyright: ignore[reportUnknownArgumentType]
        and parts.get("k") == {}
        and type(made) is int
        and 0 <= made < _END_OF_TIME_MS
        and (tries is None or type(tries) is int)
    )


@dataclass(frozen=True, slots=True)
class Job:
    """What a job says: which task, queued after which epoch, when by the server's clock, by whom.

    ``trace`` is the context of the span that queued it.
    """

    session_id: str
    task_id: str
    epoch: int = 0
    at_ms: int | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, said: Any) -> Job | None:
        """Read a job; None if it names no task."""
        if not isinstance(said, dict):
            return None
        parts = cast("dict[str, Any]", said)
        session_id, task_id = parts.get("session_id"), parts.get("task_id")
        if not isinstance(session_id, str) or not isinstance(task_id, str):
            return None
        epoch, at_ms = parts.get("epoch"), parts.get("at")
        return cls(
            session_id,
            task_id,
            epoch if type(epoch) is int else 0,
            at_ms if type(at_ms) is int else None,
            carried(parts.get("trace")),
        )

    def waited_s(self, now_ms: int | None, *, epoch: int) -> float | None:
        """Tell how long the task waited for the run of this epoch.

        None if that is not known: another run came in between, and it waited for that one.
        """
        if now_ms is None or self.at_ms is None or epoch != self.epoch + 1:
            return None
        return (now_ms - self.at_ms) / 1000


class Queue:
    """The queue's client side. Connects at the first use, once per event loop."""

    def __init__(self, settings: Settings, *, name: str = DEFAULT_QUEUE) -> None:
        self._settings = settings
        self._name = name
        self._clients: dict[asyncio.AbstractEventLoop, ArqRedis] = {}

    @property
    def name(self) -> str:
        """The queue that is meant if none is named."""
        return self._name

    async def put(
        self,
        session_id: str,
        task_id: str,
        *,
        epoch: int,
        priority: int,
        queue: str | None = None,
        at_ms: int | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a task for any worker, once per epoch. Errors: BackendUnavailable.

        ``at_ms`` is now by the store's clock; ``trace`` the context of the span that queues it.
        """
        job = {"session_id": session_id, "task_id": task_id, "epoch": epoch}
        more = {"at": at_ms, "trace": trace}
        async with self._talking() as client:
            await client.enqueue_job(
                RUN_TASK,
                job | {name: value for name, value in more.items() if value},
                _job_id=_job_id(session_id, task_id, epoch),
                _queue_name=queue or self._name,
                _defer_until=datetime.now(UTC) - _seniority(priority),
                # arq would drop what has waited for a day.
                _expires=self._settings.active_task_ttl,
            )

    async def move(
        self,
        session_id: str,
        task_id: str,
        *,
        epoch: int,
        before: int,
        after: int,
        queue: str | None = None,
    ) -> None:
        """Move a queued task by the difference of two priorities. Errors: BackendUnavailable.

        It is queued under the epoch of its last run or, if that was handed over, an earlier one.
        """
        earlier_ms = (_seniority(after) - _seniority(before)) // timedelta(milliseconds=1)
        async with self._talking() as client:
            for each in range(max(0, epoch - _EPOCHS_BACK), epoch + 1):
                job_id = _job_id(session_id, task_id, each)
                await client.zadd(queue or self._name, {job_id: -earlier_ms}, xx=True, incr=True)

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
            self._clients[loop] = connect(queue_settings(self._settings))
        return self._clients[loop]


def connect(server: QueueSettings) -> ArqRedis:
    """Make a client of the queue's server, with every option of its address. No I/O."""
    # arq's own create_pool connects at once, and again and again while the server is away.
    encryption: dict[str, Any] = {}
    if server.ssl:
        encryption = {
            "ssl": True,
            "ssl_keyfile": server.ssl_keyfile,
            "ssl_certfile": server.ssl_certfile,
            "ssl_ca_certs": server.ssl_ca_certs,
            "ssl_ca_data": server.ssl_ca_data,
            "ssl_cert_reqs": server.ssl_cert_reqs,
            "ssl_check_hostname": server.ssl_check_hostname,
        }
    return ArqRedis(
        host=server.host,
        port=server.port,
        unix_socket_path=server.unix_socket_path,
        db=server.database,
        username=server.username,
        password=server.password,
        socket_connect_timeout=server.conn_timeout,
        job_serializer=serialize,
        job_deserializer=deserialize,
        **encryption,
        **server.beyond,
    )


def _job_id(session_id: str, task_id: str, epoch: int) -> str:
    return f"{escape('session_id', session_id)}/{escape('task_id', task_id)}:{epoch}"


def _seniority(priority: int) -> timedelta:
    return min(max(priority, 0), _HIGHEST_PRIORITY) * _SENIORITY
