"""The journal against a plain model: notes, crashes anywhere in one, repeats and stale runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import strategies as st

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from redis_state.errors import LeaseLost
from redis_state.primitives.blob import CHUNK_BYTES
from redis_state.primitives.lease import HeldLease, new_owner
from redis_state.primitives.record import Records
from redis_state.scripts import ReplyCode, Scripts, TaskKeys
from redis_state.stores.base import Base
from redis_state.transport.keys import Keys
from redis_state.worker.tasks.recorded.journal import Journals, StepRecord, read_step, steps_of
from redis_state.worker.tasks.recorded.replay import Replay
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask
from tests.support.scripts.tasks import make_task

ENTRIES = [f"step:{name}#1" for name in ("a", "b", "a/b")]
INLINE = 20
# Before the note: nothing sent, or so many chunks; None goes through to the end.
CRASHES = st.sampled_from([None, None, 0, 1, 2])
NOTES = st.tuples(
    st.just("note"),
    st.sampled_from(ENTRIES),
    st.sampled_from([3, INLINE, CHUNK_BYTES + 7, 2 * CHUNK_BYTES + 1]),
    CRASHES,
)
STEPS = st.lists(
    st.one_of(NOTES, NOTES, st.tuples(st.sampled_from(["next run", "stale", "again"]))),
    min_size=3,
    max_size=25,
)


@dataclass
class Model:
    """What the journal is to hold: version, epoch and result of each entry."""

    epoch: int = 0
    recorded: dict[str, tuple[int, int, str]] = field(
        default_factory=dict[str, tuple[int, int, str]]
    )

    def note(self, entry: str, result: str) -> tuple[int, int, str]:
        return self.recorded.setdefault(entry, (len(self.recorded) + 1, self.epoch, result))


@dataclass
class Run:
    """Plays the steps on the server and on the model."""

    scripts: Scripts
    keys: TaskKeys
    layout: Keys
    model: Model = field(default_factory=Model)
    happened: list[str] = field(default_factory=list[str])
    runs: list[Replay] = field(default_factory=list[Replay])
    written: int = 0

    async def play(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("next run",):
                await self.begin()
            case ("stale",):
                await self.stale()
            case ("again",):
                await self.again()
            case _:
                await self.note(*step[1:])
        await self.compare()

    async def begin(self) -> None:
        await ask(self.scripts, "HSET", self.keys.lease, "expires", 0)
        reply = await self.scripts.start_task(
            self.keys,
            {"status": b"RUNNING"},
            owner=(owner := new_owner()),
            lease_ms=HOUR,
            write=owner,
            ttl_ms=HOUR,
            announcement=saying(self.layout, owner),
            steering=self.layout.steering("s"),
        )
        assert reply.word is ReplyCode.OK
        assert int(reply.facts[0]) > self.model.epoch
        self.model.epoch = int(reply.facts[0])
        self.runs.append(Replay(HeldLease(self.keys.lease, owner, self.model.epoch)))

    async def note(self, entry: str, size: int, crash: int | None) -> None:
        self.written += 1
        result = f"{self.written:03}".ljust(size, "x")[:size]
        if crash is not None:
            for number in range(crash):
                reply = await self.scripts.keep_part(
                    self.keys,
                    mark=self.runs[-1].mark,
                    entry=entry,
                    number=number,
                    data=b"lost" + result.encode()[:10],
                )
                assert reply.word is (
                    ReplyCode.STALE if entry in self.model.recorded else ReplyCode.OK
                )
            self.happened.append("crash")
            await self.begin()
            return
        was_there = entry in self.model.recorded
        note, found = await self.write(entry, result, self.runs[-1])
        assert (note.version, note.epoch, found) == self.model.note(entry, result)
        self.happened.append("found" if was_there else "large" if note.chunks else "small")

    async def write(self, entry: str, result: str, run: Replay) -> tuple[StepRecord, Any]:
        base = _base(self.scripts)
        row, found = await Journals(base).record_step(
            self.keys, entry, result, run=run, inline_bytes=INLINE
        )
        return read_step(base.payloads, row), found

    async def stale(self) -> None:
        stranger = Replay(HeldLease(self.keys.lease, "stranger", self.model.epoch))
        for run, size in product((stranger, *self.runs[-2:-1]), (3, CHUNK_BYTES * 2)):
            with pytest.raises(LeaseLost):
                await self.write(ENTRIES[0], "s" * size, run)
        self.happened.append("stale")

    async def again(self) -> None:
        for entry, (version, epoch, result) in self.model.recorded.items():
            note, found = await self.write(entry, result, self.runs[-1])
            assert (note.version, note.epoch, found) == (version, epoch, result)
            self.happened.append("again")

    async def compare(self) -> None:
        journals = Journals(_base(self.scripts))
        journal, _ = await journals.read(self.keys)
        steps = steps_of(journal)
        found = {
            entry: (note.version, note.epoch, await journals.result(self.keys, entry, note))
            for entry, note in steps
        }
        assert found == self.model.recorded
        assert [note.version for _, note in steps] == list(range(1, len(steps) + 1))
        # No chunk is left of an entry but those that its note counts.
        parts: list[bytes] = await ask(self.scripts, "HKEYS", self.keys.journal)
        for entry, note in steps:
            ends = b":" + entry.encode()
            mine = [name for name in parts if name.startswith(b"part:") and name.endswith(ends)]
            assert len(mine) == note.chunks


async def _play(scripts: Scripts, keys: Keys, steps: list[tuple[Any, ...]]) -> list[str]:
    task = task_keys(keys)
    log = keys.updates("s")
    names = task.task, task.tasks, task.lease, task.journal, log.rows, log.ids
    await ask(scripts, "DEL", *names)
    await make_task(scripts, task, "PENDING")
    run = Run(scripts, task, keys)
    await run.begin()
    for step in steps:
        await run.play(step)
    return run.happened


@pytest.mark.fuzz
def test_the_journal_keeps_what_a_plain_model_keeps_whatever_crashes(settings: Settings) -> None:
    keys = Keys(settings.namespace)
    explore(
        settings,
        STEPS,
        lambda scripts, steps: _play(scripts, keys, steps),
        wanted={"crash", "found", "large", "small", "stale", "again"},
    )


def _base(scripts: Scripts) -> Base:
    settings = scripts.transport.settings
    return Base(settings, Keys(settings.namespace), scripts, Records(scripts))
