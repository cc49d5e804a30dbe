"""The queue's server: its address as arq wants it, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from arq.connections import ArqRedis, RedisSettings
from redis.asyncio.connection import (
    Connection,
    ConnectionPool,
    UnixDomainSocketConnection,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redis_state.embedded.socket import (
    EmbeddedConnection,
    EmbeddedPool,
    EmbeddedSocket,
)
from redis_state.errors import BackendUnavailable, CommandRefused, ConfigError, NoConnection
from redis_state.settings import Settings
from redis_state.transport.cluster.slots import SlotOwner
from redis_state.transport.connections.address import Address, TlsConnection, announce_nothing
from redis_state.transport.connections.login import (
    Login,
    LoginFailed,
    connect_and_log_in,
    login_of,
    provider_in,
)
from redis_state.transport.connections.sentinel import Sentinels
from redis_state.transport.keys import escape
from redis_state.transport.wire.reply_errors import connect_error, not_now, reply_error
from redis_state.worker.arq.job_format import deserialize, serialize

# Closing a dead connection over TLS would wait for the other side.
_CLOSE_S = 0.2
_BEYOND = ("ssl_min_version", "ssl_ciphers", "ssl_server_name", "client_name")


@dataclass(repr=False)
class QueueSettings(RedisSettings):
    """The queue's server, as arq wants it. ``repr()`` does not show its password.

    ``beyond`` are options that redis-py knows and arq's own settings have no place for.
    ``located_by`` is the set of servers that knows where the queue's is, if its address is one.
    ``tag`` is in the name of everything that is in the queue's slot of a cluster, and ``owner``
    leads the ids of jobs.
    """

    beyond: dict[str, Any] = field(default_factory=dict[str, Any])
    located_by: Address | None = None
    tag: str = ""
    owner: str = ""
    # Makes the login of a client, if its credentials may change.
    login: Callable[[], Login | None] = field(default=lambda: None)

    def __repr__(self) -> str:
        shown = self.located_by or self.unix_socket_path or f"{self.host}:{self.port}"
        return f"<QueueSettings {shown}>"


def queue_settings(settings: Settings) -> QueueSettings:
    """Read the queue's server from the settings, as arq wants it.

    Errors: ConfigError for an address that arq cannot use.
    """
    address = _address(settings)
    options = dict(address.options)
    if address.scheme == "embedded":
        if address.directory is None:
            raise ConfigError(
                "embedded:// is a server of one store's own, and a pool shares its server: "
                "name a directory, embedded:///path/to/directory, or a redis:// server"
            )
        # arq wants text and passes it on to asyncio, which takes any path.
        options["path"] = EmbeddedSocket(address.directory)
    encrypted = address.scheme.startswith("rediss")
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
        located_by=address if address.endpoints else None,
        tag=queue_tag(settings),
        owner=job_owner(settings),
        login=_login_of(settings, address),
    )


def queue_tag(settings: Settings) -> str:
    """Return the hash tag of a namespace's queues on a cluster; "" on one server.

    arq's calls are about a queue and its jobs at once. So all of them share a slot.
    """
    owner = escape("namespace", settings.namespace)
    return f"{{{owner}}}" if _address(settings).is_cluster else ""


def queue_key(settings: Settings, queue: str) -> str:
    """Return the key of a queue."""
    tag = queue_tag(settings)
    return f"{tag}:{queue}" if tag else queue


def job_owner(settings: Settings) -> str:
    """Return what leads the ids of a namespace's jobs."""
    return queue_tag(settings) or escape("namespace", settings.namespace)


def _login_of(settings: Settings, address: Address) -> Callable[[], Login | None]:
    """Return what makes the login of a client. Errors: ConfigError."""
    other_server = settings.queue_url is not None
    if other_server and ("password" in address.options or address.scheme == "embedded"):
        return lambda: None
    address.with_login(login_of(settings))
    return lambda: login_of(settings)


def _address(settings: Settings) -> Address:
    return Address.parse((settings.queue_url or settings.url).get_secret_value())


class _Bounded:
    """A connection of redis-py whose writes are bounded and can still be cancelled.

    It bounds them with `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes
    when the write is done: a worker that got a signal to stop ran on for ever.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        announce_nothing(self)
        self._login_version = 0

    async def connect(self) -> None:
        """Connect; again, if the credentials have changed since it did."""
        me: Any = self
        provider = provider_in(self)
        if provider is not None and me.is_connected:
            with suppress(LoginFailed):
                await provider.login.current()
            if self._login_version != provider.login.version:
                await me.disconnect(nowait=True)
        if not me.is_connected:
            if provider is not None:
                # Before it connects: others may be given meanwhile to another connection.
                with suppress(LoginFailed):
                    await provider.login.current()
                self._login_version = provider.login.version
            opened: Any = super()  # the connection, which comes next
            await connect_and_log_in(self, opened.connect)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - as redis-py calls it
        """Send what was packed. Errors: TimeoutError, as redis-py has it."""
        me: Any = self
        limit_s, me.socket_timeout = me.socket_timeout, None
        try:
            async with asyncio.timeout(limit_s):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]  # the connection's, which comes next
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None
        finally:
            me.socket_timeout = limit_s


class _Connection(_Bounded, Connection):
    pass


class _TlsConnection(_Bounded, TlsConnection):
    pass


class _Located:
    """A connection of redis-py that looks up the server each time before it connects."""

    def __init__(self, *, locator: Sentinels | SlotOwner, **options: Any) -> None:
        super().__init__(**options)
        self._locator = locator

    async def connect(self) -> None:
        """Connect. Errors: redis-py's ConnectionError if nobody knows where the server is."""
        me: Any = self
        if not me.is_connected:
            try:
                address = await self._locator.locate()
            except NoConnection as error:
                raise ConnectionLost(error.reason) from None
            me.host, me.port = address.options["host"], address.options["port"]
        await super().connect()  # type: ignore[misc]  # the connection's, which comes next


