"""What an answer promises: that enough replicas have the write, or that it is on the disk.

A batch that may write is followed by two commands: a write of its own, the mark, and WAIT. Its
replies are kept until WAIT confirms them, so a caller learns of nothing that a failover may undo.
One batch is unconfirmed at a time. The server would not begin another one before, and what is
called meanwhile leaves as one batch: one WAIT serves all of it.

The mark is needed because WAIT counts the replicas that have the *connection's* last write. A call
that finds its id writes nothing, and some servers then answer for a write that no replica has.

WAIT waits for a moment, and is repeated until the deadline: reads that are called meanwhile go
between. A call that is not confirmed by then ends as *outcome unknown*. If the connection is lost
first, the call is repeated on the next one under its id, and confirmed there.

WAIT counts by places in the server's history, and each promotion begins another history. A primary
that was a replica meanwhile keeps its connections, and would count for writes that it has lost. So
the history's name is read before the first call of a connection, and again before each WAIT.

A disk needs no command: with ``appendfsync always`` the server syncs before it answers. WAITAOF
does not help without it: with ``everysec`` some servers answer it before they have synced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis.exceptions import ResponseError

from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.transport.commands import READING
from redis_state.transport.connections.address import RedisConnection
from redis_state.transport.sending.batch import LOGIN, PROBE, Call, verb_of
from redis_state.transport.wire.reply_errors import code_of, not_now
from redis_state.transport.wire.resp import pack
from redis_state.transport.wire.script import Script

# Answered by the confirmation, not by a call; beside 0, of a command that nothing waits for.
MARK, HISTORY, CONFIRMATION = -1, -2, -3
_HISTORY = ("INFO", "replication")
ASK_HISTORY: bytes = pack(_HISTORY)

# Well below the silence after which a connection is given up; and how long a read that is called
# meanwhile may have to wait.
_SLICE_PART = 0.1
_LONGEST_SLICE_S = 0.05
# How long a mark waits that has no place on its server.
PLACELESS_S: float = _LONGEST_SLICE_S
# A full server refuses writes, but takes deletions: those must be confirmed too.
_MARK = "#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], '', 'PX', 1000)"
_FIRST_FILE = {b"aof_enabled:1", b"aof_base_size:0"}
_AT_REST = {
    b"aof_rewrite_in_progress:0",
    b"aof_rewrite_scheduled:0",
    b"aof_last_bgrewrite_status:ok",
}
# Of the history that a promoted replica comes from; a server that never was one has none.
_NEVER_A_REPLICA = re.compile(rb"master_replid2:0+\s")
# How many keys are tried for one that a node of a cluster has, and how long a sync may take.
_KEYS, _SYNC_MS = 64, 100
# The key is another node's of the cluster.
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN"})
_OF_A_REPLICA = "cannot be used with replica"
_NAME_OF_HISTORY = re.compile(rb"master_replid:(\w+)")
_CALL = re.compile(r"redis\.p?call\(\s*(?:'(\w+)')?")
# What a server has set that syncs its disk before it answers, also while it writes its file anew.
DEMANDED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """How safe a write is before its caller hears of it.

    ``replicas`` have it; if ``on_disk``, on their disks, and the server on its own. ``trusted``: a
    server that does not say how it syncs is believed to do it before it answers.
    """

    namespace: str
    replicas: int
    on_disk: bool = False
    trusted: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Guarantee | None:
        """Return what the settings ask for; None if an answer is all. Errors: ConfigError."""
        level, namespace = settings.guarantee, settings.namespace
        replicas, trusted = settings.guarantee_replicas, settings.durable_trusted
        if level == "fast":
            if replicas:
                raise ConfigError("guarantee_replicas needs guarantee='replicated' or 'durable'")
            return None
        if level == "replicated":
            if replicas == 0:
                raise ConfigError("guarantee='replicated' needs at least one replica")
            return cls(namespace, 1 if replicas is None else replicas)
        return cls(namespace, replicas or 0, on_disk=True, trusted=trusted)

    def confirmation(self, call_timeout_s: float) -> bytes:
        """Write the command that waits for the replicas, packed."""
        slice_s = min(call_timeout_s * _SLICE_PART, _LONGEST_SLICE_S)
        slice_ms = max(1, int(slice_s * 1000))
        if self.on_disk:
            return pack(("WAITAOF", 0, self.replicas, slice_ms))
        return pack(("WAIT", self.replicas, slice_ms))

    def confirmed_by(self, reply: Any) -> int:
        """Return how many replicas have the write, from the reply to the confirmation."""
        return int(reply[1] if self.on_disk else reply)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that it needs beside the others, as rights name them."""
        waiting = ("WAITAOF" if self.on_disk else "WAIT",) if self.replicas else ()
        asking = ("CONFIG|GET",) if self.on_disk and not self.trusted else ()
        return waiting + asking

    async def check(self, connection: RedisConnection, address: str) -> bytes:
        """Look whether a server can promise it, on a new connection; return its history's name.

        Errors: ConfigError if it cannot; BackendUnavailable if it is not the one to ask, or not
        yet; RedisError, OSError. A sender that was connected before takes the first for trouble
        that passes, see `Sender.failed`.
        """
        if self.replicas:
            await self._check_wait(connection, address)
        if self.on_disk:
            await self._check_disk(connection, address)
        return await self._read_history(connection) if self.replicas else b""

    async def _read_history(self, connection: RedisConnection) -> bytes:
        try:
            return history_in(await _ask(connection, *_HISTORY))
        except ResponseError:
            # Without the right to ask, nothing is known, here and later.
            return b""

    async def _check_wait(self, connection: RedisConnection, address: str) -> None:
        command = ("WAITAOF", 0, 0, 0) if self.on_disk else ("WAIT", 0, 0)
        try:
            await _ask(connection, *command)
        except ResponseError as error:
            _raise_if_not_now(error, address)
            raise ConfigError(f"this server cannot confirm its replicas: {error}") from None

    async def _check_disk(self, connection: RedisConnection, address: str) -> None:
        try:
            stated: list[bytes] = await _ask(connection, "CONFIG", "GET", *DEMANDED)
        except ResponseError as error:
            _raise_if_not_now(error, address)
            if self.trusted:
                return
            raise ConfigError(
                "this server does not say whether it syncs its disk before it answers "
                f"({str(error).partition(',')[0]}): permit +config|get, or set durable_trusted if "
                "you know that it does"
            ) from None
        words = [word.decode() for word in stated]
        found = dict(zip(words[::2], words[1::2], strict=False))
        wrong = [
            f"{name} is {found.get(name)!r}, not {value!r}"
            for name, value in DEMANDED.items()
            if found.get(name) != value
        ]
        if wrong:
            raise ConfigError(f"this server cannot promise guarantee='durable': {wrong[0]}")
        # A replica that was just promoted, or a server that has begun to keep a file, writes to one
        # that a restart does not read, until it has the first.
        info: bytes = await _ask(connection, "INFO", "persistence")
        lines = set(info.split())
        if lines.issuperset(_AT_REST):
            return
        kept = await self._is_kept(connection, address)
        if kept is None:
            history: bytes = await _ask(connection, *_HISTORY)
            kept = not lines.issuperset(_FIRST_FILE) and bool(_NEVER_A_REPLICA.search(history))
        if not kept:
            raise BackendUnavailable(address, "the server has not written its first file yet")

    async def _is_kept(self, connection: RedisConnection, address: str) -> bool | None:
        """Return whether a server that rewrites its file keeps what comes meanwhile.

        A replica that was just promoted may have an older file, of another history. WAITAOF knows.
        None if the server has not got it: then one that was never a replica is believed.
        """
        for number in range(_KEYS):
            mark = ("EVAL", _MARK, 1, f"{self.namespace}:mark:{{{number}}}")
            try:
                await _ask(connection, *mark)
                synced: list[int] = await _ask(connection, "WAITAOF", 1, 0, _SYNC_MS)
            except ResponseError as error:
                if code_of(error) in _ELSEWHERE:
                    continue
                _raise_if_not_now(error, address)
                break
            return synced[0] == 1
        return None


