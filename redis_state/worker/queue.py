"""The queue: arq carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A job that is lost, doubled or late is harmless: starting a task
is decided by the record, in one script. A job that is lost is put again by whoever finds that the
record says that the task waits, see `Queue.mend`.

What arq keeps of a job:

    <queue>                zset: job id -> when it was queued, by the clock of the queue's server,
                           and earlier by its priority; there until the job is over
    arq:job:<id>           its payload; a job without one is dropped by the worker that picks it
    arq:in-progress:<id>   somebody has picked it; nobody else does until this expires, which is
                           long after the picker has died

A job's id is `<namespace>/<session>/<task>:<epoch>`, so that namespaces that share a server, or
even a queue, leave each other's jobs alone.

Beside that, `<queue>:wake` is a channel: what is put is told there, and who waits looks at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import Any, cast

from arq.connections import ArqRedis, RedisSettings
from arq.constants import in_progress_key_prefix, job_key_prefix
from arq.jobs import serialize_job
from redis.exceptions import RedisError

from redis_state import codec
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.transport.address import Address
from redis_state.transport.keys import escape
from redis_state.worker.telemetry import carried

log: logging.Logger = logging.getLogger(__name__)

RUN_TASK = "run_task"
# How arq names cron jobs. They carry no arguments.
CRON_PREFIX = "cron:"

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
    called = parts.get("f")
    is_cron = isinstance(called, str) and called.startswith(CRON_PREFIX)
    return (
        (called == RUN_TASK or is_cron)
        and type(arguments) is list
        and len(arguments) == int(not is_cron)  # pyright: ignore[reportUnknownArgumentType]
        and parts.get("k") == {}
        and type(made) is int
        and 0 <= made < _END_OF_TIME_MS
        and (tries is None or type(tries) is int)
    )


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a job in the queue says: which task, after which epoch it was queued, and when.

    ``at_ms`` is by the store's clock, ``trace`` the context of the span that queued it.
    """

    session_id: str
    task_id: str
    epoch: int = 0
    at_ms: int | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, said: Any) -> Ticket | None:
        """Read a job's argument; None if it names no task."""
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


@dataclass(frozen=True, slots=True)
class Job:
    """What the record says of a task that is to be run: under which epoch, how urgent, where.

    ``version`` is that of the record, ``since_ms`` when the task was made. ``orphan`` tells that
    the run of this epoch is dead, and so is whoever has picked an earlier job. ``at_ms`` is when
    it is queued, by the store's clock, and ``trace`` the context of the span that does so.
    """

    session_id: str
    task_id: str
    epoch: int
    priority: int
    queue: str | None = None
    version: int = 0
    orphan: bool = False
    since_ms: int | None = None
    at_ms: int | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    def ticket(self) -> dict[str, Any]:
        """Write what its job in the queue says."""
        said = {"session_id": self.session_id, "task_id": self.task_id, "epoch": self.epoch}
        more = {"at": self.at_ms, "trace": self.trace}
        return said | {name: value for name, value in more.items() if value}

    def names(self, namespace: str) -> list[str]:
        """Name its jobs, the newest first: a task that was handed over keeps its earlier one."""
        oldest = max(0, self.epoch - _EPOCHS_BACK)
        epochs = range(self.epoch, oldest - 1, -1)
        return [_job_id(namespace, self.session_id, self.task_id, epoch) for epoch in epochs]


class Mended(Enum):
    """What the queue had of a job, and what was done."""

    WAITS = auto()  # it is there for any worker
    PICKED = auto()  # somebody has picked it and may be about to start it
    REVIVED = auto()  # who picked it never started it: it is there for any worker again
    QUEUED = auto()  # it was not there, and is now


@dataclass(frozen=True, slots=True)
class _Found:
    """One job id as arq has it: ``mark`` is the value of its in-progress key, None without one."""

    name: str
    queued: bool
    payload: bool
    mark: bytes | None