class _LocatedConnection(_Located, _Connection):
    pass


class _LocatedTlsConnection(_Located, _TlsConnection):
    pass


class _LocatedPool(ConnectionPool):
    """A redis-py pool of a server that has to be looked up."""

    def __init__(self, locator: Sentinels | SlotOwner, **options: Any) -> None:
        super().__init__(locator=locator, **options)  # pyright: ignore[reportUnknownMemberType] - redis-py's are untyped
        self._locator = locator

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002
        """Disconnect, from the Sentinels too."""
        await super().disconnect(inuse_connections)
        await self._locator.aclose()


class _OwnedRedis(ArqRedis):
    """arq's client. The jobs that arq names itself, those of cron, are the namespace's too."""

    owner: str

    async def enqueue_job(  # as arq has it
        self, function: str, *args: Any, _job_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Put a job under an id that begins with its owner."""
        _job_id = f"{self.owner}/{_job_id or uuid4().hex}"
        return await super().enqueue_job(function, *args, _job_id=_job_id, **kwargs)


class _UnixConnection(_Bounded, UnixDomainSocketConnection):
    pass


class _EmbeddedConnection(_Bounded, EmbeddedConnection):
    pass


def connect(server: QueueSettings, *, reply_timeout_s: float) -> ArqRedis:
    """Make a client of the queue's server, with every option of its address. No I/O.

    A reply that takes longer than ``reply_timeout_s`` ends its connection: TimeoutError.
    """
    # arq's own create_pool connects at once, and again and again while the server is away.
    socket: Any = server.unix_socket_path
    options: dict[str, Any] = {"host": server.host, "port": server.port}
    kind: type[Connection | UnixDomainSocketConnection] = _Connection
    if isinstance(socket, EmbeddedSocket):
        options, kind = {"socket": socket}, _EmbeddedConnection
    elif socket is not None:
        options, kind = {"path": socket}, _UnixConnection
    elif server.ssl:
        kind = _TlsConnection
        options |= {
            "ssl_keyfile": server.ssl_keyfile,
            "ssl_certfile": server.ssl_certfile,
            "ssl_ca_certs": server.ssl_ca_certs,
            "ssl_ca_data": server.ssl_ca_data,
            "ssl_cert_reqs": server.ssl_cert_reqs,
            "ssl_check_hostname": server.ssl_check_hostname,
        }
    make: Any = EmbeddedPool if kind is _EmbeddedConnection else ConnectionPool
    login = server.login()
    if server.located_by is not None:
        located_by = server.located_by.with_login(login)
        make, kind = _LocatedPool, _LocatedTlsConnection if server.ssl else _LocatedConnection
        del options["host"], options["port"]
        options["locator"] = (
            SlotOwner(located_by, server.tag)
            if located_by.is_cluster
            else Sentinels(located_by, connect_timeout_s=server.conn_timeout)
        )
    if login is None:
        options |= {"username": server.username, "password": server.password}
    else:
        options["credential_provider"] = login.for_redis_py(server.username)
    pool = make(
        connection_class=kind,
        db=server.database,
        socket_connect_timeout=server.conn_timeout,
        socket_timeout=reply_timeout_s,
        **options,
        **server.beyond,
    )
    client = _OwnedRedis(pool, job_serializer=serialize, job_deserializer=deserialize)
    client.owner = server.owner
    return client


def queue_error(error: BaseException, settings: Settings) -> NoConnection:
    """Return the error for a failed call to the queue's server, without a password or a payload."""
    named = _address(settings)
    address = str(named)
    elsewhere = not_now(error, located=named.is_cluster)
    if elsewhere is not None:
        return BackendUnavailable(address, elsewhere)
    if isinstance(error, ResponseError):
        failure = reply_error(error, address)
        reason = str(failure).removeprefix(f"{address}: ")
        return BackendUnavailable(address, reason, final=isinstance(failure, CommandRefused))
    return connect_error(error, address, changing=_login_of(settings, named)() is not None)


async def renew(client: ArqRedis) -> None:
    """Leave the connections that are not in use: they may be dead, or lead to a replica."""
    connections: Any = client.connection_pool
    with suppress(RedisError, OSError):
        async with asyncio.timeout(_CLOSE_S):
            await connections.disconnect(inuse_connections=False)
