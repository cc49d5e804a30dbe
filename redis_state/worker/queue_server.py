"""The queue's server: its address as arq wants it, and a client of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from arq.connections import ArqRedis, RedisSettings

from redis_state.errors import ConfigError
from redis_state.settings import Settings
from redis_state.transport.address import Address
from redis_state.transport.embedded_socket import EmbeddedPool, EmbeddedSocket
from redis_state.worker.jobs import deserialize, serialize

_BEYOND = ("ssl_min_version", "ssl_ciphers", "client_name")


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
    options = dict(address.options)
    if address.scheme == "embedded":
        if address.directory is None:
            raise ConfigError(
                "embedded:// is a server of one store's own, and a pool shares its server: "
                "name a directory, embedded:///path/to/directory, or a redis:// server"
            )
        # arq wants text and passes it on to asyncio, which takes any path.
        options["path"] = EmbeddedSocket(address.directory)
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


def connect(server: QueueSettings) -> ArqRedis:
    """Make a client of the queue's server, with every option of its address. No I/O."""
    # arq's own create_pool connects at once, and again and again while the server is away.
    socket: Any = server.unix_socket_path
    if isinstance(socket, EmbeddedSocket):
        return ArqRedis(
            EmbeddedPool(socket, socket_connect_timeout=server.conn_timeout),
            job_serializer=serialize,
            job_deserializer=deserialize,
        )
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
