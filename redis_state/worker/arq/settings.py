"""The queue's server as arq's own runner is given it. Our own worker uses the store's transport."""

from __future__ import annotations

from dataclasses import dataclass

from arq.connections import RedisSettings

from redis_state.embedded.socket import EmbeddedSocket
from redis_state.errors import ConfigError
from redis_state.settings import Settings
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.login import login_of
from redis_state.worker.queue.server import check_shared, queue_server

# What redis-py knows, and arq's own settings have no place for.
_INSTEAD = "use run() or redis-state worker"
_BEYOND = ("ssl_min_version", "ssl_ciphers", "ssl_server_name")


@dataclass(repr=False)
class QueueSettings(RedisSettings):
    """The queue's server, as arq wants it. ``repr()`` does not show its password."""

    def __repr__(self) -> str:
        return f"<QueueSettings {self.unix_socket_path or f'{self.host}:{self.port}'}>"


def arq_server(settings: Settings) -> QueueSettings:
    """Read the queue's server from the settings, as arq's own runner wants it.

    Errors: ConfigError for an address, or an option of one, that arq cannot use.
    """
    check_shared(settings)
    own = queue_server(settings) or settings
    address = Address.parse(own.url.get_secret_value())
    if address.endpoints:
        raise ConfigError(f"arq's own runner cannot follow {address}: {_INSTEAD}")
    if login_of(own) is not None:
        raise ConfigError(f"arq's own runner cannot follow credentials that change: {_INSTEAD}")
    refused = sorted(name for name in address.options if name in _BEYOND)
    if refused:
        named = ", ".join(refused)
        raise ConfigError(f"arq's own runner cannot pass on {named} of the queue's URL: {_INSTEAD}")
    options = dict(address.options)
    if address.scheme == "embedded":
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
    )
