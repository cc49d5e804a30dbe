"""Translate what servers answer, and what redis-py raises, into the errors of this library."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from redis_state.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.transport.connections.login import LoginFailed
from redis_state.transport.connections.tls import TlsOptionsUnusable
from redis_state.transport.wire.script import Script

# redis-py takes the code off the text of the errors for which a version of it has a class.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (MovedError, "MOVED"),
    (AskError, "ASK"),
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
# put back, and sent again where the address leads then.
_NOT_NOW = {
    "READONLY": "the server is a replica, which takes no writes: name its primary",
    "MASTERDOWN": "the server is a replica that has lost its primary",
    "LOADING": "the server is loading its data",
    "CLUSTERDOWN": "the cluster is down, or has no node for this key",
    "NOREPLICAS": "too few replicas follow the server for it to take writes",
    "TRYAGAIN": "the keys of the call are being moved to another node",
}
# Refuses writes alone: what the server answers beside it counts.
ONLY_WRITES = frozenset({"NOREPLICAS"})
_UNAVAILABLE = ("BUSY",)
_FULL = {
    "OOM": "out of memory, writes are refused",
    "MISCONF": "the server cannot write to its disk and refuses writes (MISCONF): make room there, "
    "or read its log",
}
_MOVED = ("MOVED", "ASK")
_OF_A_CLUSTER = "the keys of the call are another node's of the cluster"

# What redis-py puts before a server's text, with the arguments of the command.
_ANNOTATED = re.compile(r"Command # \d+ \((\w+).*\) of pipeline caused error: ", re.DOTALL)
# What a server puts behind it. The digest names the script for nobody.
_PLACE = re.compile(r",? script: [0-9a-f]{40}(?:, on @user_script:(\d+))?\.?$")
# A user's rights within a script. Redis 7.0 does not name the command.
_IN_SCRIPT = re.compile(r"The user executing the script can't|ACL failure in script")
_CALLED = re.compile(r"redis\.p?call\(\s*'(\w+)'")
_CAUGHT = re.compile(r"redis\.pcall\(\s*'(\w+)'")
_NAMED = re.compile(r"permissions to run the '([^']+)' command")

# What a server says that has no room for a new connection now. redis-py knows a single server's.
_CROWDED = "max number of clients"

_OLDEST = (7, 0)
# What a server of another kind than the URL's says to a new connection.
_HINTS = {
    "unknown command 'SELECT'": "is it a Sentinel?",
    "unknown command 'SENTINEL'": "it is no Sentinel",
}


class Refusal(ResponseError):
    """An error that a server answered. ``code`` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code: str = text.partition(" ")[0]


def code_of(error: BaseException) -> str:
    """Return the code of an error that a server answered, whatever class redis-py has for it."""
    if isinstance(error, Refusal):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return _ANNOTATED.sub("", str(error)).partition(" ")[0]


def not_now(error: BaseException, *, located: bool = False) -> str | None:
    """Return why a call was not executed, if another server may execute it; else None.

    ``located``: the server was looked up, as a node of a cluster is, and may be looked up again.
    """
    code = code_of(error)
    reason = _OF_A_CLUSTER if located and code in _MOVED else _NOT_NOW.get(code)
    return None if reason is None else f"{reason} ({code})"


def reply_error(
    error: ResponseError, address: str, *, command: str = "", script: Script | None = None
) -> RedisStateError:
    """Return the error for a refusal. The server executed nothing.

    ``command`` is what was refused, or ``script``: a missing right may be one to a command in it.
    """
    code, text = code_of(error), str(error)
    annotated = _ANNOTATED.match(text)
    if annotated is not None:
        command, text = annotated[1], text[annotated.end() :]
    if code in _FULL:
        return StoreFull(f"{address}: {_FULL[code]}")
    if code in _UNAVAILABLE or code in _NOT_NOW:
        return BackendUnavailable(address, not_now(error) or text)
    if code == "NOPERM" or _IN_SCRIPT.search(text):
        refused = _refused_command(text, command, script)
        return CommandRefused(f"{address}: not permitted: {refused}: {_PLACE.sub('', text)}")
    if code in _MOVED:
        return CommandRefused(
            f"{address}: the server is a node of a Redis Cluster and has not this key ({code}): "
            "write redis+cluster:// instead of redis://"
        )
    place = _PLACE.search(text)
    if place is not None and script is not None:
        line = f", line {place[1]}" if place[1] else ""
        text = f"{text[: place.start()]} (script {script.name}{line})"
    return CommandRefused(f"{address}: {_PLACE.sub('', text)}")


