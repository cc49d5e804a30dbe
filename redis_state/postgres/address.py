"""The URL of a PostgreSQL, checked, and as it may be shown."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from redis_state.errors import ConfigError

_SCHEMES = ("postgresql://", "postgres://")


def shown(setting: str, url: SecretStr) -> str:
    """Return a URL without its user, its password and its options.

    Errors: ConfigError names the setting if the URL cannot be used. Its text quotes nothing of it.
    """
    text = url.get_secret_value()
    if not text.startswith(_SCHEMES):
        raise ConfigError(f"{setting}: a URL postgresql://… is needed")
    try:
        parts = conninfo_to_dict(text)
    except (psycopg.Error, ValueError):
        raise ConfigError(f"{setting}: the URL cannot be read") from None
    host, port, name = (str(parts.get(each) or "") for each in ("host", "port", "dbname"))
    if "@" in host:
        raise ConfigError(f"{setting}: an @ in a user or a password is written %40")
    path = text.partition("://")[2].partition("?")[0].partition("/")[2]
    if "@" in path or (port and not port.replace(",", "").isdecimal()):
        # What comes before the slash would be taken for a host, and be shown.
        raise ConfigError(f"{setting}: a / in a user or a password is written %2F")
    return f"postgresql://{host}{':' if port else ''}{port}/{name}"
