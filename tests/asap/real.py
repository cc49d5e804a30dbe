"""ASAP's own package. Where it is missing its tests skip, or fail if REDIS_STATE_ASAP is set."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

import pytest

REQUIRED = bool(os.environ.get("REDIS_STATE_ASAP"))
_REASON = "needs asap-protocol, which needs Python 3.13: make test-asap"


def load(module: str) -> Any:
    """Import a module of ASAP's. Its own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if REQUIRED:
            return import_module(module)
        return pytest.importorskip(module, reason=_REASON)


state: Any = load("asap.state")
machine: Any = load("asap.state.machine")
stores: Any = load("asap.state.stores")
server: Any = load("asap.transport.server")
client: Any = load("asap.transport.client")
errors: Any = load("asap.errors")
failover: Any = load("asap.examples.agent_failover")
migration: Any = load("asap.examples.state_migration")
StateSnapshot: Any = load("asap.models.entities").StateSnapshot
TaskStatus: Any = load("asap.models.enums").TaskStatus
generate_id: Any = load("asap.models.ids").generate_id
Envelope: Any = load("asap.models.envelope").Envelope
payloads: Any = load("asap.models.payloads")
