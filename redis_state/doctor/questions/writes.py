"""The questions to one server that are about writes: whether it takes them and keeps them."""

from __future__ import annotations

from redis_state.doctor.finding import Finding, Found
from redis_state.doctor.questions.shared import ServerQuestions, split_pairs
from redis_state.errors import CommandRefused
from redis_state.transport.sending.guarantee import DEMANDED, Guarantee

_LAG_BYTES = 10_000_000
# A replica reports once a second.
_SILENT_S = 10


class WriteQuestions(ServerQuestions):
    """Whether a server takes writes, keeps them, and what it can promise of them."""

    async def _writes(self) -> Found:
        if self._field("role") != "master":
            return
        refusals = [await self._without_disk(), await self._without_replicas()]
        for refusal in refusals:
            if refusal is not None:
                yield refusal
        if refusals == [None, None]:
            yield self._sound("writes", "it refuses none")

    async def _without_disk(self) -> Finding | None:
        """Return that the server refuses writes, because it cannot write to its disk."""
        if self._failed("aof_last_write_status"):
            says = f"aof_last_write_status is {self._info['aof_last_write_status']}"
        elif await self._stops_for_snapshots():
            says = f"rdb_last_bgsave_status is {self._info['rdb_last_bgsave_status']}"
        else:
            return None
        return self._finding(
            "writes",
            says,
            "it refuses every write, as StoreFull, until it can write to its disk again",
            "make room on its disk, and read its log",
        )

    async def _stops_for_snapshots(self) -> bool:
        """Return whether the last snapshot failed, and the server refuses writes for that."""
        if not self._failed("rdb_last_bgsave_status"):
            return False
        # The first is on by default. Without times to save at it does not hold.
        stops = await self._setting_if_shown("stop-writes-on-bgsave-error")
        return stops != "no" and await self._setting_if_shown("save") != ""

    async def _persistence(self) -> Found:
        if self._failed("rdb_last_bgsave_status") and not await self._stops_for_snapshots():
            yield self._finding(
                "persistence",
                f"rdb_last_bgsave_status is {self._info['rdb_last_bgsave_status']}",
                "the last snapshot could not be written: the one before is as old as it is",
                "make room on its disk, and read its log",
            )
        if self._field("aof_enabled") != "1":
            yield await self._without_file()
            return
        if self._failed("aof_last_bgrewrite_status"):
            yield self._finding(
                "persistence",
                f"aof_last_bgrewrite_status is {self._info['aof_last_bgrewrite_status']}",
                "the appendonly file grows until the disk is full. If appendonly was switched on "
                "meanwhile, nothing is written to it: a restart loses all writes since",
                "make room on its disk, read its log, and BGREWRITEAOF until it says ok",
            )
        sync = await self._setting("appendfsync")
        if sync == "no":
            yield self._finding(
                "persistence",
                "appendfsync is no",
                "a power cut loses what the system has not written, some 30 seconds as a rule",
                "CONFIG SET appendfsync everysec, or always",
            )
        elif not self._failed("aof_last_bgrewrite_status"):
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
        count = int(self._field("connected_slaves"))
        if count == 0:
            yield self._sound("replicas", "it has none: its data is as safe as its disk")
            return
        at = int(self._field("master_repl_offset"))
        late: list[str] = []
        for number in range(count):
            replica = split_pairs(self._field(f"slave{number}").split(","), "=")
            behind, silent_s = at - int(replica.get("offset", 0)), int(replica.get("lag", 0))
            if replica.get("state") != "online":
                why = f"is {replica.get('state')}"
            elif behind > _LAG_BYTES:
                why = f"is {behind:,} bytes behind"
            elif silent_s > _SILENT_S:
                why = f"has been silent for {silent_s} s"
            else:
                continue
            late.append(f"{replica.get('ip')}:{replica.get('port')} {why}")
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
        elif not late:
            yield self._sound("replicas", f"{count} in sync")

    async def _without_replicas(self) -> Finding | None:
        """Return that the server refuses writes, because it lacks replicas that it demands."""
        # A server that demands none does not count them.
        good = self._info.get("min_slaves_good_slaves")
        if good is None:
            return None
        if int(good) >= int(await self._setting_if_shown("min-replicas-to-write") or 1):
            return None
        return self._finding(
            "writes",
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
