"""Lines of sessions that stand in the line of a limit key: both limits hold at once."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from redis_state.scripts import EndedJob, EndedJobs, Scripts
from redis_state.transport.keys import Keys
from tests.lua.queue.test_parked_scripts import park, parked, served
from tests.support.scripts.flows import claim, claim_places, end, end_at, limit, put
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives
from tests.support.scripts.tasks import ensure_job, job_payload, move_job, queued_job

SESSIONS, ABOVE = ("s", "t", "u", "v"), ("", "a", "b")
PER_KEY, ALL = 2, 5


def key_of(session: str, above: str) -> str:
    return ";".join([f"1:{session}"] * bool(session) + [f"k:{above}"] * bool(above))


async def defer(scripts: Scripts, keys: Keys, task: str) -> None:
    reply = await scripts.defer_job(
        keys.queue("q"),
        payload=job_payload(keys, task),
        id=queued_job(keys, task).id,
        at_ms=await clock_ms(scripts) + HOUR,
        earlier_ms=0,
        sooner=False,
        life_ms=HOUR,
    )
    assert reply.facts == [1]


async def nothing_is_left(scripts: Scripts, keys: Keys) -> None:
    await claim(scripts, keys)
    q = keys.queue("q")
    for key in (q.queue, q.claims, q.owners, q.keyed, q.heads, q.turns, q.holders):
        assert await ask(scripts, "EXISTS", key) == 0, key


async def test_tasks_of_sessions_in_turn_are_limited_by_their_tenant_too(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="2")
    for number in range(2):
        for session in "stu":
            await put(scripts, keys, f"{session}{number}", f"1:{session};k:a")
            await clock_passes(scripts, await clock_ms(scripts))
    await put(scripts, keys, "other", "1:o;k:b")
    first = await claim(scripts, keys)
    assert sorted(first) == ["other", "s0", "t0"]
    # The next one of the session is behind the others of its tenant that came before it.
    await end(scripts, keys, "t0", first["t0"])
    second = await claim(scripts, keys)
    assert list(second) == ["u0"]
    found = first | second
    while found := {task: each for task, each in found.items() if task != "t0"}:
        for task, claimed in found.items():
            await end(scripts, keys, task, claimed)
        found = await claim(scripts, keys)
        assert len(found) <= 2
    await nothing_is_left(scripts, keys)


async def test_tenants_take_turns_however_many_sessions_they_have(
    scripts: Scripts, keys: Keys
) -> None:
    for number in range(20):
        await put(scripts, keys, f"a{number}", f"1:{number};k:a")
    await put(scripts, keys, "b0", "1:x;k:b")
    await put(scripts, keys, "b1", "k:b")
    first = [next(iter(await claim(scripts, keys, 1))) for _ in range(4)]
    assert [task[0] for task in first] == ["a", "b", "a", "b"]
    assert first[1::2] == ["b0", "b1"]


async def test_a_session_has_one_task_at_a_time_whatever_limit_key_each_has(
    scripts: Scripts, keys: Keys
) -> None:
    tasks = {"one": "1:s;k:a", "two": "1:s;k:b", "three": "1:s", "four": "1:s;k:a"}
    for task, key in tasks.items():
        await put(scripts, keys, task, key)
        await clock_passes(scripts, await clock_ms(scripts))
    for task in tasks:
        found = await claim(scripts, keys)
        assert list(found) == [task]
        await end(scripts, keys, task, found[task])
    await nothing_is_left(scripts, keys)


async def test_an_interrupt_goes_first_while_its_tenant_is_full(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "full", "k:a")
    held = await claim(scripts, keys)
    await put(scripts, keys, "waits", "1:s;k:a")
    await put(scripts, keys, "other", "1:t;k:a")
    before = await clock_ms(scripts) - HOUR
    await put(scripts, keys, "interrupts", "1:s;k:a", since_ms=before)
    await end(scripts, keys, "full", held["full"])
    order = list[str]()
    while found := await claim(scripts, keys):
        ((task, claimed),) = found.items()
        order.append(task)
        await end(scripts, keys, task, claimed)
    assert order[0] == "interrupts"
    assert sorted(order) == ["interrupts", "other", "waits"]
    await nothing_is_left(scripts, keys)


async def test_a_session_that_is_put_off_holds_up_no_other_one_of_its_tenant(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "one", "1:s;k:a")
    await put(scripts, keys, "next", "1:s;k:a")
    ((task, place, claimed),) = await claim_places(scripts, keys)
    await end_at(scripts, keys, task, place, claimed, again_ms=HOUR)
    assert await claim(scripts, keys) == {}
    await put(scripts, keys, "other", "1:t;k:a")
    assert list(await claim(scripts, keys)) == ["other"]
    # The hour passes.
    await ask(scripts, "ZADD", keys.queue("q").waits, "XX", await clock_ms(scripts), "1:s")
    assert [each[:2] for each in await claim_places(scripts, keys)] == [("one", place)]


async def test_a_rate_counts_the_starts_of_all_sessions_of_a_tenant(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, key_rate=f"2 {HOUR}")
    for session in "stu":
        await put(scripts, keys, session, f"1:{session};k:a")
    (task, place, claimed), _ = await claim_places(scripts, keys)
    # What has not begun gives back what it took.
    name = queued_job(keys, task).id.encode()
    job = EndedJob(job_payload(keys, task), name, claimed, None, place, begun=False)
    await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)
    assert len(await claim(scripts, keys)) == 1


async def test_a_permit_without_a_claim_is_free_again(scripts: Scripts, keys: Keys) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "one", "1:s;k:a")
    await put(scripts, keys, "two", "1:s;k:a")
    await claim(scripts, keys)
    # An earlier version of the library ends the claim: it takes the key for one line.
    q, task = keys.queue("q"), queued_job(keys, "one").id.rpartition(":")[0]
    await ask(scripts, "ZREM", q.claims, task)
    await ask(scripts, "HDEL", q.owners, f"held:{task}")
    await ask(scripts, "ZREM", q.holders, f"1:s;k:a\0{task}")
    assert await ask(scripts, "ZCARD", q.holders) == 2
    assert await ensure_job(scripts, keys, "two", key="1:s;k:a") == "WAITS"
    found = dict[str, bytes]()
    for _ in range(3):
        found |= await claim(scripts, keys)
        assert await ensure_job(scripts, keys, "two", key="1:s;k:a") in ("WAITS", "CLAIMED")
    assert list(found) == ["two"]
    await end(scripts, keys, "two", found["two"])
    await nothing_is_left(scripts, keys)


async def test_what_an_earlier_version_queued_in_a_line_of_its_own_goes_where_it_belongs(
    scripts: Scripts, keys: Keys
) -> None:
    q, old = keys.queue("q"), "1:s;k:a"
    await put(scripts, keys, "new", old)
    for task in ("one", "two"):
        name = queued_job(keys, task).id
        owner = f"{old}\0{await clock_ms(scripts) - HOUR:018.4f}"
        await ask(scripts, "SET", job_payload(keys, task), "x", "PX", HOUR)
        await ask(scripts, "HSET", q.owners, name, owner)
        await ask(scripts, "ZADD", q.keyed, 0, f"{owner}\0{name}")
    await ask(scripts, "ZADD", q.turns, 0, old)
    order = list[str]()
    while found := await claim(scripts, keys):
        ((task, claimed),) = found.items()
        order.append(task)
        await end(scripts, keys, task, claimed)
    assert sorted(order) == ["new", "one", "two"]
    await nothing_is_left(scripts, keys)


async def test_a_line_that_lost_its_head_is_found_when_its_task_is_inspected(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "one", "1:s;k:a")
    q = keys.queue("q")
    await ask(scripts, "UNLINK", q.heads, q.turns)
    assert await claim(scripts, keys) == {}
    assert await ensure_job(scripts, keys, "one", key="1:s;k:a") == "WAITS"
    assert list(await claim(scripts, keys)) == ["one"]


async def test_a_claim_drops_a_bounded_number_of_heads_that_are_no_longer_right(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "one", "1:s;k:a")
    await put(scripts, keys, "other", "k:b")
    q, stale = keys.queue("q"), 600
    places = [f"k:a\0{number:018.4f}\0" for number in range(stale)]
    heads = [f"{place}1:gone {number}" for number, place in enumerate(places)]
    await ask(scripts, "ZADD", q.heads, *(part for head in heads for part in ("0", head)))
    claimed, left = list[str](), list[int]()
    while not claimed or len(left) < 4:
        claimed += await claim(scripts, keys)
        left.append(await ask(scripts, "ZCARD", q.heads))
        assert len(left) < 6
    # The line of the limit key keeps its turn meanwhile, and holds up the others for two claims.
    assert left == [345, 89, 0, 0]
    assert sorted(claimed) == ["one", "other"]


async def test_the_next_task_of_a_session_goes_if_the_first_is_put_off_while_it_waits(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("one", "two"):
        await put(scripts, keys, task, "1:s;k:a")
    name = queued_job(keys, "one").id
    await defer(scripts, keys, "one")
    found = await claim(scripts, keys)
    assert list(found) == ["two"]
    await end(scripts, keys, "two", found["two"])
    # The hour passes: it has kept both.
    await ask(scripts, "ZADD", keys.queue("q").queue, await clock_ms(scripts) - 1, name)
    await put(scripts, keys, "full", "k:a")
    await limit(scripts, keys, per_key="1")
    first = await claim(scripts, keys)
    assert len(first) == 1
    await end(scripts, keys, *first.popitem())
    assert len(await claim(scripts, keys)) == 1


@pytest.mark.parametrize("key", ["1:s", "1:s;k:b"])
async def test_the_next_task_of_a_session_does_not_wait_for_the_limit_key_of_the_first_one(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "full", "k:a")
    await put(scripts, keys, "one", "1:s;k:a")
    assert list(await claim(scripts, keys)) == ["full"]
    await put(scripts, keys, "two", key)
    assert await claim(scripts, keys) == {}
    await defer(scripts, keys, "one")
    assert list(await claim(scripts, keys)) == ["two"]


@pytest.mark.parametrize("key", ["1:s", "1:s;k:b"])
async def test_a_task_that_is_moved_to_the_front_does_not_wait_for_the_limit_key_behind_it(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "full", "k:a")
    await put(scripts, keys, "one", "1:s;k:a")
    assert list(await claim(scripts, keys)) == ["full"]
    await put(scripts, keys, "two", key)
    assert await claim(scripts, keys) == {}
    await move_job(scripts, keys, "two", earlier_ms=HOUR)
    assert list(await claim(scripts, keys)) == ["two"]


@pytest.mark.parametrize("key", ["1:s", "1:s;k:a"])
async def test_a_session_that_is_put_off_stays_so_if_a_task_of_it_is_moved(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    await put(scripts, keys, "one", key)
    await put(scripts, keys, "next", key)
    ((task, place, claimed),) = await claim_places(scripts, keys)
    await end_at(scripts, keys, task, place, claimed, again_ms=HOUR)
    assert (await move_job(scripts, keys, "next", earlier_ms=HOUR)).facts == [1]
    assert await claim(scripts, keys) == {}


async def test_a_look_into_a_lane_asks_a_full_limit_key_once_for_all_sessions_in_its_line(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    for number in range(40):
        await parked(scripts, keys, f"p{number:02d}", f"1:{number:02d};k:a")
    await parked(scripts, keys, "free", "1:z;k:b")
    await put(scripts, keys, "full", "k:a")
    full = await claim(scripts, keys)
    assert list(full) == ["full"]
    found, more = await served(scripts, keys)
    assert (list(found), more) == (["free"], 1)
    await end(scripts, keys, "full", full["full"])
    assert len((await served(scripts, keys))[0]) == 1


async def test_a_limit_that_is_raised_holds_at_once_however_many_sessions_wait(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    for task, key in (("a", "k:a"), ("b", "k:b"), ("c", "1:z;k:a"), ("d", "k:b")):
        await put(scripts, keys, task, key)
    assert sorted(await claim(scripts, keys)) == ["a", "b"]
    assert await claim(scripts, keys) == {}
    q = keys.queue("q")
    assert await ask(scripts, "EXISTS", q.turns) == 0
    others = (part for each in range(10_001) for part in (0, f"1:{each:05d}\x001000.0000\0id"))
    await ask(scripts, "ZADD", q.keyed, *others)
    await limit(scripts, keys, per_key="2")
    assert None not in [await ask(scripts, "ZSCORE", q.turns, key) for key in ("k:a", "k:b")]


async def test_all_that_is_kept_of_lines_has_a_lifetime(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "one", "1:s;k:a")
    await put(scripts, keys, "two", "1:s;k:a")
    await claim(scripts, keys, 1)
    q = keys.queue("q")
    names = (q.claims, q.owners, q.keyed, q.turns, q.holders, q.flow)
    assert all(life > 0 for life in await lives(scripts, *names))
    await put(scripts, keys, "three", "1:t;k:a")
    assert all(life > 0 for life in await lives(scripts, q.heads))


@dataclass
class Model:
    """What waits, by what the queue says of each job; what runs, by what this test did."""

    scripts: Scripts
    keys: Keys
    random: Random
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict[str, tuple[bytes, bytes]])
    parked: set[str] = field(default_factory=set[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    count: int = 0

    def names(self, task: str) -> tuple[str, str]:
        session, above, _ = task.split(".")
        return session, above

    async def waiting(self) -> dict[str, str]:
        """Return the place of each job that waits in a line, or goes there at the next claim."""
        q = self.keys.queue("q")
        found = await fields(self.scripts, q.owners)
        places = {
            name: owner.decode().rpartition("\0")[2]
            for name, owner in found.items()
            if name.endswith(":0") and owner[:2] in (b"1:", b"k:") and b"\0" in owner
        }
        now = await clock_ms(self.scripts)
        put_off = await ask(self.scripts, "ZRANGE", q.queue, 0, now, "BYSCORE", "WITHSCORES")
        for name, place in zip(put_off[::2], put_off[1::2], strict=True):
            places[name.decode()] = f"{float(place):018.4f}"
        return {name.rpartition("/")[2].partition(":")[0]: place for name, place in places.items()}

    def ready(self, waiting: dict[str, str], resting: set[str]) -> set[str]:
        """Return those of which each may be given to a worker next."""
        if len(self.held) >= ALL:
            return set()
        running = Counter[str]()
        for task in self.held:
            session, above = self.names(task)
            running["1:" + session] += bool(session)
            running["k:" + above] += bool(above)
        first = dict[str, tuple[str, str]]()
        for task, place in waiting.items():
            session, _ = self.names(task)
            line = f"1:{session}" if session else task
            first[line] = min(first.get(line, (place, task)), (place, task))
        found = set[str]()
        for line, (_, task) in first.items():
            session, above = self.names(task)
            free = not session or not (running["1:" + session] or line in resting)
            if free and (not above or running["k:" + above] < PER_KEY):
                found.add(task)
        return found

    async def step(self) -> None:
        scripts, keys, random = self.scripts, self.keys, self.random
        task = random.choice(sorted(self.held)) if self.held else ""
        waiting = await self.waiting()
        other = random.choice(sorted(waiting)) if waiting else ""
        what = random.randrange(13)
        if what < 4:
            session, above = random.choice(("", *SESSIONS)), random.choice(ABOVE)
            if session or above:
                self.count += 1
                name = f"{session}.{above}.{self.count}"
                await put(
                    scripts, keys, name, key_of(session, above), earlier_ms=random.randrange(9)
                )
        elif what < 6 and task:
            await end(scripts, keys, task, self.held.pop(task)[1])
            self.ended[task] += 1
        elif what == 6 and task:
            place, claimed = self.held.pop(task)
            again_ms = 0 if not self.names(task)[0] else random.choice((0, HOUR))
            await end_at(scripts, keys, task, place, claimed, again_ms=again_ms)
        elif what == 7 and task:
            place, claimed = self.held.pop(task)
            assert await park(scripts, keys, task, claimed, place=place) == 1
            self.parked.add(task)
        elif what == 8 and other:
            earlier_ms = 60_000 * random.randrange(5)
            await move_job(scripts, keys, other, earlier_ms=earlier_ms)
        elif what in (9, 10) and other:
            await (self.inspect if what == 9 else self.put_off)(other)
        elif what == 11:
            found, _ = await served(scripts, keys, most=random.randrange(1, 4))
            self.parked -= set(found)
            self.held |= {name: (b"1000", claimed) for name, claimed in found.items()}
        else:
            await self.claim_one(waiting)
        self.check()

    async def inspect(self, task: str) -> None:
        await ensure_job(self.scripts, self.keys, task, key=key_of(*self.names(task)))

    async def put_off(self, task: str) -> None:
        owners, name = self.keys.queue("q").owners, queued_job(self.keys, task).id
        if await ask(self.scripts, "HEXISTS", owners, name):
            await defer(self.scripts, self.keys, task)

    async def claim_one(self, waiting: dict[str, str]) -> bool:
        """Claim a job: one that may run, the first of those of its limit key, if there is any."""
        rests = await ask(self.scripts, "ZRANGE", self.keys.queue("q").waits, 0, -1)
        ready = self.ready(waiting, {name.decode() for name in rests})
        found = await claim_places(self.scripts, self.keys, 1)
        if not found:
            assert not ready, (ready, waiting, self.held)
            return False
        ((task, place, claimed),) = found
        # A new task of its session ends the rest of one that was put off.
        assert task in self.ready(waiting, set()), (task, ready, waiting, self.held)
        above = self.names(task)[1]
        others = [waiting[name] for name in ready if self.names(name)[1] == above and above]
        assert min(others, default=waiting[task]) >= waiting[task]
        self.held[task] = (place, claimed)
        return True

    def check(self) -> None:
        running = Counter[str]()
        for task in self.held:
            session, above = self.names(task)
            running["1:" + session] += bool(session)
            running["k:" + above] += bool(above)
        assert len(self.held) <= ALL
        assert all(count <= (1 if line[0] == "1" else PER_KEY) for line, count in running.items())

    async def finish(self) -> None:
        """Let all that waits run: nothing is lost, and nothing is left."""
        waits, put_off = self.keys.queue("q").waits, self.keys.queue("q").queue
        now = await clock_ms(self.scripts)
        for number, name in enumerate(await ask(self.scripts, "ZRANGE", put_off, 0, -1)):
            await ask(self.scripts, "ZADD", put_off, now - number, name)
        while True:
            for task in list(self.held):
                await end(self.scripts, self.keys, task, self.held.pop(task)[1])
                self.ended[task] += 1
            for line in await ask(self.scripts, "ZRANGE", waits, 0, -1):
                await ask(self.scripts, "ZADD", waits, await clock_ms(self.scripts), line)
            found, _ = await served(self.scripts, self.keys)
            self.held |= {name: (b"1000", claimed) for name, claimed in found.items()}
            while await self.claim_one(await self.waiting()):
                self.check()
            if not self.held:
                break
        assert len(self.ended) == self.count
        assert set(self.ended.values()) == {1}
        await ask(self.scripts, "DEL", waits)
        await nothing_is_left(self.scripts, self.keys)


@pytest.mark.parametrize("seed", range(int(os.environ.get("REDIS_STATE_LINE_SEEDS", "4"))))
async def test_both_limits_hold_in_whatever_order_things_are_done(
    scripts: Scripts, keys: Keys, seed: int
) -> None:
    model = Model(scripts, keys, Random(seed))
    await limit(scripts, keys, limit=str(ALL), per_key=str(PER_KEY))
    for _ in range(250):
        await model.step()
    await model.finish()
