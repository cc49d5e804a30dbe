"""Translate what redis-py raises into the errors of this library, in one place."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from redis_state.errors import BackendUnavailable, CommandRefused, RedisStateError, StoreFull

# redis-py takes the code off the text of the errors for which it has a class.
_NOT_NOW = (ClusterDownError, ReadOnlyError, TryAgainError)
_NOT_NOW_CODES = ("BUSY ", "NOREPLICAS ")


class Rejected(BackendUnavailable):
    """The server knows us and says no. Stays inside transport/."""


def reply_error(error: ResponseError, address: str) -> RedisStateError:
    """Name what the server answered instead of a reply. It executed nothing."""
    text = str(error)
    if isinstance(error, OutOfMemoryError):
        return StoreFull(f"{address}: out of memory, writes are refused")
    if isinstance(error, _NOT_NOW) or text.startswith(_NOT_NOW_CODES):
        return BackendUnavailable(address, text)
    if isinstance(error, NoPermissionError):
        return CommandRefused(f"{address}: not permitted: {text}")
    return CommandRefused(f"{address}: {text}")


def connect_error(error: BaseException, address: str) -> BackendUnavailable:
    """Name why a connection could not be made, without the address's password."""
    if isinstance(error, TimeoutError):
        return BackendUnavailable(address, "no answer within the connect deadline")
    reason = str(error) or type(error).__name__
    return Rejected(address, reason) if _is_final(error) else BackendUnavailable(address, reason)


def _is_final(error: BaseException) -> bool:
    """Tell whether connecting again cannot help: a wrong password, no such database."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return True
    if isinstance(error, ResponseError):
        return isinstance(reply_error(error, ""), CommandRefused)
    # On a unix socket redis-py wraps what the handshake raised.
    return error.__cause__ is not None and _is_final(error.__cause__)
