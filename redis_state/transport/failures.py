"""Translate what servers answer, and what redis-py raises, into the errors of this library."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from redis_state.errors import BackendUnavailable, CommandRefused, RedisStateError, StoreFull

# redis-py takes the code off the text of the errors for which a version of it has a class.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
    (TryAgainError, "TRYAGAIN"),
    (ReadOnlyError, "READONLY"),
    (BusyLoadingError, "LOADING"),
    (OutOfMemoryError, "OOM"),
    (NoPermissionError, "NOPERM"),
    (NoScriptError, "NOSCRIPT"),
)
# What a server answers that is not the one to ask, or not yet. It executed nothing: the call is
# put back, and asked again where the address leads then.
_NOT_NOW = {
    "READONLY": "the server is a replica, which takes no writes: name its primary",
    "MASTERDOWN": "the server is a replica that has lost its primary",
    "LOADING": "the server is loading its data",
    "CLUSTERDOWN": "the cluster is down, or has no node for this key",
    "TRYAGAIN": "the keys of the call are being moved to another node",
}
_UNAVAILABLE = ("BUSY", "NOREPLICAS")


class Refusal(ResponseError):
    """An error that a server answered. ``code`` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code: str = text.partition(" ")[0]


class Rejected(BackendUnavailable):
    """The server knows us and says no. Stays inside transport/."""


def code_of(error: BaseException) -> str:
    """Return the code of an error that a server answered, whatever class redis-py has for it."""
    if isinstance(error, Refusal):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


def not_now(error: BaseException) -> str | None:
    """Say why a call was not executed, if it may be where the address leads next; else None."""
    code = code_of(error)
    reason = _NOT_NOW.get(code)
    return None if reason is None else f"{reason} ({code})"


def reply_error(error: ResponseError, address: str) -> RedisStateError:
    """Name what the server answered instead of a reply. It executed nothing."""
    code, text = code_of(error), str(error)
    if code == "OOM":
        return StoreFull(f"{address}: out of memory, writes are refused")
    if code in _UNAVAILABLE or code in _NOT_NOW:
        return BackendUnavailable(address, not_now(error) or text)
    if code == "NOPERM":
        return CommandRefused(f"{address}: not permitted: {text}")
    return CommandRefused(f"{address}: {text}")


def connect_error(error: BaseException, address: str) -> BackendUnavailable:
    """Name why a connection could not be made, without the address's password."""
    if isinstance(error, TimeoutError):
        return BackendUnavailable(address, "no answer within the connect deadline")
    reason = not_now(error) or str(error) or type(error).__name__
    return Rejected(address, reason) if _is_final(error) else BackendUnavailable(address, reason)


def _is_final(error: BaseException) -> bool:
    """Tell whether connecting again cannot help: a wrong password, no such database."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return True
    if isinstance(error, ResponseError):
        return isinstance(reply_error(error, ""), CommandRefused)
    # On a unix socket redis-py wraps what the handshake raised.
    return error.__cause__ is not None and _is_final(error.__cause__)
