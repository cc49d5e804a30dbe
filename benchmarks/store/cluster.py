"""What a cluster costs: the same appends to one server and to primaries that share the slots.

CPU is counted, not time: of the client's process, and of all servers together.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.driver import Contender, NotMeasured
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer

_CALLERS = 64
_PRIMARIES = 3
_SLOTS = 16384
_WHOLE_S = 60.0
_CLIENT, _SERVERS = (1.3, 1.2), (1.5, 1.3)
_ONE, _ONE_AND_REPLICA = "one server", "one server with a replica"
_THREE, _THREE_AND_REPLICAS = "three primaries", "three primaries with a replica each"


def measure_cluster(run: Run) -> list[Row]:
    """Measure the CPU of an append in all layouts in turn, within each repeat."""
    client: dict[str, list[float]] = {}
    servers: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        layouts = {
            _ONE: [stack.enter_context(BenchServer())],
            _THREE: stack.enter_context(_cluster(replicas=0)),
            _ONE_AND_REPLICA: stack.enter_context(_with_a_replica()),
            _THREE_AND_REPLICAS: stack.enter_context(_cluster(replicas=1)),
        }
        contenders = {
            name: stack.enter_context(Contender("ours", _url(nodes)))
            for name, nodes in layouts.items()
        }
        for contender in contenders.values():
            contender.measure("append", callers=_CALLERS, seconds=run.seconds)
        for number in range(run.repeats):
            run.tell(f"cluster, repeat {number + 1} of {run.repeats}")
            for name, contender in contenders.items():
                before = _cpu_s(layouts[name])
                done = contender.measure("append", callers=_CALLERS, seconds=run.seconds)
                used_s = _cpu_s(layouts[name]) - before
                client.setdefault(name, []).append(done.cpu_us)
                servers.setdefault(name, []).append(used_s * 1e6 / done.count)
                rates.setdefault(name, []).append(done.rate)
    return [
        *_rows("client CPU", client, _CLIENT),
        *_rows("CPU of all servers", servers, _SERVERS),
        *(row(f"append, {name}", statistics.median(found), "/s") for name, found in rates.items()),
    ]


def _rows(what: str, found: dict[str, list[float]], bar: tuple[float, float]) -> Generator[Row]:
    """Make a row for each layout. A cluster is compared with one server of as many copies."""
    for name, peer in ((_THREE, _ONE), (_THREE_AND_REPLICAS, _ONE_AND_REPLICA)):
        yield row(f"append, {peer}, {what}", statistics.median(found[peer]), "us")
        yield row(
            f"append, {name}, {what}",
            statistics.median(found[name]),
            "us",
            peer=peer,
            ratio=statistics.median(a / b for a, b in zip(found[name], found[peer], strict=True)),
            bar=bar if name == _THREE else None,
            most=True,
        )


def _cpu_s(nodes: Sequence[BenchServer]) -> float:
    return sum(node.cpu_s() for node in nodes)


def _url(nodes: Sequence[BenchServer]) -> str:
    if len(nodes) < _PRIMARIES:
        return nodes[0].url
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes[:_PRIMARIES])


@contextmanager
def _with_a_replica() -> Generator[list[BenchServer]]:
    now = ("--repl-diskless-sync-delay", "0")
    with (
        BenchServer(more=now) as primary,
        BenchServer(more=(*now, "--replicaof", "127.0.0.1", str(primary.port))) as replica,
    ):
        primary.redis.set("in sync", 1)
        if not primary.redis.wait(1, int(_WHOLE_S * 1000)):
            raise NotMeasured("the replica did not follow")
        yield [primary, replica]


@contextmanager
def _cluster(*, replicas: int) -> Generator[list[BenchServer]]:
    """Run primaries that share the slots, then their replicas."""
    with ExitStack() as stack:
        nodes: list[BenchServer] = []
        buses: list[int] = []
        for _ in range(_PRIMARIES * (1 + replicas)):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                buses.append(free.getsockname()[1])
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]))
            more = (*options, "--repl-diskless-sync-delay", "0")
            nodes.append(stack.enter_context(BenchServer(more=more)))
        for number, node in enumerate(nodes[:_PRIMARIES]):
            first, end = (_SLOTS * each // _PRIMARIES for each in (number, number + 1))
            node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.redis.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            place = "127.0.0.1", nodes[0].port, buses[0]
            node.redis.execute_command("CLUSTER", "MEET", *place)
        _wait_until_whole(nodes)
        for number, node in enumerate(nodes[_PRIMARIES:]):
            owner = nodes[number % _PRIMARIES].redis.execute_command("CLUSTER", "MYID")
            node.redis.execute_command("CLUSTER", "REPLICATE", owner)
        _wait_until_whole(nodes)
        yield nodes


def _wait_until_whole(nodes: Sequence[BenchServer]) -> None:
    """Wait until each node knows all others, and each replica follows."""
    deadline = time.monotonic() + _WHOLE_S
    while not all(_is_whole(node, len(nodes)) for node in nodes):
        if time.monotonic() > deadline:
            raise NotMeasured("the cluster did not come together")
        time.sleep(0.05)


def _is_whole(node: BenchServer, known: int) -> bool:
    stated = node.redis.execute_command("CLUSTER", "INFO")
    text = stated.decode() if isinstance(stated, bytes) else str(stated)
    if f"cluster_known_nodes:{known}" not in text.replace("'", "").replace(": ", ":"):
        return False
    if "cluster_state:ok" not in text.replace("'", "").replace(": ", ":"):
        return False
    return bool(node.info("replication").get("master_link_status", "up") == "up")
