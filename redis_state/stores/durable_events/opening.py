"""Where the settings want audit events."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redis_state.errors import ConfigError
from redis_state.stores.base import Base
from redis_state.stores.traces.audit_events import EventStore


def open_events(base: Base, event_type: type[Any]) -> EventStore:
    """Make the store of audit events that the settings name. No I/O.

    Errors: ConfigError for a URL that cannot be used, without the extra, and if events are to be
    archived too.
    """
    url = base.settings.durable_events
    if url is None:
        return EventStore(base, event_type)
    if "events" in base.settings.archive_classes:
        raise ConfigError("archive_classes: events are in `durable_events` already")
    try:
        import_module("psycopg")
    except ImportError:
        raise ConfigError(
            "durable events need the extra: pip install redis_state[postgres]"
        ) from None
    from redis_state.stores.durable_events.store import (  # noqa: PLC0415 - needs the extra
        DurableEventStore,
    )

    return DurableEventStore(base, url, event_type)
