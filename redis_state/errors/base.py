"""The base of every error, and of those that the stored state causes."""

from __future__ import annotations


class RedisStateError(Exception):
    """Base class of every error of this library."""


class LostRace(RedisStateError):
    """The stored state does not allow the call. Read it again before you decide what to do."""
