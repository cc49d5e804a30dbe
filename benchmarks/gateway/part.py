"""The part ``gateway``: idle clients, spread saves, a crowded session, slow readers, people.

What is measured is the whole gateway, with a token for each client. The hub alone, which has the
streams without routes and rights, stands beside it where that shows what they cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Self

from benchmarks.driver import Contender, NotMeasured
from benchmarks.gateway.people import measure_dev, measure_page
from benchmarks.peers.ours import update
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.samples import CONTENT
from benchmarks.store.listeners import NAMESPACE
from redis_state import RedisStateStore
from redis_state.errors import RedisStateError
from redis_state.models import StateUpdate

_OURS, _ALONE, _PEER = "gateway", "the hub alone", "sse-starlette, one watch a client"
_IDLE, _SPREAD, _SESSIONS, _CROWD, _READERS, _SILENT = 10_000, 5_000, 500, 5_000, 1_000, 100
# How many clients the peer has at most, where the figure is one of each client or event.
_PEERS = 1_000
_RATE = 60.0
# A heartbeat of each client, and a check of its right.
_BEATS_S = 20.0
# What nobody reads: more rows than a session keeps, and more bytes than a socket takes.
_UNREAD, _UNREAD_BYTES = 300, 4_000


class Gateway:
    """A gateway's process, its clients' process, and the writer."""

    def __init__(self, run: Run, kind: str) -> None:
        self.run = run
        self.server = Contender(kind, run.server.url, module="benchmarks.gateway.serve")
        try:
            port = str(self.server.said["port"])
            secret = str(self.server.said.get("secret", ""))
            self.clients = Contender(port, secret, module="benchmarks.gateway.clients")
        except NotMeasured:
            self.server.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.stop()
        self.server.stop()

    def used(self) -> dict[str, float]:
        """Ask what the gateway has used."""
        return self.server.ask({})

    def connect(self, count: int, sessions: int, prefix: str) -> None:
        """Open streams."""
        self.clients.ask({"connect": count, "sessions": sessions, "prefix": prefix})

    def leave(self) -> None:
        """Close all streams, and wait until the gateway has noticed and watches no session."""
        self.clients.ask({"close": True})
        give_up_at = time.monotonic() + 20
        while any(map(self.used().get, ("clients", "watches"))) and time.monotonic() < give_up_at:
            time.sleep(0.1)

    def write(self, prefix: str, sessions: int, seconds: float, *, size: int = 0) -> int:
        """Save updates in turn, at the rate, and return how many."""
        return asyncio.run(self._write(prefix, sessions, seconds, size))

    def fill(self, prefix: str, sessions: int = 1) -> None:
        """Save more rows than a session keeps, at once, and give the gateway time to send them."""
        asyncio.run(self._fill(prefix, sessions))
        time.sleep(1)

    def until(self, clients: int) -> None:
        """Wait until the gateway has so many clients, and give it time to send what they get."""
        give_up_at = time.monotonic() + 20
        while (has := self.used()["clients"]) != clients:
            if time.monotonic() > give_up_at:
                raise NotMeasured(f"the gateway has {has:.0f} clients of {clients}")
            time.sleep(0.1)
        time.sleep(1)

    async def _write(self, prefix: str, sessions: int, seconds: float, size: int) -> int:
        count = int(seconds * _RATE)
        url = self.run.server.url
        async with RedisStateStore.from_url(url, namespace=NAMESPACE) as store:
            due = time.monotonic()
            for n in range(count):
                due += 1 / _RATE
                await asyncio.sleep(due - time.monotonic())
                await store.save_update(_update(f"{prefix}{n % sessions}", size))
        return count

    async def _fill(self, prefix: str, sessions: int) -> None:
        async with RedisStateStore.from_url(self.run.server.url, namespace=NAMESPACE) as store:
            for n in range(_UNREAD * sessions):
                await store.save_update(_update(f"{prefix}{n % sessions}", _UNREAD_BYTES))


def _each_ms(delays: Sequence[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in delays)


def _update(session: str, size: int) -> StateUpdate:
    content = CONTENT | {"at": time.monotonic(), "text": "x" * size}
    return update(time.time_ns(), session).model_copy(update={"content": content})


def measure_gateway(run: Run) -> list[Row]:
    """Measure all pieces, at the run's size."""
    rows: list[Row] = []
    pieces: dict[str, Callable[[Run], list[Row]]] = {
        "idle": _idle,
        "spread": _spread,
        "crowd": _crowd,
        "slow": _slow,
        "page": measure_page,
        "dev": measure_dev,
    }
    for name, piece in pieces.items():
        run.server.flush()
        run.tell(f"gateway, {name}")
        try:
            rows += piece(run)
        except (NotMeasured, RedisStateError, RuntimeError, TimeoutError, OSError) as error:
            rows.append(missing(f"gateway, {name}", str(error), failed=True))
    return rows


