"""Sessions of Google's Agent Development Kit in Redis. Needs the extra ``google-adk``.

    service = RedisStateSessionService(store)
    runner = Runner(app_name="shop", agent=agent, session_service=service)

- An event, the states that it changes and the session's revision are written in one step.
- ``app:`` and ``user:`` state is merged by name: no process loses what another one has written.
- A session that another process has appended to is refused with ADK's `StaleSessionError`.
- All that belongs to an app is in one slot of a cluster, so on one primary.

A crash leaves whole events. One that was not acknowledged may be there; appending it again is safe.
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _needed = import_module("google.adk.errors._stale_session_error").StaleSessionError
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.google_adk needs google-adk from 2.13 on"
    raise ImportError(f"{missing}: pip install 'redis_state[google-adk]'") from _error

from redis_state.integrations.google_adk.session_service import RedisStateSessionService

__all__ = ["RedisStateSessionService"]
