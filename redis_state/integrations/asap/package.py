"""ASAP's own package, loaded when it is needed: it asks for a later Python than this one does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redis_state.errors import ConfigError


def load(module: str) -> Any:
    """Import one of ASAP's modules. Errors: ConfigError names what to install."""
    try:
        return import_module(module)
    except ImportError:
        reason = "cannot be imported: install asap-protocol, which needs Python 3.13"
    raise ConfigError(f"{module} {reason}")
