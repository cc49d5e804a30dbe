"""A cluster whose slots move, whose nodes stand still, and whose connections are cut, under load.

Each session is a list of numbered items. Its calls are made without waiting for the one before:
some may be repeated, some not, some are cancelled. Those of some sessions are about two keys.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import BackendUnavailable, OutcomeUnknown
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.transport import Transport
from tests.chaos.support.trial import How, Trial
from tests.support.servers.sets.clusters import Cluster, running_cluster

_SEED = 31
_SESSIONS = 40
_SLOTS = 8
_CALL_S = 10.0
_AT_ONCE = 12
_PUSH = """-- {%s}
for _, key in ipairs(KEYS) do
    redis.call('RPUSH', key, ARGV[1])
end"""
# Does nothing when it comes again. The braces give the slot of each session's calls.
_ONCE = """-- {%s}
for _, key in ipairs(KEYS) do
    if not redis.call('LPOS', key, ARGV[1]) then
        redis.call('RPUSH', key, ARGV[1])
    end
end
return ARGV[1]"""


@dataclass
class _Session:
    """A session's calls by the number of the item, and what became of each."""

    tag: str
    # Whether all calls are about two keys: of a moving slot, one may be there and one not.
    is_double: bool
    made: int = 0
    ended: dict[int, How] = field(default_factory=dict[int, How])
    repeatable: set[int] = field(default_factory=set[int])
    errors: list[str] = field(default_factory=list[str])
    kept: list[bytes] = field(default_factory=list[bytes])

    @property
    def keys(self) -> tuple[str, str]:
        return f"{{{self.tag}}}items", f"{{{self.tag}}}again"

    async def begin(self, sender: CallSender) -> None:
        """Make the lists: a slot that is being moved has no place for a new key."""
        for key in self.keys:
            await sender.send("RPUSH", key, -1, repeatable=False)
        self.ended[-1] = "ok"

    def call(self, sender: CallSender, chance: random.Random) -> tuple[int, asyncio.Future[Any]]:
        """Make the next call."""
        number = self.made
        self.made += 1
        repeatable, lasting = chance.random() < 0.5, chance.random() < 0.3
        if repeatable:
            self.repeatable.add(number)
        script = (_ONCE if repeatable else _PUSH) % self.tag
        keys = self.keys if self.is_double else self.keys[:1]
        command = ("EVAL", script, len(keys), *keys, number)
        if chance.random() < 0.2 and not self.is_double and not repeatable:
            command = ("RPUSH", *keys, number)
        call = sender.send(*command, repeatable=repeatable, lasting=lasting)
        return number, call

    async def write(self, trial: Trial, sender: CallSender, chance: random.Random) -> None:
        """Make some calls at once, and wait for all."""
        calls = [self.call(sender, chance) for _ in range(chance.randint(1, _AT_ONCE))]
        for _, call in calls:
            if chance.random() < 0.03:
                await asyncio.sleep(chance.choice((0, 0, 0.002, 0.05)))
                call.cancel()
        began = time.monotonic()
        for number, call in calls:
            how: How = "ok"
            try:
                # An item that is there already is as good as one that was put there.
                await call
            except asyncio.CancelledError:
                if not call.cancelled():
                    raise
                how = "unknown"
            except OutcomeUnknown as error:
                how = "unknown"
                if number in self.repeatable:
                    self.errors.append(str(error))
            except BackendUnavailable as error:
                how = "fail"
                self.errors.append(str(error))
            self.ended[number] = how
            trial.history.note("push", how, began)

    def check(self, trial: Trial) -> None:
        """What was acknowledged is there once, in its order; what was refused is not."""
        kept = [int(item) for item in self.kept]
        count = Counter(kept)
        trial.duplicated += sum(times > 1 for times in count.values())
        trial.lost += sum(how == "ok" and number not in count for number, how in self.ended.items())
        acknowledged = [number for number in kept if self.ended[number] == "ok"]
        swapped = [pair for pair in pairwise(acknowledged) if pair[0] > pair[1]]
        trial.expect(not swapped, f"{self.tag}: another order: {swapped}")
        refused = [number for number in count if self.ended[number] == "fail"]
        trial.expect(not refused, f"{self.tag}: {refused} were refused and are there")
        trial.expect(not self.errors, f"{self.tag}: {Counter(self.errors)}")


