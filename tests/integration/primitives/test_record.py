from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.errors import LeaseLost, VersionConflict
from redis_state.primitives.lease import Leases
from redis_state.primitives.record import Place, Records
from redis_state.scripts import Fence, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask, outcome
from tests.support.servers.faults import run_processes

MEMBERS = ["a", "", "\ud800{*}"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "delete", "expire", "forget"]),
        st.sampled_from(MEMBERS),
        st.sampled_from(["f", "g"]),
        st.sampled_from([None, 0, 1, 2, "right", "right"]),
    ),
    min_size=10,
    max_size=40,
)


@dataclass
class Model:
    version: int
    order: int
    fields: dict[str, bytes]


class RecordPlay:
    """Do each step on real records and on a model of them, and compare."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self.keys = Keys(scripts.transport.settings.namespace)
        self.session = uuid.uuid4().hex
        self.records = Records(scripts)
        self.index = self.keys.tasks(self.session)
        self.model: dict[str, Model] = {}
        self.listed: list[str] = []
        self.happened: list[str] = []
        self.numbers = count(1)

    def key(self, member: str) -> str:
        return self.keys.task(self.session, member)

    async def do(self, name: str, member: str, field: str, wanted: int | str | None) -> None:
        known = self.model.get(member)
        version = known.version if known else 0
        if name == "save":
            expected = version if isinstance(wanted, str) else wanted
            await self.save(member, field, version, expected)
        else:
            await getattr(self, name)(member, Place(self.index, member))
        assert await self.records.members(self.index) == self.listed
        assert await self.records.members(self.index, newest=2) == self.listed[:2]
        await self.compare()

    async def save(self, member: str, field: str, version: int, expected: int | None) -> None:
        number = next(self.numbers)
        given = {field: str(number).encode()}
        place = Place(self.index, member)
        call = self.records.save(
            self.key(member), given, ttl_ms=HOUR, expected=expected, place=place
        )
        saved = await outcome(call, VersionConflict)
        if isinstance(saved, VersionConflict):
            assert expected not in (None, version)
            assert (saved.expected, saved.actual) == (expected, version)
            self.happened.append("conflict")
            return
        assert expected in (None, version)
        assert saved == version + 1
        known = self.model.setdefault(member, Model(0, number, {}))
        known.version = saved
        known.fields |= given
        self.unlist(member)
        self.listed.insert(0, member)
        self.happened.append("saved" if expected is None else "saved as expected")

    async def delete(self, member: str, place: Place) -> None:
        known = self.model.pop(member, None)
        assert await self.records.delete(self.key(member), place=place) == (known is not None)
        self.unlist(member)

    async def expire(self, member: str, _: Place) -> None:
        await ask(self.scripts, "DEL", self.key(member))
        self.model.pop(member, None)

    async def forget(self, member: str, place: Place) -> None:
        await self.records.forget(self.key(member), place=place)
        if member not in self.model:
            self.unlist(member)
        self.happened.append("kept" if member in self.model else "forgotten")

    def unlist(self, member: str) -> None:
        self.listed = [other for other in self.listed if other != member]

    async def compare(self) -> None:
        orders: dict[str, int] = {}
        for member in MEMBERS:
            found, known = await self.records.load(self.key(member)), self.model.get(member)
            if found is None or known is None:
                assert (found is None) == (known is None)
                continue
            assert found.version == known.version
            assert {name: found.fields[name] for name in known.fields} == known.fields
            # Beside its own: what a record has of its last saves without a version.
            own = {"version", "write", "order", "recent"}
            assert found.fields.keys() - own == known.fields.keys()
            orders[member] = found.order
        by_order = sorted(self.model, key=lambda member: self.model[member].order)
        assert sorted(orders, key=lambda member: orders[member]) == by_order


async def play(scripts: Scripts, steps: list[tuple[str, str, str, int | str | None]]) -> list[str]:
    records = RecordPlay(scripts)
    for step in steps:
        await records.do(*step)
    return records.happened


@pytest.mark.fuzz
def test_records_are_what_the_model_says(settings: Settings) -> None:
    wanted = {"saved", "saved as expected", "conflict", "forgotten", "kept"}
    explore(settings, STEPS, play, wanted=wanted)


async def test_a_save_under_a_stale_lease_is_refused(scripts: Scripts, keys: Keys) -> None:
    records, leases = Records(scripts), Leases(scripts, keep_ms=HOUR)
    key, lease = keys.task("s", "t"), keys.lease("s", "t")
    with pytest.raises(LeaseLost) as lost:
        await records.save(key, {}, ttl_ms=HOUR, fence=Fence(lease, 3, "o"))
    assert (lost.value.epoch, lost.value.current) == (3, 0)
    held = await leases.acquire(lease, duration_ms=HOUR)
    assert held is not None
    assert await records.save(key, {}, ttl_ms=HOUR, fence=held.fence) == 1


async def test_of_4_processes_that_count_no_step_is_lost(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**shared, "does": "count", "times": 50, "processes": 4}] * 4
    lost = await run_processes("use_primitives", arguments)
    found = await Records(scripts).load(keys.memory("counter"))
    assert found is not None
    assert (found.version, found.fields["value"]) == (200, b"200")
    assert sum(lost)
