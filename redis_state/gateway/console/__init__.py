"""The console: pages of the gateway for people, rendered here. Needs the extra ``gateway``."""

from __future__ import annotations

from redis_state.gateway.console.options import ConsoleOptions

__all__ = ["ConsoleOptions"]