def connect_error(error: BaseException, address: str, *, changing: bool = False) -> NoConnection:
    """Return the error for a failed connection, without the address's password.

    With ``changing`` credentials, server and provider may agree again in a moment.
    """
    if isinstance(error, TimeoutError):
        return BackendUnavailable(address, "no answer within the connect deadline")
    for cause in _causes(error):
        text = str(cause)
        if isinstance(cause, LoginFailed | TlsOptionsUnusable):
            return BackendUnavailable(address, text, final=cause.final)
        if isinstance(cause, AuthenticationError | AuthorizationError):
            reason = f"the user or the password is refused: {text}"
            return AuthenticationFailed(address, reason, final=not changing)
        if isinstance(cause, ssl.SSLError):
            return BackendUnavailable(address, _tls_problem(cause), final=True)
        if isinstance(cause, ResponseError) and _CROWDED not in text:
            failure = reply_error(cause, address)
            if isinstance(failure, CommandRefused):
                reason = str(failure).removeprefix(f"{address}: ")
                hints = [hint for said, hint in _HINTS.items() if said in reason]
                return BackendUnavailable(address, ": ".join((reason, *hints)), final=True)
    return BackendUnavailable(address, _passing_problem(error))


def _passing_problem(error: BaseException) -> str:
    for cause in _causes(error):
        # A proxy without its server may answer so.
        if isinstance(cause, InvalidResponse):
            return f"what answers there is no Redis, but another service: {cause}"
    return not_now(error) or str(error) or type(error).__name__


def again(error: ConfigError | NoConnection) -> ConfigError | NoConnection:
    """Make an error alike, for another caller."""
    if isinstance(error, NoConnection):
        return type(error)(error.address, error.reason, final=error.final)
    return ConfigError(str(error))


def server_problem(hello: Any) -> str | None:
    """Return why a server cannot be used, from its reply to HELLO; None if nothing is wrong."""
    if hello.__class__ is not list:
        return None
    stated = dict(zip(hello[::2], hello[1::2], strict=False))
    if stated.get(b"mode") == b"sentinel":
        return (
            "this is a Redis Sentinel, which keeps no data: write "
            "redis+sentinel://host:port/name-of-the-primary"
        )
    version = stated.get(b"version")
    if isinstance(version, bytes):
        numbers = tuple(int(part) for part in re.findall(rb"\d+", version)[:2])
        if numbers and numbers < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            return f"this is Redis {version.decode()}: Redis {oldest} or later is needed"
    return None


def is_replica(hello: Any) -> bool:
    """Return whether a server says in its reply to HELLO that it is a replica."""
    return hello.__class__ is list and b"replica" in hello[1::2]


def _refused_command(text: str, command: str, script: Script | None) -> str:
    """Return the command that a user may not run, or not with these keys."""
    named = _NAMED.search(text)
    if named is not None:
        command = named[1].upper()
    if script is None:
        return command or "a command"
    if named is None and _IN_SCRIPT.search(text):
        command = _one_of(text, script)
    return f"{command or 'a call'} in the script {script.name}"


def _one_of(text: str, script: Script) -> str:
    """Return the command in the line of a script that an error is of, or all that it may be."""
    place = _PLACE.search(text)
    called = _CALLED.findall(script.text)
    if place is not None and place[1]:
        line = script.text.splitlines()[int(place[1]) - 1 :][:1]
        # None of them if the error was caught, and raised again there.
        called = _CALLED.findall("".join(line)) or _CAUGHT.findall(script.text) or called
    names = sorted(set(called))
    return f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)


def _tls_problem(error: ssl.SSLError) -> str:
    """Return what is wrong with TLS, and what to do. None of it changes by trying again."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message
        if "expired" in what:
            hint = "the server needs a new one"
        elif "match" in what or "not valid for" in what:
            hint = "the URL must name the host as the certificate does"
        else:
            hint = "ssl_ca_certs must name the authority that signed it"
        return f"the server's certificate is refused: {text}: {hint}"
    reason = error.reason or ""
    if "ALERT" in reason:
        hint = "if it asks for a client certificate, name one with ssl_certfile and ssl_keyfile"
        return f"the server refuses TLS with this client: {text}: {hint}"
    return f"no TLS is spoken there ({text}): for a server without TLS write redis://"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from: redis-py wraps what the handshake raised."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
