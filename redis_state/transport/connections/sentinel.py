"""The primary that Sentinels watch: where it is, and when it is elsewhere.

Every Sentinel is queried at once, and the answer of the newest failover counts: one that was away,
or is cut off, may name an old primary. While a connection is made or in use, one Sentinel is
listened to, and queried again and again. So a primary that is stopped, or cut off from its
Sentinels, is left as soon as another one has taken over. What it accepts until then is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, NamedTuple, cast

from redis.exceptions import RedisError, ResponseError

from redis_state.errors import BackendUnavailable, NoConnection
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address, Endpoint, RedisConnection
from redis_state.transport.wire.reply_errors import connect_error

# How often a Sentinel is queried whether the primary is elsewhere, if it announces nothing.
_ASK_AGAIN_S = 0.5
# How long the others may take once one Sentinel has answered.
_OTHERS_S = 0.2
# A Sentinel that we are connected to, and that takes longer, is left for the next.
_ANSWER_S = 1.0
_LISTEN_AGAIN_S = 1.0
# Of the Sentinel that leads a failover, and of one that has learned of it.
_ANNOUNCED = ("+promoted-slave", "+switch-master")


class _Answer(NamedTuple):
    """A Sentinel's answer: of which failover, counted by the Sentinels, and where."""

    failover: int
    endpoint: Endpoint


