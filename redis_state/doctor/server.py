"""The questions to one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from redis_state.doctor.certificate import days_left
from redis_state.doctor.finding import (
    ExamineProgress,
    Finding,
    Found,
    NotReported,
    Verdict,
    answered,
    lacks_a_right,
)
from redis_state.doctor.lifetimes import KeySample
from redis_state.errors import CommandRefused
from redis_state.rights import Role, commands_of, keys_of
from redis_state.settings import Settings
from redis_state.transport.clock import ms_of
from redis_state.transport.connections.address import Address
from redis_state.transport.diagnostics import Diagnostics
from redis_state.transport.sending.guarantee import DEMANDED, Guarantee

_CLOCK_S = 5.0
_LAG_BYTES = 10_000_000
_FULL_PART = 0.9
_LAST_WRITES = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
_CERTIFICATE_DAYS = 30
_REPLY_LIMITS = "client-output-buffer-limit"
# Some pages of 4 MiB wait at once when the callers of one process read.
_REPLY_BYTES = 64 * 2**20
# Enough for the keys of each command.
_ARGUMENTS = 5
_SCRIPTS = ("EVAL", "EVALSHA")
_NAMED = {Role.APP: "an app", Role.WATCHER: "a watcher"}
_SLOTS = "16384"


class Examination:
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
        self._settings = settings
        given = Address.parse(settings.url.get_secret_value())
        self._is_cluster, self._is_embedded = given.is_cluster, given.scheme == "embedded"
        self._address = address
        self._server = str(address)
        self._ask = ask
        self._info: Mapping[str, str] = {}

    async def all(self) -> list[Finding]:
        """Ask all. Errors: NoConnection."""
        with suppress(CommandRefused):
            self._info = _pairs(await self._ask.info())
        found: list[Finding] = []
        questions: tuple[tuple[str, Callable[[], Found]], ...] = (
            ("version", self._version),
            ("role", self._role),
            ("memory", self._memory),
            ("clients", self._clients),
            ("replies", self._replies),
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

    def _sound(self, question: str, says: str) -> Finding:
        return Finding(self._server, question, Verdict.SOUND, says)

    def _unknown(self, question: str, why: str) -> Finding:
        return Finding(self._server, question, Verdict.UNKNOWN, why)

    def _finding(self, question: str, says: str, means: str, do: str) -> Finding:
        return Finding(self._server, question, Verdict.FINDING, says, means, do)

    def _field(self, name: str) -> str:
        """Return a field of INFO. Errors: NotReported."""
        if name not in self._info:
            raise NotReported(f"the server does not say its {name}")
        return self._info[name]

    async def _setting(self, name: str) -> str:
        """Return a setting. Errors: NotReported, CommandRefused."""
        pair: list[bytes] = await self._ask.setting(name)
        if len(pair) < 2:  # noqa: PLR2004 - a name and a value
            raise NotReported(f"the server has no setting {name}")
        return pair[1].decode()

    async def _hides(self, name: str) -> bool:
        """Return whether the server keeps a setting from this user, as services do."""
        try:
            await self._setting(name)
        except (CommandRefused, NotReported):
            return True
        return False

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

    async def _persistence(self) -> Found:
        for field in _LAST_WRITES:
            if self._info.get(field, "ok") != "ok":
                yield self._finding(
                    "persistence",
                    f"{field} is {self._info[field]}",
                    "the disk has refused what the server wrote: writes may be lost or refused",
                    "make room on its disk, and read its log",
                )
        if self._field("aof_enabled") != "1":
            yield await self._without_file()
            return
        sync = await self._setting("appendfsync")
        if sync == "no":
            yield self._finding(
                "persistence",
                "appendfsync is no",
                "a power cut loses what the system has not written, some 30 seconds as a rule",
                "CONFIG SET appendfsync everysec, or always",
            )
        else:
            yield self._sound("persistence", f"appendonly with appendfsync {sync}")
        async for found in self._replay():
            yield found

    async def _without_file(self) -> Finding:
        cure = "CONFIG SET appendonly yes, and write it to the configuration file"
        if await self._hides("appendonly"):
            if self._settings.durable_trusted:
                says = "appendonly is no, and durable_trusted says that the service keeps writes"
                return self._unknown("persistence", says)
            cure = "switch persistence on, or set durable_trusted for a service that keeps writes"
        return self._finding(
            "persistence",
            "appendonly is no",
            "a restart loses all writes since the last snapshot",
            cure,
        )

    async def _replay(self) -> Found:
        # What a script has written stands in the file as a transaction. Servers before Valkey 9.1.2
        # and redis/redis#14545 check it against the rights of this user when they start.
        key = f"{self._settings.namespace}:v1:doctor"
        writes = (("SET", key, "1"), ("PEXPIREAT", key, "1"), ("XADD", key, "*", "f", "1"))
        try:
            replies = [await self._ask.dry_run("default", *command) for command in writes]
        except CommandRefused as error:
            yield self._unknown("persistence", f"what the user default may do: {error}")
            return
        if any(answer != b"OK" for answer in replies):
            yield self._finding(
                "persistence",
                "the user default may not write",
                "many servers check its rights when they read the appendonly file: a restart then "
                "drops every write of a script, without an error",
                "ACL SETUSER default off ~* &* +@all, also in the ACL file: off, it cannot log in",
            )

    async def _replicas(self) -> Found:
        count, refuses = int(self._field("connected_slaves")), await self._without_replicas()
        if refuses is not None:
            yield refuses
        if count == 0:
            if refuses is None:
                yield self._sound("replicas", "it has none: its data is as safe as its disk")
            return
        at = int(self._field("master_repl_offset"))
        late: list[str] = []
        for number in range(count):
            replica = _split(self._field(f"slave{number}").split(","), "=")
            behind = at - int(replica.get("offset", 0))
            if replica.get("state") != "online" or behind > _LAG_BYTES:
                late.append(f"{replica.get('ip')}:{replica.get('port')}")
        if late:
            yield self._finding(
                "replicas",
                f"not in sync: {', '.join(late)}",
                "a failover to such a replica loses acknowledged writes",
                "look at its log and its network, and wait until it has caught up",
            )
        if await self._setting("min-replicas-to-write") == "0":
            yield self._finding(
                "replicas",
                "min-replicas-to-write is 0",
                "a primary that is cut off from its replicas accepts writes that are lost",
                "CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag 2",
            )
        elif not late and refuses is None:
            yield self._sound("replicas", f"{count} in sync")

    async def _without_replicas(self) -> Finding | None:
        """Return that the server refuses writes, because it lacks replicas that it demands."""
        # A server that demands none does not count them.
        good = self._info.get("min_slaves_good_slaves")
        if good is None:
            return None
        least = 1
        with suppress(CommandRefused, NotReported):
            least = int(await self._setting("min-replicas-to-write"))
        if int(good) >= least:
            return None
        return self._finding(
            "replicas",
            f"{good} replicas keep up, fewer than min-replicas-to-write",
            "it refuses every write: calls wait until their deadline",
            "bring a replica back, or CONFIG SET min-replicas-to-write 0 until there is one",
        )

    async def _guarantee(self) -> Found:
        guarantee = Guarantee.of(self._settings)
        if guarantee is None:
            return
        name, sound = self._settings.guarantee, True
        if guarantee.on_disk and not guarantee.trusted:
            for setting, value in DEMANDED.items():
                found = await self._setting(setting)
                if found != value:
                    sound = False
                    yield self._finding(
                        "guarantee",
                        f"{setting} is {found}",
                        f"every call of a store with guarantee={name!r} is refused",
                        f"CONFIG SET {setting} {value}, and write it to the configuration file",
                    )
        if int(self._field("connected_slaves")) < guarantee.replicas:
            sound = False
            yield self._finding(
                "guarantee",
                f"{self._field('connected_slaves')} of {guarantee.replicas} replicas are connected",
                f"every write of a store with guarantee={name!r} ends as OutcomeUnknown",
                "connect more replicas, or lower guarantee_replicas",
            )
        if sound:
            yield self._sound("guarantee", f"it can promise {name}")

    async def _cluster(self) -> Found:
        if self._info.get("cluster_enabled") != "1":
            return
        stated = _pairs(await self._ask.cluster_info())
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
        return int(_split(counted.split(","), "=").get("keys", "0"))

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


def _pairs(text: bytes) -> dict[str, str]:
    return _split(text.decode("utf-8", "replace").splitlines(), ":")


def _split(parts: list[str], sign: str) -> dict[str, str]:
    split = [part.partition(sign) for part in parts]
    return {name: value for name, found, value in split if found}
