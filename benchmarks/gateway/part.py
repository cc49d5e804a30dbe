"""The part ``gateway``: idle clients, spread saves, a crowded session, slow readers, people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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

_PEER = "sse-starlette, one watch a client"
_IDLE, _SPREAD, _SESSIONS, _CROWD, _READERS, _SILENT = 10_000, 5_000, 500, 5_000, 1_000, 100
_RATE = 60.0


class Gateway:
    """A gateway's process, its clients' process, and the writer."""

    def __init__(self, run: Run, kind: str) -> None:
        self.run = run
        self.server = Contender(kind, run.server.url, module="benchmarks.gateway.serve")
        try:
            port = str(self.server.said["port"])
            self.clients = Contender(port, module="benchmarks.gateway.clients")
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

    async def _write(self, prefix: str, sessions: int, seconds: float, size: int) -> int:
        count = int(seconds * _RATE)
        url = self.run.server.url
        async with RedisStateStore.from_url(url, namespace=NAMESPACE) as store:
            due = time.monotonic()
            for n in range(count):
                due += 1 / _RATE
                await asyncio.sleep(due - time.monotonic())
                content = CONTENT | {"at": time.monotonic(), "text": "x" * size}
                row = update(time.time_ns(), f"{prefix}{n % sessions}")
                await store.save_update(row.model_copy(update={"content": content}))
        return count


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
    for kind, number in (("hub", count), ("sse", min(count, 1_000))):
        with Gateway(run, kind) as gateway:
            # The first watch opens the connections of the store, which stay.
            gateway.connect(50, 50, "warm")
            gateway.leave()
            before = gateway.used()
            gateway.connect(number, max(1, number // 10), "idle")
            found[kind] = (gateway.used()["rss"] - before["rss"]) / number / 1024
            if kind == "hub":
                gateway.leave()
                for _ in range(2):
                    gateway.connect(number, max(1, number // 10), "idle")
                    gateway.leave()
                after = gateway.used()
                found["tasks"] = after["tasks"] - before["tasks"] + after["watches"]
    name = f"gateway, {count:,} idle clients"
    ratio = found["hub"] / found["sse"] if found["sse"] > 0 else None
    bar = (24.0, 20.0)
    return [
        row(f"{name}, memory", found["hub"], "KiB each", bar=bar, most=True),
        row(f"{name}, memory beside the peer", found["hub"], "KiB each", peer=_PEER, ratio=ratio),
        row(
            f"{name}, tasks and watches after 3 rounds",
            found["tasks"],
            "more",
            bar=(0, 0),
            most=True,
        ),
    ]


def _spread(run: Run) -> list[Row]:
    count, sessions = run.clients(_SPREAD), run.clients(_SESSIONS)
    seconds = 5.0 if run.quick else 15.0
    found: dict[str, dict[str, float]] = {}
    for kind in ("hub", "sse"):
        with Gateway(run, kind) as gateway:
            gateway.connect(count, sessions, "s")
            gateway.write("s", sessions, 1.0)
            gateway.clients.ask({"heard": int(_RATE) * count // sessions})
            wrote = gateway.write("s", sessions, seconds)
            expected = wrote * count // sessions
            found[kind] = gateway.clients.ask({"heard": expected})
            found[kind]["missing"] = expected - found[kind]["heard"]
    name = f"gateway, {count:,} clients on {sessions} sessions"
    ours, peer = found["hub"], found["sse"]
    ratio = ours["p99_ms"] / peer["p99_ms"]
    p50 = ours["p50_ms"] / peer["p50_ms"]
    return [
        row(f"{name}, p50", ours["p50_ms"], "ms", peer=_PEER, ratio=p50),
        row(f"{name}, p99", ours["p99_ms"], "ms", bar=(15, 10), most=True),
        row(
            f"{name}, p99 beside the peer",
            ours["p99_ms"],
            "ms",
            peer=_PEER,
            ratio=ratio,
            bar=(0.25, 0.1),
            most=True,
            note=f"the peer's p99 is {peer['p99_ms']:.1f} ms, it lost {peer['missing']:.0f}",
        ),
        row(f"{name}, events missing", ours["missing"], "events", bar=(0, 0), most=True),
    ]


def _crowd(run: Run) -> list[Row]:
    count = run.clients(_CROWD)
    seconds = 1.0 if run.quick else 3.0
    found: dict[str, float] = {}
    for kind, number in (("hub", count), ("sse", min(count, 1_000))):
        with Gateway(run, kind) as gateway:
            gateway.connect(number, 1, "crowd")
            before = gateway.used()
            wrote = gateway.write("crowd", 1, seconds)
            heard = gateway.clients.ask({"heard": wrote * number})["heard"]
            spent = gateway.used()["cpu"] - before["cpu"]
            if not heard:
                raise NotMeasured("nothing was heard")
            found[kind] = 1e6 * spent / heard
    ratio = found["hub"] / found["sse"]
    name = f"gateway, 1 session to {count:,} clients, CPU"
    return [
        row(name, found["hub"], "us/event", bar=(35, 25), most=True),
        row(f"{name} beside the peer", found["hub"], "us/event", peer=_PEER, ratio=ratio),
    ]


def _slow(run: Run) -> list[Row]:
    readers, silent = run.clients(_READERS), run.clients(_SILENT)
    seconds = 3.0 if run.quick else 8.0
    sessions = max(1, readers // 20)
    with Gateway(run, "hub") as gateway:
        gateway.connect(readers, sessions, "slow")
        alone: list[float] = []
        beside: list[float] = []
        for delays in (alone, beside):
            if delays is beside:
                for n in range(silent):
                    gateway.clients.ask({"silent": 1, "session": f"slow{n % sessions}"})
            for _ in range(3):
                wrote = gateway.write("slow", sessions, seconds / 3, size=4000)
                found = gateway.clients.ask({"heard": wrote * readers // sessions})
                delays.append(found["p99_ms"])
        held = gateway.used()["held"]
    name = f"gateway, {silent} clients that never read among {readers:,}"
    ratio = sorted(beside)[1] / sorted(alone)[1]
    return [
        row(
            f"{name}, others' p99",
            sorted(beside)[1],
            "ms",
            peer="without them",
            ratio=ratio,
            bar=(1.2, 1.0),
            most=True,
        ),
        row(f"{name}, frames kept a session", held / sessions, "frames", bar=(256, 256), most=True),
    ]
