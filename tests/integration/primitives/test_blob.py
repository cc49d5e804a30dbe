from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from redis_state import BackendUnavailable, InvalidField, LostRace, OutcomeUnknown, Settings
from redis_state.primitives import blob as blob_module
from redis_state.primitives.blob import CHUNK_BYTES, Blobs, Quota, Strategy, Upload
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, outcome

WIDE = 10**9
UTF8 = ("utf-8", "surrogatepass")
QUOTA = Quota(HOUR, WIDE, WIDE, WIDE, WIDE, WIDE)
KEEPING = replace(QUOTA, strategy="none")
NAMES = ["a", "b", "c", "d", "e", "f", "\ud800"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "put", "read", "delete", "expire", "lose"]),
        st.sampled_from(NAMES),
        st.integers(0, 5),
        st.sampled_from([None, "", "t", "u"]),
    ),
    min_size=20,
    max_size=40,
)
STRATEGIES: tuple[Strategy, ...] = ("lru", "fifo", "none")


async def put(
    blobs: Blobs, name: str, data: bytes = b"data", *, trace: str | None = None
) -> Upload:
    upload = blobs.begin(trace=trace)
    await blobs.add(upload, data)
    await blobs.finish(upload)
    await blobs.commit(upload, name, b"ref")
    return upload


async def whole(blobs: Blobs, name: str) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(name)])


@dataclass
class Model:
    size: int
    trace: str | None


class BlobPlay:
    """Do each step on real blobs and on a model of them, the longest unused first, and compare."""

    def __init__(self, scripts: Scripts, strategy: Strategy) -> None:
        self.scripts = scripts
        self.keys = Keys(scripts.transport.settings.namespace).artifacts(uuid.uuid4().hex)
        self.quota = Quota(HOUR, 5, 9, 4, 6, 2, strategy)
        self.blobs = Blobs(scripts, self.keys, self.quota)
        self.model: dict[str, Model] = {}
        self.happened: set[str] = set()

    async def put(self, name: str, size: int, trace: str | None) -> None:
        if name in self.model:
            self.happened.add("put again")
            await put(self.blobs, name, b"x" * size, trace=trace)
            self.used(name)
            return
        await put(self.blobs, name, b"x" * size, trace=trace)
        if self.quota.strategy != "none":
            self.make_room(size, trace)
        self.model[name] = Model(size, trace)

    def make_room(self, size: int, trace: str | None) -> None:
        """The rules, said as plainly as can be: over a limit, the oldest that helps goes."""
        while True:
            every = list(self.model)
            its = [name for name in every if trace is not None and self.model[name].trace == trace]
            over = len(every) >= 4 or self.bytes_of(every) + size > 9
            its_over = trace is not None and (len(its) >= 2 or self.bytes_of(its) + size > 6)
            if not over and not its_over:
                return
            # In one walk from the oldest: while the scope is over, anything helps.
            victim = every[0] if over else its[0]
            self.happened.add("evicted" if over else "evicted of a trace")
            del self.model[victim]

    def bytes_of(self, names: list[str]) -> int:
        return sum(self.model[name].size for name in names)

    def used(self, name: str) -> None:
        if self.quota.strategy == "lru":
            self.model[name] = self.model.pop(name)

    async def read(self, name: str, *_: Any) -> None:
        known = self.model.get(name)
        assert await whole(self.blobs, name) == b"x" * (known.size if known else 0)
        if known:
            self.used(name)

    async def delete(self, name: str, *_: Any) -> None:
        known = self.model.pop(name, None)
        assert await self.blobs.delete(name) == (known is not None, len(self.model))

    async def expire(self, name: str, *_: Any) -> None:
        """Let it expire, as both its key and the books see it."""
        if self.model.pop(name, None):
            moment = await clock_ms(self.scripts)
            await ask(self.scripts, "ZADD", self.keys.expiry, moment, name.encode(*UTF8))
            await ask(self.scripts, "PEXPIREAT", self.keys.blob(name), moment)
            await clock_passes(self.scripts, moment)
            # The books notice with the next put.
            await put(Blobs(self.scripts, self.keys, KEEPING), "probe", b"")
            await self.blobs.delete("probe")
            self.happened.add("expired")

    async def lose(self, name: str, size: int, trace: str | None) -> None:
        """Lose the bytes but not the books, and put it again: it counts once."""
        if name in self.model:
            await ask(self.scripts, "DEL", self.keys.blob(name))
            del self.model[name]
            await self.put(name, size, trace)
            self.happened.add("lost")

    async def compare(self) -> None:
        used = await ask(self.scripts, "ZRANGE", self.keys.use, 0, -1)
        assert [name.decode(*UTF8) for name in used] == list(self.model)
        assert sorted(await self.blobs.ids()) == sorted(self.model)
        refs = await self.blobs.refs(NAMES)
        assert {name for name, ref in zip(NAMES, refs, strict=True) if ref} == set(self.model)
        total = await ask(self.scripts, "HGET", self.keys.about, ":")
        expected = f"{len(self.model)} {self.bytes_of(list(self.model))}".encode()
        assert total == (expected if self.model else None)


