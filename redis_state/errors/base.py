"""The base class of every error, and that of two branches."""

from __future__ import annotations


class RedisStateError(Exception):
    """Base class of every error of this library."""


class LostRace(RedisStateError):
    """The stored state does not allow the call. Read it again before you decide what to do."""
