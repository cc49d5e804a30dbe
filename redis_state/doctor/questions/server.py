"""The questions to one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from functools import partial

from redis_state.doctor.finding import (
    ExamineProgress,
    Finding,
    Found,
    NotReported,
    answered,
    lacks_a_right,
)
from redis_state.doctor.questions.certificate import days_left
from redis_state.doctor.questions.lifetimes import KeySample
from redis_state.doctor.questions.shared import info_pairs, split_pairs
from redis_state.doctor.questions.writes import WriteQuestions
from redis_state.errors import CommandRefused
from redis_state.rights import Role, commands_of, keys_of
from redis_state.settings import Settings
from redis_state.transport.clock import ms_of
from redis_state.transport.connections.address import Address
from redis_state.transport.diagnostics import Diagnostics

_CLOCK_S = 5.0
_FULL_PART = 0.9
_CERTIFICATE_DAYS = 30
_REPLY_LIMITS = "client-output-buffer-limit"
# Some pages of 4 MiB wait at once when the callers of one process read.
_REPLY_BYTES = 64 * 2**20
# Enough for the keys of each command.
_ARGUMENTS = 5
_SCRIPTS = ("EVAL", "EVALSHA")
_NAMED = {Role.APP: "an app", Role.WATCHER: "a watcher"}
_SLOTS = "16384"


class Examination(WriteQuestions):
    """The questions to one server."""

    def __init__(
        self,
        settings: Settings,
        address: Address,
        ask: Diagnostics,
        *,
        leaving: Container[str] = (),
        sample: int | None,
        progress: ExamineProgress | None = None,
    ) -> None:
        # ``leaving``: questions that do not matter on this server. ``sample``: how many keys are
        # examined, None for all.
        self._leaving = leaving
        self._sample = sample
        self._progress = progress
        super().__init__(settings, address, ask)
        given = Address.parse(settings.url.get_secret_value())
        self._is_cluster, self._is_embedded = given.is_cluster, given.scheme == "embedded"

    async def all(self) -> list[Finding]:
        """Ask all. Errors: NoConnection."""
        with suppress(CommandRefused):
            self._info = info_pairs(await self._ask.info())
        found: list[Finding] = []
        questions: tuple[tuple[str, Callable[[], Found]], ...] = (
            ("version", self._version),
            ("role", self._role),
            ("memory", self._memory),
            ("clients", self._clients),
            ("replies", self._replies),
            ("writes", self._writes),
            ("persistence", self._persistence),
            ("replicas", self._replicas),
            ("guarantee", self._guarantee),
            ("cluster", self._cluster),
            ("certificate", self._certificate),
            ("clock", self._clock),
            ("lifetimes", self._lifetimes),
            ("rights", self._rights),
        )
        for name, question in questions:
            if name not in self._leaving:
                found += [each async for each in answered(self._server, name, question())]
        return found

    async def _version(self) -> Found:
        name = "Valkey" if "valkey_version" in self._info else "Redis"
        version = self._info.get("valkey_version") or self._field("redis_version")
        yield self._sound("version", f"{name} {version}")

    async def _role(self) -> Found:
        if self._field("role") == "master":
            yield self._sound("role", "it is a primary")
        else:
            yield self._finding(
                "role",
                "it is a replica",
                "it takes no writes: calls wait until their deadline",
                "name the primary, or its Sentinels by redis+sentinel://",
            )

    async def _memory(self) -> Found:
        policy, most = self._field("maxmemory_policy"), int(self._field("maxmemory"))
        if policy != "noeviction":
            yield self._finding(
                "memory",
                f"maxmemory-policy is {policy}",
                "once memory is full, the server evicts tasks and state without an error",
                "CONFIG SET maxmemory-policy noeviction",
            )
        used = int(self._field("used_memory"))
        if most and used > most * _FULL_PART:
            yield self._finding(
                "memory",
                f"{used / most:.0%} of maxmemory is used",
                "once it is full, writes are refused as StoreFull",
                "raise maxmemory, or shorten the lifetimes in the settings",
            )
        elif not most and not self._is_embedded:
            yield await self._without_limit(used)
        elif policy == "noeviction":
            limit = f"{used / most:.0%} of maxmemory" if most else f"{used:,} bytes, no limit"
            yield self._sound("memory", f"noeviction, {limit}")

    async def _without_limit(self, used: int) -> Finding:
        says = f"maxmemory is 0, and {used:,} bytes are used"
        if await self._hides("maxmemory"):
            return self._unknown("memory", f"{says}: a service has limits of its own")
        return self._finding(
            "memory",
            says,
            "a server that fills its machine or container is killed, and refuses no write before",
            "CONFIG SET maxmemory below the memory that it has, and write it to the configuration "
            "file",
        )

    async def _clients(self) -> Found:
        now, most = int(self._field("connected_clients")), int(self._field("maxclients"))
        if now > most * _FULL_PART:
            yield self._finding(
                "clients",
                f"{now:,} of {most:,} connections are taken",
                "once all are, a process that starts or reconnects is refused",
                "CONFIG SET maxclients, and look at CLIENT LIST for who holds them",
            )
        else:
            yield self._sound("clients", f"{now:,} of {most:,} connections")

    async def _replies(self) -> Found:
        limits = (await self._setting(_REPLY_LIMITS)).split()
        kind = limits.index("normal")
        hard, soft = (int(limits[kind + n]) for n in (1, 2))
        bound = min((limit for limit in (hard, soft) if limit), default=0)
        if 0 < bound < _REPLY_BYTES:
            yield self._finding(
                "replies",
                f"{_REPLY_LIMITS} of normal clients is {bound:,} bytes",
                "the server closes the connection of a read with a larger reply, again and again",
                f"CONFIG SET {_REPLY_LIMITS} 'normal 0 0 0'",
            )
        else:
            yield self._sound("replies", f"{bound:,} bytes wait at most" if bound else "no limit")

    async def _cluster(self) -> Found:
        if self._info.get("cluster_enabled") != "1":
            return
        stated = info_pairs(await self._ask.cluster_info())
        if stated["cluster_state"] != "ok" or stated["cluster_slots_ok"] != _SLOTS:
            yield self._finding(
                "cluster",
                f"{stated['cluster_slots_ok']} of {_SLOTS} slots are served",
                "calls of the other slots wait until their deadline",
                "redis-cli --cluster check, and bring the lost nodes back",
            )
        else:
            yield self._sound("cluster", f"all slots served by {stated['cluster_size']} primaries")
        nodes: bytes = await self._ask.cluster_nodes()
        own = next(line for line in nodes.decode().splitlines() if "myself" in line)
        moving = [word for word in own.split()[8:] if word.startswith("[")]
        if moving:
            yield self._finding(
                "cluster",
                f"slots are being moved: {' '.join(moving[:5])}",
                "a call some of whose keys were moved waits; if the move was given up, for ever",
                "wait for the move to end; if nothing moves, redis-cli --cluster fix",
            )

    async def _certificate(self) -> Found:
        if self._address.scheme != "rediss":
            return
        days = await days_left(self._address, timeout_s=self._settings.connect_timeout_s)
        if days is None:
            raise NotReported("the certificate is not checked, or cannot be read")
        if days < _CERTIFICATE_DAYS:
            yield self._finding(
                "certificate",
                f"it expires in {days:.0f} days",
                "from then on no process can connect",
                "renew it",
            )
        else:
            yield self._sound("certificate", f"valid for {days:.0f} days")

    async def _clock(self) -> Found:
        before = time.time()
        stated: list[bytes] = await self._ask.time()
        ahead_s = ms_of(stated) / 1000 - (before + time.time()) / 2
        if abs(ahead_s) > _CLOCK_S:
            yield self._finding(
                "clock",
                f"it differs from this machine's by {ahead_s:+.1f} s",
                "times in tasks and updates differ from those in logs; lifetimes are the server's",
                "let NTP set both clocks",
            )
        else:
            yield self._sound("clock", f"{ahead_s:+.1f} s from this machine's")

    async def _lifetimes(self) -> Found:
        answer = await KeySample(self._ask, self._settings.namespace, self._keys_in_all()).ask(
            self._sample, partial(self._progress, self._server) if self._progress else None
        )
        if answer.permanent:
            found = self._finding(
                "lifetimes",
                f"{answer.permanent} of {answer.own} keys never expire, for example "
                f"{answer.first}; {answer.size}",
                "they stay for ever: another program has written them, or taken their lifetime",
                "find out who did; the library gives every key a lifetime",
            )
        else:
            found = self._sound("lifetimes", f"all of {answer.own} keys expire; {answer.size}")
        yield replace(found, examined=answer.examined, total=answer.total)

    def _keys_in_all(self) -> int | None:
        if not self._info:
            return None
        # "keys=3,expires=3,avg_ttl=5"; a database without keys is not named.
        counted = self._info.get(f"db{self._address.options.get('db', 0)}", "keys=0")
        return int(split_pairs(counted.split(","), "=").get("keys", "0"))

    async def _rights(self) -> Found:
        try:
            missing = await self._missing(Role.APP)
            # Who writes nothing at all is meant to watch.
            writing = set(commands_of(Role.APP)) - set(commands_of(Role.WATCHER))
            watches = writing <= set(missing) and not await self._missing(Role.WATCHER)
        except CommandRefused as error:
            if not lacks_a_right(error):
                raise
            missing, watches = ["EVAL"], False
        if missing and not watches:
            yield self._finding(
                "rights",
                f"the user may not use {', '.join(missing)}",
                "calls that need them are refused",
                "redis-state acl prints what is needed",
            )
        else:
            role = Role.WATCHER if watches else Role.APP
            yield self._sound("rights", f"the user has all that {_NAMED[role]} needs")

    async def _missing(self, role: Role) -> list[str]:
        """List the keys, or else the commands, that a role needs and the user may not use."""
        namespace, tried = self._settings.namespace, dict[str, list[str]]()
        for pattern in keys_of(role, namespace):
            tried[f"the keys {pattern}"] = ["EVAL", "return 1", "1", pattern.replace("*", "doctor")]
        patterns = list(tried)
        key = f"{namespace}:v1:doctor"
        for name in commands_of(role, self._settings, cluster=self._is_cluster):
            arguments = ["return 1", "1", key] if name in _SCRIPTS else [key] * _ARGUMENTS
            tried[name] = [*name.split("|"), *arguments]
        found: list[int] = await self._ask.rights(tried.values())
        rights = dict(zip(tried, found, strict=True))
        refused = [name for name, may in rights.items() if may == 0]
        strange = [name for name, may in rights.items() if may < 0]
        if strange and not refused:
            raise NotReported(f"the server does not know {', '.join(strange)}")
        # Without the namespace's keys no command that takes one may be run.
        return patterns[:1] if patterns[0] in refused else refused