async def play(scripts: Scripts, steps: list[tuple[str, str, int, str | None]]) -> list[str]:
    happened: set[str] = set()
    for strategy in STRATEGIES:
        blobs = BlobPlay(scripts, strategy)
        for name, *more in steps:
            await getattr(blobs, name)(*more)
            await blobs.compare()
        happened |= blobs.happened
    return sorted(happened)


@pytest.mark.fuzz
def test_blobs_are_what_the_model_says(settings: Settings) -> None:
    wanted = {"put again", "expired", "lost", "evicted", "evicted of a trace"}
    explore(settings, STEPS, play, wanted=wanted)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 1])
async def test_bytes_come_back_whatever_their_number(
    scripts: Scripts, keys: Keys, size: int
) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), QUOTA)
    data = bytes(range(251)) * (size // 251 + 1)
    upload = await put(blobs, "a", data[:size])
    assert upload.chunks == -(-size // CHUNK_BYTES)
    assert await whole(blobs, "a") == data[:size]
    assert await whole(blobs, "other") == b""


async def test_small_pieces_make_whole_chunks(scripts: Scripts, keys: Keys) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), QUOTA)
    upload = blobs.begin(trace=None)
    pieces: list[Any] = [b"", b"ab" * 1000, bytearray(b"c" * CHUNK_BYTES), memoryview(b"d" * 7)]
    for piece in pieces:
        await blobs.add(upload, piece)
    await blobs.finish(upload)
    await blobs.commit(upload, "a", b"ref")
    assert upload.chunks == 2
    assert await whole(blobs, "a") == b"ab" * 1000 + b"c" * CHUNK_BYTES + b"d" * 7


@pytest.mark.parametrize(
    ("changes", "traced", "largest"),
    [
        ({"max_blob_bytes": 5}, False, 5),
        ({"max_bytes": 5}, False, 5),
        ({"max_trace_bytes": 5}, False, WIDE),
        ({"max_trace_bytes": 5}, True, 5),
        ({"max_count": 0}, False, -1),
        ({"max_trace_count": 0}, False, WIDE),
        ({"max_trace_count": 0}, True, -1),
        ({"max_bytes": 5, "max_count": 0, "strategy": "none"}, True, WIDE),
        ({"max_blob_bytes": 5, "strategy": "none"}, True, 5),
    ],
)
async def test_what_can_never_fit_is_refused_before_anything_is_sent(
    scripts: Scripts, keys: Keys, changes: dict[str, Any], *, traced: bool, largest: int
) -> None:
    quota = replace(QUOTA, **changes)
    assert quota.largest(traced=traced) == largest
    blobs = Blobs(scripts, keys.artifacts("p"), quota)
    upload = blobs.begin(trace="t" if traced else None)
    if largest == WIDE:
        return
    with pytest.raises(InvalidField, match="exceeds limit"):
        await blobs.add(upload, b"x" * (largest + 1 + CHUNK_BYTES))
    assert scripts.transport.sender.batches == 0


async def test_only_bytes_are_bytes(scripts: Scripts, keys: Keys) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), QUOTA)
    wrong: Any = "text"
    with pytest.raises(InvalidField, match="bytes are needed, not str"):
        await blobs.add(blobs.begin(trace=None), wrong)


async def test_200_callers_at_a_full_scope_all_find_room(scripts: Scripts, keys: Keys) -> None:
    place = keys.artifacts("p")
    blobs = Blobs(scripts, place, replace(QUOTA, max_count=5))
    await asyncio.gather(*(put(blobs, f"n{number}") for number in range(200)))
    assert await ask(scripts, "HGET", place.about, ":") == b"5 20"
    found = await blobs.refs([f"n{number}" for number in range(200)])
    assert sum(ref is not None for ref in found) == 5


async def test_a_commit_that_never_finds_room_did_not_happen(
    scripts: Scripts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), replace(QUOTA, max_count=1))
    await put(blobs, "a")
    monkeypatch.setattr(blob_module, "_ROUNDS", 1)
    error = await outcome(put(blobs, "b"), BackendUnavailable)
    assert isinstance(error, BackendUnavailable)
    assert not isinstance(error, OutcomeUnknown)
    assert await blobs.ids() == ["a"]


async def test_an_upload_that_is_gone_is_told(scripts: Scripts, keys: Keys) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), QUOTA)
    upload = blobs.begin(trace=None)
    await blobs.add(upload, b"x")
    await blobs.finish(upload)
    assert 0 < (await lives(scripts, upload.key))[0] <= 15 * 60_000
    blobs.drop(upload)
    with pytest.raises(OutcomeUnknown, match="upload is gone"):
        await blobs.commit(upload, "a", b"ref")


async def test_a_blob_that_goes_while_it_is_read_is_told(scripts: Scripts, keys: Keys) -> None:
    blobs = Blobs(scripts, keys.artifacts("p"), QUOTA)
    await put(blobs, "a", b"x" * (10 * CHUNK_BYTES))
    reading = blobs.read("a")
    assert len(await anext(reading)) == CHUNK_BYTES
    await blobs.delete("a")
    with pytest.raises(LostRace, match="went away"):
        async for _ in reading:
            pass