class Queue:
    """The queue's client side. Connects at the first use, once per event loop."""

    def __init__(self, settings: Settings, *, name: str | None = None) -> None:
        self._settings = settings
        self._name = default_queue(settings) if name is None else name
        self._clients: dict[asyncio.AbstractEventLoop, ArqRedis] = {}

    @property
    def name(self) -> str:
        """Where a job goes that names no queue of its own."""
        return self._name

    async def put(self, session_id: str, task_id: str, *, epoch: int, priority: int) -> None:
        """Queue a task for any worker, once per epoch. Errors: BackendUnavailable."""
        await self.put_job(Job(session_id, task_id, epoch, priority))

    async def put_job(self, job: Job) -> None:
        """Queue a task where it belongs, once per epoch. Errors: BackendUnavailable."""
        async with self._talking() as client:
            now_ms = await self._now_ms(client, job)
            async with client.pipeline(transaction=False) as pipe:
                self._put(pipe, job, now_ms)
                await _execute(pipe, waking=[job.queue or self._name])

    async def mend(self, jobs: Sequence[Job], *, patience_ms: int = 2_000) -> list[Mended]:
        """Make sure that the queue has these jobs, all of tasks that wait to be run.

        One round trip to look, one more if something is to be done. Safe to repeat, and when many
        do it at once: a job is there once. Errors: BackendUnavailable.

        A job that somebody has picked is left alone at first: its worker may be about to start it.
        That it was seen is written into arq's in-progress key, whose value arq never reads, with
        the record's version. Only if the same key with the same version is found later than
        ``patience_ms`` after, so that nobody started the task in all that time, is the key
        deleted. A worker that was merely slow then finds the task held, or starts it first.
        """
        if not jobs:
            return []
        async with self._talking() as client:
            now_ms, found = await self._find(client, jobs)
            async with client.pipeline(transaction=False) as pipe:
                mended = [
                    self._mend(pipe, job, its, now_ms, patience_ms)
                    for job, its in zip(jobs, found, strict=True)
                ]
                if len(pipe):
                    there_now = {
                        job.queue or self._name
                        for job, done in zip(jobs, mended, strict=True)
                        if done in (Mended.REVIVED, Mended.QUEUED)
                    }
                    await _execute(pipe, waking=sorted(there_now))
        return mended

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
            for job_id in self._names(Job(session_id, task_id, epoch, after)):
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

    async def _find(self, client: ArqRedis, jobs: Sequence[Job]) -> tuple[int, list[list[_Found]]]:
        async with client.pipeline(transaction=False) as opened:
            pipe: Any = opened
            pipe.time()
            for job in jobs:
                for name in self._names(job):
                    pipe.zscore(job.queue or self._name, name)
                    pipe.exists(job_key_prefix + name)
                    pipe.get(in_progress_key_prefix + name)
            clock, *rest = await pipe.execute()
        replies = iter(rest)
        found = [[_read(name, replies) for name in self._names(job)] for job in jobs]
        return ms_of(clock), found

    async def _now_ms(self, client: ArqRedis, job: Job) -> int:
        """Tell the time of the queue's server, by which workers tell whether a job is due."""
        if job.at_ms is not None and self._settings.queue_url is None:
            return job.at_ms  # the store's server is the queue's
        server: Any = client
        return ms_of(await server.time())

    def _names(self, job: Job) -> list[str]:
        return job.names(self._settings.namespace)

    def _mend(
        self, pipe: Any, job: Job, found: list[_Found], now_ms: int, patience_ms: int
    ) -> Mended:
        if any(one.queued and one.payload and one.mark is None for one in found):
            return Mended.WAITS
        # What an orphan's own run was picked under is not about to be started.
        picked = [one for one in found[: 1 if job.orphan else None] if one.mark is not None]
        fresh = False
        for one in picked:
            seen_ms = _seen_ms(one, job.version)
            if seen_ms is None:
                seen = f"{job.version} {now_ms}"
                pipe.set(in_progress_key_prefix + one.name, seen, xx=True, keepttl=True)
            fresh = fresh or seen_ms is None or now_ms - seen_ms < patience_ms
        if fresh:
            return Mended.PICKED
        for one in picked:
            pipe.delete(in_progress_key_prefix + one.name)
        if any(one.queued and one.payload for one in picked):
            return Mended.REVIVED
        # What is left of earlier jobs would only stand in arq's way: it reads the oldest first.
        for one in found[1:]:
            pipe.zrem(job.queue or self._name, one.name)
            pipe.delete(job_key_prefix + one.name, in_progress_key_prefix + one.name)
        self._put(pipe, job, now_ms)
        return Mended.QUEUED

    def _put(self, pipe: Any, job: Job, now_ms: int) -> None:
        """Write payload and place unless they are there. The payload first: see above."""
        name = self._names(job)[0]
        payload = serialize_job(
            RUN_TASK,
            (job.ticket(),),
            {},
            None,
            now_ms,
            serializer=serialize,
        )
        # arq would drop what has waited for a day.
        life_ms = self._settings.active_task_ttl // timedelta(milliseconds=1)
        since_ms = now_ms if job.since_ms is None else min(job.since_ms, now_ms)
        score = since_ms - _seniority(job.priority) // timedelta(milliseconds=1)
        pipe.set(job_key_prefix + name, payload, px=life_ms, nx=True)
        pipe.zadd(job.queue or self._name, {name: score}, nx=True)

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


def default_queue(settings: Settings) -> str:
    """Name the queue of whoever names none: one for each namespace."""
    return f"{settings.namespace}:tasks"


def is_anothers(job_id: str, namespace: str) -> bool:
    """Tell whether a job is one of another namespace's tasks."""
    owner, slash, task = job_id.partition("/")
    # Session, task: what looks otherwise is nobody's, or arq's own.
    return bool(slash) and task.count("/") == 1 and owner != escape("namespace", namespace)


def ms_of(clock: tuple[int, int]) -> int:
    """Read a server's reply to TIME, in milliseconds."""
    seconds, micros = clock
    return int(seconds) * 1000 + int(micros) // 1000


def wake_channel(queue: str) -> str:
    """Name the channel on which a queue's workers are woken."""
    return f"{queue}:wake"


async def _execute(pipe: Any, *, waking: Sequence[str]) -> None:
    """Run what a pipeline holds, then wake the workers of these queues.

    That they cannot be told, for want of rights say, is no error: they look by themselves.
    """
    written = len(pipe)
    for queue in waking:
        pipe.publish(wake_channel(queue), b"")
    for reply in (await pipe.execute(raise_on_error=False))[:written]:
        if isinstance(reply, Exception):
            raise reply


def _job_id(namespace: str, session_id: str, task_id: str, epoch: int) -> str:
    task = f"{escape('session_id', session_id)}/{escape('task_id', task_id)}"
    return f"{escape('namespace', namespace)}/{task}:{epoch}"


def _read(name: str, replies: Iterator[Any]) -> _Found:
    score, payload, mark = next(replies), next(replies), next(replies)
    return _Found(name, score is not None, bool(payload), mark)


def _seen_ms(found: _Found, version: int) -> int | None:
    """Tell when a picked job was first seen while its task waited in this version."""
    seen_version, _, seen_ms = (found.mark or b"").decode(errors="replace").partition(" ")
    return int(seen_ms) if seen_version == str(version) and seen_ms.isdecimal() else None


def _seniority(priority: int) -> timedelta:
    return min(max(priority, 0), _HIGHEST_PRIORITY) * _SENIORITY
