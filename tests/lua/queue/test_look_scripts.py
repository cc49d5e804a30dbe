"""What waits in a queue and for how long, and what waits and runs of each key."""

from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.flows import claim, limit, put
from tests.support.scripts.replies import HOUR, clock_ms

Row = tuple[str, int, int, str]


async def first(scripts: Scripts, keys: Keys, **most: int) -> list[str]:
    """Name the tasks of the first jobs."""
    reply = await scripts.look_queue(keys.queue("q"), **({"most": 9, "most_keys": 9} | most))
    return [name.decode().rpartition("/")[2].partition(":")[0] for name in reply.facts[5][::2]]


async def look(scripts: Scripts, keys: Keys, name: str, most: int) -> list[Row]:
    """Read a list page by page: key, waiting, running and the first task of each."""
    queue, rows = keys.queue("q"), list[Row]()
    last = b""
    while True:
        reply = await scripts.look_keys(getattr(queue, name), queue, after=last, most=most)
        _, last, *facts = reply.facts
        for at in range(0, len(facts), 5):
            key, waiting, running, job, place = facts[at : at + 5]
            assert bool(place) == bool(waiting)
            task = job.decode().rpartition("/")[2].partition(":")[0]
            rows.append((key.decode(), waiting, running, task))
        if not last:
            return rows


async def test_the_first_jobs_of_keys_are_among_the_first(scripts: Scripts, keys: Keys) -> None:
    now = await clock_ms(scripts)
    for number, key in enumerate(["", "k:b", "k:c", "k:a", "k:a"]):
        await put(scripts, keys, f"t{number}", key, since_ms=now - HOUR - 1000 * number)
    await put(scripts, keys, "later", "k:d", at_ms=now + HOUR)
    # The second one of a key stands behind its first.
    assert await first(scripts, keys) == ["t0", "t4", "t2", "t1"]
    assert await first(scripts, keys, most=1) == ["t0", "t4"]
    assert await first(scripts, keys, most_keys=2) == ["t0", "t4", "t1"]
    assert await first(scripts, keys, most_keys=0) == ["t0"]


async def test_each_key_is_read_once_with_what_waits_and_runs(scripts: Scripts, keys: Keys) -> None:
    await limit(scripts, keys, per_key="1")
    for name in ("a", "b", "c"):
        await put(scripts, keys, f"{name}0", f"k:{name}")
    assert len(await claim(scripts, keys)) == 3
    await put(scripts, keys, "b1", "k:b")
    await put(scripts, keys, "b2", "k:b")
    await put(scripts, keys, "d0", "k:d")
    await put(scripts, keys, "s0", "1:s")
    # What waits for a version of its handler is under no key.
    await put(scripts, keys, "parked", "v:handler/2;k:b")
    for most in (1, 2, 9):
        assert await look(scripts, keys, "keyed", most) == [
            ("1:s", 1, 0, "s0"),
            ("k:b", 2, 1, "b1"),
            ("k:d", 1, 0, "d0"),
        ]
        assert [row[:3] for row in await look(scripts, keys, "holders", most)] == [
            ("k:a", 0, 1),
            ("k:b", 2, 1),
            ("k:c", 0, 1),
        ]
