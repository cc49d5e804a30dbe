"""One connection: made and signed in by redis-py, then used without it, and ended without a trace.

redis-py reads one reply at a time, through three coroutines. Here replies go from the socket to the
parser, in C, and to their callers. Data to be written goes to the socket directly.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from operator import attrgetter
from socket import gaierror
from time import monotonic
from typing import Any, cast

import hiredis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from redis_state.errors import BackendUnavailable, NoConnection
from redis_state.settings import Credentials
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address, RedisConnection
from redis_state.transport.connections.login import (
    LoginFailed,
    LoginProvider,
    connect_and_log_in,
    provider_in,
)
from redis_state.transport.connections.tls import TlsOptionsUnusable
from redis_state.transport.wire.reply_errors import (
    Refusal,
    connect_error,
    is_replica,
    server_problem,
)

log: logging.Logger = logging.getLogger(__name__)

# Takes the replies of one read together: they are counted before any of them is given away.
Heard = Callable[[list[Any]], None]
# Looks at a new connection before it is used; returns what its user wants to know of it.
Check = Callable[[RedisConnection, str], Awaitable[bytes]]

_BUFFER_BYTES = 1 << 16
_TLS_TRY_S = 0.5
# A server that hangs up does so at once.
_EARLY_PART = 0.8
# How redis-py 5.3 and 8 name what it reads from and writes to.
_STREAMS = ("_reader", "_writer")


class ProtocolBroken(Exception):
    """The server sent what is not the reply to any call. Nothing more can be read from it."""


class RespProtocol(asyncio.BufferedProtocol):
    """A connection in use: ``write`` bytes, hear each reply in order, await ``lost``.

    What a reply's taker raises ends the connection, and is raised by ``lost``. A ProtocolBroken
    is the server's fault: ``lost`` returns its text, and the connection is ``faulty``.
    """

    def __init__(
        self, connection: RedisConnection, transport: asyncio.Transport, parser: Any, hear: Heard
    ) -> None:
        # Kept until the end: what redis-py and asyncio hold of it closes itself when forgotten.
        self._connection = connection
        self._transport = transport
        self._parser = parser
        self._hear = hear
        # The login of the connection, if its credentials may change.
        self.login: LoginProvider | None = provider_in(connection)
        self._renewing: asyncio.Task[None] | None = None
        # One buffer for all received bytes: the parser copies what it keeps. A memoryview, because
        # asyncio's TLS writes into slices of it. A slice of a bytearray is a copy: the bytes of the
        # read before would be parsed as the reply to another call.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        # Why it ended; set once, by whatever comes first.
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # By `time.monotonic`: the loop's own clock would cost each message a call in Python.
        self.opened_at: float = monotonic()
        # When something was heard last; ``opened_at`` until then.
        self.heard_at: float = self.opened_at
        self.on_writable: Callable[[], None] | None = None
        # It ended because of what the server sent on it: the next one may meet the same.
        self.faulty: bool = False
        # What the check of the connection returned.
        self.checked: bytes = b""
        self._paused = False

    def renew_login(self, accept: Callable[[tuple[str, ...]], Awaitable[None]]) -> None:
        """Keep ``accept`` logging in, while the connection lives, before its credentials end."""
        login = self.login
        if login is None or login.used is None:
            return

        async def accepted(fresh: Credentials) -> None:
            await accept(login.words(fresh))
            login.used = fresh

        self._renewing = asyncio.create_task(login.login.renew(login.used, accepted))

    async def lost(self) -> str:
        """Wait until the connection has ended; return why."""
        return await asyncio.shield(self._ended)

    def writable(self) -> bool:
        """Return whether writing is of use now: it has not ended, and the server keeps up."""
        return not (self._paused or self._transport.is_closing())

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended. Does not wait.

        asyncio (3.12 and later) would watch the descriptor of a lost connection, which the next
        one may get.
        """
        if not self._transport.is_closing():
            self._transport.write(data)

    def abort(self, reason: str) -> None:
        """End it at once; nothing more is heard."""
        self._transport.abort()
        self._end(reason)

    def leave(self, reason: str) -> None:
        """End it at once for what the server answers: the next one may be answered the same."""
        self.faulty = True
        self.abort(reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the next bytes are written to."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hear what has come."""
        if self._ended.done():
            return
        self.heard_at = monotonic()
        next_reply, replies = self._parser.gets, list[Any]()
        self._parser.feed(self._buffer, 0, nbytes)
        try:
            while (reply := next_reply()) is not False:
                replies.append(reply)
            if replies:
                self._hear(replies)
        except ProtocolBroken as error:
            log.warning("a connection is given up: the server broke the protocol: %s", error)
            self.leave(f"the server broke the protocol: {error}")
        except Exception as error:  # noqa: BLE001 - the waiters for its end receive it
            self._transport.abort()
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        self._end(str(exc) if exc else "the server closed the connection")

    def pause_writing(self) -> None:
        """Take note that the server reads more slowly than we write."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write what was held back."""
        self._paused = False
        if self.on_writable is not None:
            self.on_writable()

    def _end(self, how: str | Exception) -> None:
        for name in _STREAMS:
            setattr(self._connection, name, None)
        if self._ended.done():
            return
        if self._renewing is not None:
            self._renewing.cancel()
        if isinstance(how, Exception):
            self._ended.set_exception(how)
        else:
            self._ended.set_result(how)


async def open_protocol(
    address: Address, hear: Heard, *, timeout_s: float, check: Check | None = None
) -> RespProtocol:
    """Connect to a server that is ready to serve, and passes a ``check``.

    Errors: NoConnection, which is ``final`` if a retry is useless; what ``check`` raises.
    """
    connection = address.connection(connect_timeout_s=timeout_s)
    failure: NoConnection
    checked = b""
    began = monotonic()
    try:
        async with timeout(timeout_s):
            await connect_and_log_in(connection)
            stated = await _greet(connection)
            if check is not None:
                checked = await check(connection, str(address))
        problem = server_problem(stated)
        if problem is not None:
            failure = BackendUnavailable(str(address), problem, final=True)
        elif address.primary_only and is_replica(stated):
            # It was the primary, or is about to be.
            failure = BackendUnavailable(str(address), "the server is a replica")
        else:
            protocol = _take_over(connection, hear)
            protocol.checked = checked
            return protocol
    except (RedisError, OSError, TimeoutError) as error:
        failure = connect_error(error, str(address), changing=address.login is not None)
        # redis-py 7 and later make such an error of the end of the time, too.
        early = monotonic() - began < timeout_s * _EARLY_PART
        may_be_tls = early and not failure.final
        if may_be_tls and isinstance(error, RedisConnectionError) and _is_hang_up(error):
            failure = await _tls_failure(address) or failure
    except BaseException:
        await _disconnect(connection)
        raise
    await _disconnect(connection)
    # Not from the cause: the frames of redis-py, which some tools print, hold the password.
    raise failure


async def _greet(connection: RedisConnection) -> Any:
    """Ask whether the server is ready; return what it says of itself, None if it does not."""
    hello = [*connection.pack_command("PING"), *connection.pack_command("HELLO")]
    await connection.send_packed_command(hello, check_health=False)
    stated: Any = None
    # A server that is loading its data answers here, before any call is at stake.
    # Any other refusal (a full disk, narrow rights) says nothing about the calls.
    with suppress(ResponseError):
        await connection.read_response()
    with suppress(ResponseError):
        stated = await connection.read_response()
    return stated


def _is_hang_up(error: RedisConnectionError) -> bool:
    """Return whether a connection was made, and was lost before the server sent anything."""
    if isinstance(error, AuthenticationError | BusyLoadingError | LoginFailed):
        return False
    causes = (error.__cause__, error.__context__)
    here = (ConnectionRefusedError, gaierror, TlsOptionsUnusable)
    return not any(isinstance(cause, here) for cause in causes)


async def _tls_failure(address: Address) -> NoConnection | None:
    """Try TLS with a server that has hung up without a word; say so if that is why.

    Nothing is sent: what was sent may have kept the server's reason from being heard.
    """
    if address.scheme not in ("redis", "rediss"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.options["host"], address.options["port"]
    alert: ssl.SSLError | None = None
    try:
        if "ssl_certfile" in address.options:
            context.load_cert_chain(address.options["ssl_certfile"], address.options["ssl_keyfile"])
        async with timeout(_TLS_TRY_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                if address.scheme == "rediss":
                    await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
        alert = error
    except (OSError, TimeoutError):
        return None
    if address.scheme == "rediss":
        return None if alert is None else connect_error(alert, str(address))
    reason = "this port speaks TLS: write rediss:// instead of redis://"
    return BackendUnavailable(str(address), reason, final=True)


def _take_over(connection: RedisConnection, hear: Heard) -> RespProtocol:
    """Replace redis-py's reader of the socket. Every reply has been read by now."""
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] = attrgetter(*_STREAMS)(connection)
    reader, transport = streams[0], cast("asyncio.Transport", streams[1].transport)
    if transport.is_closing() or reader.at_eof():
        raise ConnectionError("the server closed the connection")
    parser = cast("Any", hiredis).Reader(protocolError=ProtocolBroken, replyError=Refusal)
    protocol = RespProtocol(connection, transport, parser, hear)
    # uvloop decides when it begins to read how it gives what it has read.
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
    return protocol


async def _disconnect(connection: RedisConnection) -> None:
    with suppress(RedisError, OSError, TimeoutError):
        await connection.disconnect(nowait=True)