class _Faults:
    """Faults, one after the other, until the writers are done."""

    def __init__(self, cluster: Cluster, slots: list[int], chance: random.Random) -> None:
        self.fired: Counter[str] = Counter()
        self._cluster, self._slots, self._chance = cluster, slots, chance
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self._move,
            self._move,
            self._move_with_pauses,
            self._move_with_pauses,
            self._begin_and_take_back,
            self._stand_still,
            self._cut,
            self._forget_scripts,
        ]

    async def run(self, wanted: int) -> None:
        """Make so many."""
        while self.fired.total() < wanted:
            kind = self._chance.choice(self._kinds)
            await kind()
            self.fired[kind.__name__.strip("_")] += 1
            await asyncio.sleep(self._chance.uniform(0, 0.1))

    def _two(self) -> tuple[int, int]:
        return self._chance.choice(self._slots), self._chance.choice(self._cluster.ports)

    async def _move(self) -> None:
        slots = self._chance.sample(self._slots, self._chance.randint(1, 3))
        await self._cluster.move(slots, self._chance.choice(self._cluster.ports))

    async def _move_with_pauses(self) -> None:
        slot, target = self._two()
        if await self._cluster.owner(slot) == target:
            return
        source = await self._cluster.begin_move(slot, target)
        await self._pause()
        await self._cluster.move_keys(slot, source, target, most=self._chance.randint(1, 8))
        await self._pause()
        await self._cluster.move_keys(slot, source, target)
        await self._pause()
        await self._cluster.end_move(slot, target)

    async def _begin_and_take_back(self) -> None:
        slot, target = self._two()
        if await self._cluster.owner(slot) == target:
            return
        source = await self._cluster.begin_move(slot, target)
        await self._pause()
        # The calls of these sessions find all of their keys: nothing was created elsewhere.
        for port in (source, target):
            await self._cluster.ask(port, "CLUSTER", "SETSLOT", slot, "STABLE")

    async def _stand_still(self) -> None:
        port = self._chance.choice(self._cluster.ports)
        self._cluster.stop(port)
        await self._pause()
        self._cluster.resume(port)

    async def _cut(self) -> None:
        port = self._chance.choice(self._cluster.ports)
        await self._cluster.ask(port, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def _forget_scripts(self) -> None:
        await self._cluster.ask(self._chance.choice(self._cluster.ports), "SCRIPT", "FLUSH")

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0, 0.01, 0.05, 0.2, 0.6)))


def _sessions(chance: random.Random) -> tuple[list[_Session], list[int]]:
    """Find sessions that share few slots."""
    slots = [slot_of(f"{{s{number}}}") for number in chance.sample(range(1000), _SLOTS)]
    found, number = list[_Session](), 0
    while len(found) < _SESSIONS:
        if slot_of(f"s{number}") in slots:
            found.append(_Session(f"s{number}", is_double=len(found) % 3 == 0))
        number += 1
    return found, slots


async def test_slots_move_while_calls_are_in_flight(trial: Trial) -> None:
    wanted = trial.size.of(500)
    trial.parameters = {"faults": wanted, "sessions": _SESSIONS, "slots": _SLOTS}
    chance = random.Random(_SEED)
    sessions, slots = _sessions(chance)
    async with running_cluster() as cluster:
        before = asyncio.all_tasks()
        transport = Transport(Settings(url=SecretStr(cluster.url), call_timeout_s=_CALL_S))
        sender = transport.sender
        for session in sessions:
            await session.begin(sender)
        faults = _Faults(cluster, slots, chance)

        async def write(session: _Session) -> None:
            own = random.Random(f"{_SEED} {session.tag}")
            while faults.fired.total() < wanted:
                await session.write(trial, sender, own)
                await asyncio.sleep(own.uniform(0, 0.03))

        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(write(session))
            await faults.run(wanted)
        for session in sessions:
            session.kept = await sender.send("LRANGE", session.keys[0], 0, -1, repeatable=True)
        await transport.drain()
        trial.expect(sender.pending == 0, f"{sender.pending} calls are left")
        await transport.aclose()
        left = asyncio.all_tasks() - before
        trial.expect(not left, f"tasks are left: {left}")
        for port in cluster.ports:
            clients: str = await cluster.ask(port, "CLIENT", "LIST", "TYPE", "normal")
            # That of the question, and those of other nodes that have moved keys here.
            ours = [each for each in clients.splitlines() if "cmd=restore" not in each]
            trial.expect(len(ours) == 1, f"connections are left: {ours}")
    for session in sessions:
        session.check(trial)
    trial.faults = faults.fired.total()
    trial.figures = dict(faults.fired)
    trial.conclude()