def _raise_if_not_now(error: ResponseError, address: str) -> None:
    reason = not_now(error)
    if reason is None and _OF_A_REPLICA in str(error):
        # It was the primary, or is about to be.
        reason = "the server is a replica"
    if reason is not None:
        raise BackendUnavailable(address, reason) from None


async def _ask(connection: RedisConnection, *command: str | int) -> Any:
    packed = connection.pack_command(*command)
    await connection.send_packed_command(packed, check_health=False)
    return await connection.read_response()


def packed_mark(key: str | bytes) -> bytes:
    """Write the mark, packed. A second later it is gone."""
    return pack(("EVAL", _MARK, 1, key))


def history_in(stated: Any) -> bytes:
    """Return the name of a server's history, from the reply to `ASK_HISTORY`; b"" without one."""
    found = _NAME_OF_HISTORY.search(stated) if isinstance(stated, bytes) else None
    return b"" if found is None else found[1]


def may_write(call: Call) -> bool:
    """Return whether a call may write what is promised."""
    script = call.form[0]
    if script is not None:
        return script_writes(script)
    if call.form is LOGIN or call.form is PROBE:
        return False
    return verb_of(call.arguments).upper() not in READING


@lru_cache(maxsize=1024)
def script_writes(script: Script) -> bool:
    """Return whether a script may write: it calls what is no read, or what it is given.

    A reader's may not: a server that refuses writes, and so the mark, has answered it in full.
    """
    return not script.reading and any(name not in READING for name in _CALL.findall(script.text))
