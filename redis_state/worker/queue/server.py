"""Which server the queues of a store are on: the store's own, or that of `queue_url`."""

from __future__ import annotations

from redis_state.errors import ConfigError
from redis_state.settings import Settings
from redis_state.transport.connections.address import Address


def check_shared(settings: Settings) -> None:
    """Errors: ConfigError for an address that no worker could share."""
    address = _address(settings)
    if address.scheme == "embedded" and address.directory is None:
        raise ConfigError(
            "embedded:// is a server of one store's own, and a pool shares its server: "
            "name a directory, embedded:///path/to/directory, or a redis:// server"
        )


def queue_server(settings: Settings) -> Settings | None:
    """Return the settings of the queue's own server; None if it is the store's.

    It promises nothing: a job that is lost is queued again. A password in its address goes before
    credentials that change. Errors: ConfigError.
    """
    if settings.queue_url is None:
        return None
    changes: dict[str, object] = {"url": settings.queue_url, "queue_url": None}
    changes |= {"guarantee": "fast", "guarantee_replicas": None}
    address = _address(settings)
    if "password" in address.options or address.scheme == "embedded":
        changes |= {"credentials": None, "password_file": None}
    return settings.model_copy(update=changes)


def _address(settings: Settings) -> Address:
    if settings.queue_url is None:
        return Address.parse(settings.url.get_secret_value())
    try:
        return Address.parse(settings.queue_url.get_secret_value())
    except ConfigError as error:
        raise ConfigError(f"queue_url: {error}") from None
