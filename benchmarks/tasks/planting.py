"""Fill a store with tasks by copying one: the same keys as a real one has, under other names.

What a real task left is read, and written again by plain commands, many in each write.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.server import BenchServer
from benchmarks.store.prepared import Captured, pump

SESSION, TASK = "plant-s-{:07d}", "plant-t-{:07d}"
_SAMPLE, _EARLIER = 0, 9_999_999
# Marks of calls and the like: not a part of a task.
_SHORT_MS = 3_600_000
_THREADS = 2
_RANDOM = re.compile(rb"[0-9a-f]{24,}")
_NOT_COPIED = (b"{/watch-", b"{/workers}")

# What a key holds: its type, its parts in order, its lifetime.
Held = tuple[str, list[Any], int]


@dataclass(frozen=True)
class Template:
    """The commands that write one task, and the names in them that differ from task to task."""

    parts: tuple[bytes, ...]
    names: tuple[bytes, ...]
    lines: int

    def of(self, number: int) -> bytes:
        """Write the task of a number."""
        digits = b"%07d" % number
        names = {name: name[:-7] + digits for name in self.names}
        return b"".join(names.get(part, part) for part in self.parts)


async def sample(server: BenchServer, make: Callable[[str, str], Awaitable[None]]) -> Template:
    """Have one task made, and take what it left for a template."""
    await make(SESSION.format(_EARLIER), TASK.format(_EARLIER))
    before = _read(server)
    await make(SESSION.format(_SAMPLE), TASK.format(_SAMPLE))
    after = _read(server)
    commands = [command for key in after for command in _commands(key, before, after)]
    own = [SESSION.format(_SAMPLE).encode(), TASK.format(_SAMPLE).encode()]
    written = b"".join(map(_written, commands))
    drawn = {found for key in after.keys() - before.keys() for found in _RANDOM.findall(key)}
    names = (*own, *sorted(drawn))
    split = re.split(b"(" + b"|".join(map(re.escape, names)) + b")", written)
    # A row's id is answered as text: its length, then itself.
    lines = sum(2 if command[0] == b"XADD" else 1 for command in commands)
    return Template(tuple(split), names, lines)


def plant(server: BenchServer, template: Template, count: int) -> None:
    """Write so many tasks, numbered from 0: some are made while the server writes others."""

    def part(first: int) -> None:
        made: Iterator[bytes] = map(template.of, range(first, count, _THREADS))
        pump(server, Captured([], template.lines), made)

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(part, range(_THREADS)):
            pass


def _read(server: BenchServer) -> dict[bytes, Held]:
    found: dict[bytes, Held] = {}
    for key in server.redis.scan_iter(count=1000):
        life = server.redis.pttl(key)
        if not 0 <= life < _SHORT_MS and not any(part in key for part in _NOT_COPIED):
            kind = server.redis.type(key).decode()
            parts = [] if kind == "none" else _parts(server.redis, key, kind)
            if kind == "none" or parts == [None]:
                # A worker has removed it since.
                continue
            found[key] = kind, parts, life
    return found


def _parts(redis: Any, key: bytes, kind: str) -> list[Any]:
    match kind:
        case "hash":
            return sorted(redis.hgetall(key).items())
        case "zset":
            return list(redis.zrange(key, 0, -1, withscores=True))
        case "list":
            return list(redis.lrange(key, 0, -1))
        case "stream":
            return list(redis.xrange(key))
        case "string":
            return [redis.get(key)]
        case _:
            raise RuntimeError(f"a {kind} is not planted")


def _commands(
    key: bytes, before: Mapping[bytes, Held], after: Mapping[bytes, Held]
) -> Iterator[list[bytes]]:
    """Write the commands that make a key as it is now, or its members that are new."""
    kind, parts, life = after[key]
    if key in before:
        if kind == "zset":
            earlier = {member for member, _ in before[key][1]}
            for member, score in parts:
                if member not in earlier:
                    yield [b"ZADD", key, b"%.17g" % score, member]
        return
    match kind:
        case "hash":
            yield [b"HSET", key, *(each for pair in parts for each in pair)]
        case "zset":
            yield [b"ZADD", key, *(each for m, score in parts for each in (b"%.17g" % score, m))]
        case "list":
            yield [b"RPUSH", key, *parts]
        case "stream":
            for row_id, fields in parts:
                yield [b"XADD", key, row_id, *(each for pair in fields.items() for each in pair)]
        case _:
            yield [b"SET", key, *parts]
    yield [b"PEXPIRE", key, b"%d" % life]


def _written(command: list[bytes]) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
    return b"*%d\r\n%s" % (len(command), parts)