def _idle(run: Run) -> list[Row]:
    count = run.clients(_IDLE)
    found: dict[str, float] = {}
    quiet = 0.0
    for kind, number in ((_OURS, count), ("hub", count), ("sse", min(count, _PEERS))):
        with Gateway(run, kind) as gateway:
            # The first watch opens the connections of the store, which stay.
            gateway.connect(50, 50, "warm")
            gateway.leave()
            before = gateway.used()
            gateway.connect(number, max(1, number // 10), "idle")
            found[kind] = _each(before, gateway.used(), number)
            if kind != _OURS:
                continue
            quiet, idle = found[kind], gateway.used()["cpu"]
            time.sleep(_BEATS_S)
            beaten = gateway.used()
            found[kind] = max(quiet, _each(before, beaten, number))
            found["cpu"] = 100 * (beaten["cpu"] - idle) / _BEATS_S
            gateway.leave()
            for _ in range(2):
                gateway.connect(number, max(1, number // 10), "idle")
                gateway.leave()
            after = gateway.used()
            found["tasks"] = after["tasks"] - before["tasks"] + after["watches"]
    name = f"gateway, {count:,} idle clients"
    ours, bar = found[_OURS], (24.0, 20.0)
    note = f"{quiet:.1f} before their first heartbeats"
    alone = ours / found["hub"] if found["hub"] > 0 else None
    peer = ours / found["sse"] if found["sse"] > 0 else None
    return [
        row(f"{name}, memory", ours, "KiB each", bar=bar, most=True, note=note),
        row(f"{name}, memory beside the hub's", ours, "KiB each", peer=_ALONE, ratio=alone),
        row(f"{name}, memory beside the peer", ours, "KiB each", peer=_PEER, ratio=peer),
        row(f"{name}, CPU for heartbeats and their rights", found["cpu"], "% of a core"),
        row(
            f"{name}, tasks and watches after 3 rounds",
            found["tasks"],
            "more",
            bar=(0, 0),
            most=True,
        ),
    ]


def _each(before: dict[str, float], after: dict[str, float], clients: int) -> float:
    """Return how many KiB of memory came for each client."""
    return (after["rss"] - before["rss"]) / clients / 1024


def _spread(run: Run) -> list[Row]:
    count, sessions = run.clients(_SPREAD), run.clients(_SESSIONS)
    seconds = 5.0 if run.quick else 15.0
    found: dict[str, dict[str, float]] = {}
    for kind in (_OURS, "hub", "sse"):
        with Gateway(run, kind) as gateway:
            gateway.connect(count, sessions, "s")
            gateway.write("s", sessions, 1.0)
            gateway.clients.ask({"heard": int(_RATE) * count // sessions})
            wrote = gateway.write("s", sessions, seconds)
            expected = wrote * count // sessions
            found[kind] = gateway.clients.ask({"heard": expected})
            found[kind]["missing"] = expected - found[kind]["heard"]
    name = f"gateway, {count:,} clients on {sessions} sessions"
    ours, alone, peer = found[_OURS], found["hub"], found["sse"]
    note = f"the peer's p99 is {peer['p99_ms']:.1f} ms, it lost {peer['missing']:.0f}"
    p50, p99 = ours["p50_ms"], ours["p99_ms"]
    return [
        row(f"{name}, p50", p50, "ms", peer=_PEER, ratio=p50 / peer["p50_ms"]),
        row(f"{name}, p99", p99, "ms", bar=(15, 10), most=True),
        row(f"{name}, p99 beside the hub's", p99, "ms", peer=_ALONE, ratio=p99 / alone["p99_ms"]),
        row(
            f"{name}, p99 beside the peer",
            p99,
            "ms",
            peer=_PEER,
            ratio=p99 / peer["p99_ms"],
            bar=(0.25, 0.1),
            most=True,
            note=note,
        ),
        row(f"{name}, events missing", ours["missing"], "events", bar=(0, 0), most=True),
    ]


def _crowd(run: Run) -> list[Row]:
    count = run.clients(_CROWD)
    seconds = 1.0 if run.quick else 3.0
    found: dict[str, float] = {}
    for kind, number in ((_OURS, count), ("hub", count), ("sse", min(count, _PEERS))):
        with Gateway(run, kind) as gateway:
            gateway.connect(number, 1, "crowd")
            before = gateway.used()
            wrote = gateway.write("crowd", 1, seconds)
            heard = gateway.clients.ask({"heard": wrote * number})["heard"]
            spent = gateway.used()["cpu"] - before["cpu"]
            if not heard:
                raise NotMeasured("nothing was heard")
            found[kind] = 1e6 * spent / heard
    ours, name = found[_OURS], f"gateway, 1 session to {count:,} clients, CPU"
    return [
        row(name, ours, "us/event", bar=(35, 25), most=True),
        row(f"{name} beside the hub's", ours, "us/event", peer=_ALONE, ratio=ours / found["hub"]),
        row(f"{name} beside the peer", ours, "us/event", peer=_PEER, ratio=ours / found["sse"]),
    ]


def _slow(run: Run) -> list[Row]:
    readers, silent = run.clients(_READERS), run.clients(_SILENT)
    seconds, pairs = (1.0, 1) if run.quick else (4.0, 7)
    sessions = max(1, readers // 20)
    with Gateway(run, _OURS) as gateway:
        # The first watch opens the connections of the store, which stay.
        gateway.connect(50, 50, "warm")
        gateway.leave()
        before = gateway.used()
        # Half of them are there when the rows come, and half have to read the log.
        for _ in range(2):
            gateway.clients.ask({"silent": max(1, silent // 2), "session": "unread0"})
            gateway.fill("unread")
        after = gateway.used()
        gateway.clients.ask({"silent": 0, "session": ""})
        gateway.until(0)
        # So who never reads is stuck before the rows that are timed.
        gateway.fill("slow", sessions)
        gateway.connect(readers, sessions, "slow")
        alone: list[float] = []
        beside: list[float] = []
        # In turn: the machine's speed changes.
        for _ in range(pairs):
            for delays, unread in ((alone, 0), (beside, silent)):
                for n in range(unread):
                    gateway.clients.ask({"silent": 1, "session": f"slow{n % sessions}"})
                gateway.until(readers + unread)
                # The first rows are not timed.
                for timed_s in (1.0, seconds):
                    wrote = gateway.write("slow", sessions, timed_s, size=_UNREAD_BYTES)
                    found = gateway.clients.ask({"heard": wrote * readers // sessions})
                delays.append(found["p99_ms"])
                gateway.clients.ask({"silent": 0, "session": ""})
    name = f"gateway, {silent} clients that never read among {readers:,}"
    ratio = median(beside) / median(alone)
    mib = [each["rss"] / (1 << 20) for each in (before, after)]
    return [
        row(
            f"{name}, others' p99",
            median(beside),
            "ms",
            peer="without them",
            ratio=ratio,
            bar=(1.2, 1.0),
            most=True,
            note=f"{_each_ms(beside)} with them; {_each_ms(alone)} without",
        ),
        row(f"{name}, frames kept a session", after["held"], "frames", bar=(256, 256), most=True),
        row(
            f"gateway, {silent} clients that never read 2.4 MB, memory",
            _each(before, after, silent),
            "KiB each",
            bar=(1024, 256),
            most=True,
            note=f"the process had {mib[0]:.1f} MiB before them, and {mib[1]:.1f} with them",
        ),
    ]