class Sentinels:
    """The Sentinels of a primary, as one event loop asks them."""

    moves = True

    def __init__(self, address: Address, *, connect_timeout_s: float) -> None:
        self._address = address
        self._timeout_s = connect_timeout_s
        self._sentinels = [_Sentinel(each, address.service) for each in address.sentinels()]
        self._listening: asyncio.Task[None] | None = None
        # Set, and replaced, when a Sentinel announces something.
        self._news = asyncio.Event()

    async def locate(self) -> Address:
        """Return the address of the primary, by the newest failover that a Sentinel knows of.

        Errors: NoConnection; ``final`` if every Sentinel says that it watches no such primary, or
        none lets us in.
        """
        # All at once: none holds the others up, so each has the whole time for its handshake.
        asking = {
            asyncio.create_task(self._ask(each, connect_s=self._timeout_s))
            for each in self._sentinels
        }
        replies: list[_Answer | NoConnection | None] = []
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        limit_s = deadline_s
        try:
            while asking:
                left_s = limit_s - asyncio.get_running_loop().time()
                done, asking = await asyncio.wait(
                    asking, timeout=max(0, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                replies += [task.result() for task in done]
                if any(isinstance(reply, _Answer) for reply in replies):
                    limit_s = min(limit_s, asyncio.get_running_loop().time() + _OTHERS_S)
        finally:
            for task in asking:
                task.cancel()
        answers = [reply for reply in replies if isinstance(reply, _Answer)]
        if answers:
            # Of those that do not count failovers, the primary that most of them name.
            best = max(answers, key=lambda answer: (answer.failover, answers.count(answer)))
            return self._address.server(best.endpoint, primary_only=True)
        raise self._failure([reply for reply in replies if not isinstance(reply, _Answer)])

    async def moved(self, address: Address) -> None:
        """Return when the Sentinels name another primary. A doubt is no reason to leave one."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="redis_state sentinel")
        while True:
            with suppress(TimeoutError):
                async with timeout(_ASK_AGAIN_S):
                    await self._news.wait()
            first = self._sentinels[0]
            answer = await self._ask(first, connect_s=min(_ANSWER_S, self._timeout_s))
            if isinstance(answer, _Answer):
                if self._address.server(answer.endpoint, primary_only=True) == address:
                    continue
            elif self._sentinels[0] is first:
                self._sentinels.append(self._sentinels.pop(0))
            with suppress(NoConnection):
                if await self.locate() != address:
                    return

    async def aclose(self) -> None:
        """Disconnect. Safe to repeat."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})
        for sentinel in self._sentinels:
            await sentinel.disconnect()

    async def _ask(self, sentinel: _Sentinel, *, connect_s: float) -> _Answer | NoConnection | None:
        try:
            async with timeout(connect_s + _ANSWER_S):
                return await sentinel.ask(connect_s)
        except (RedisError, OSError, TimeoutError) as error:
            return connect_error(error, str(sentinel.address))

    async def _listen(self) -> None:
        """Hear what a Sentinel announces. A query then finds whether it concerns us."""
        while True:
            try:
                async for _ in self._sentinels[0].announcements():
                    self._news.set()
                    self._news = asyncio.Event()
            except (RedisError, OSError, TimeoutError):
                # It is queried all the same.
                await asyncio.sleep(_LISTEN_AGAIN_S)

    def _failure(self, replies: list[NoConnection | None]) -> NoConnection:
        shown = str(self._address)
        problems = [reply for reply in replies if reply is not None]
        if not problems and len(replies) == len(self._sentinels):
            reason = f"the Sentinels watch no primary named {self._address.service!r}"
            return BackendUnavailable(shown, reason, final=True)
        for problem in problems:
            if problem.final and all(each.final for each in problems):
                return type(problem)(problem.address, problem.reason, final=True)
        reason = "; ".join(map(str, problems)) or "none did in time"
        return BackendUnavailable(shown, f"no Sentinel names the primary: {reason}")


class _Sentinel:
    """One Sentinel, and the connection to it that is kept."""

    def __init__(self, address: Address, service: str) -> None:
        self.address = address
        self._service = service
        self._connection: RedisConnection | None = None
        self._lock = asyncio.Lock()

    async def ask(self, connect_s: float) -> _Answer | None:
        """Ask where the primary is; None if it watches none of that name.

        ``connect_s`` is the time to connect, if there is no connection. Errors: RedisError,
        OSError, TimeoutError.
        """
        async with self._lock:
            try:
                return await self._ask(connect_s)
            except BaseException:
                # What is left to be read would be taken for the next reply.
                await self.disconnect()
                raise

    async def announcements(self) -> AsyncGenerator[None]:
        """Yield whenever it announces a failover, and once when it is listened to.

        Errors: RedisError, OSError, TimeoutError.
        """
        connection = self.address.connection(connect_timeout_s=_ANSWER_S)
        try:
            async with timeout(_ANSWER_S):
                await connection.connect()
            subscribe = connection.pack_command("SUBSCRIBE", *_ANNOUNCED)
            await connection.send_packed_command(subscribe, check_health=False)
            while True:
                await connection.read_response()
                yield
        finally:
            await _disconnect(connection)

    async def disconnect(self) -> None:
        """Disconnect. Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _disconnect(connection)

    async def _ask(self, connect_s: float) -> _Answer | None:
        connection, name = self._connection, self._service
        if connection is None:
            connection = self._connection = self.address.connection(connect_timeout_s=connect_s)
            async with timeout(connect_s):
                await connection.connect()
            if self._connection is not connection:
                await _disconnect(connection)
                raise ConnectionResetError("disconnected while it was connecting")
        # The first names the new primary as soon as it is one. The second counts failovers; it is
        # refused to users with narrow rights.
        query = [
            *connection.pack_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name),
            *connection.pack_command("SENTINEL", "MASTER", name),
        ]
        async with timeout(_ANSWER_S):
            await connection.send_packed_command(query, check_health=False)
            place: Any = await _read(connection)
            stated: Any = await _read(connection)
        if isinstance(place, ResponseError):
            raise place
        if place is None:
            return None
        host, port = place
        return _Answer(_failovers(stated), (host.decode(), int(port)))


async def _disconnect(connection: RedisConnection) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


async def _read(connection: RedisConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _failovers(stated: Any) -> int:
    """Read how many failovers a Sentinel knows of; 0 if it does not say."""
    if not isinstance(stated, list):
        return 0
    flat = cast("list[bytes]", stated)
    count = dict(zip(flat[::2], flat[1::2], strict=False)).get(b"config-epoch", b"")
    return int(count) if count.isdigit() else 0
