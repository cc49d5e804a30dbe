from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import pytest
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.errors import LeaseLost, StoreFull
from redis_state.primitives.lease import HeldLease, Leases, Renewal
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import Records
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.timers import SharedTimer
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, outcome
from tests.support.servers.faults import Proxy, run_processes
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["acquire", "acquire briefly", "renew", "renew briefly", "release", "write"]
        ),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 5),
    ),
    min_size=15,
    max_size=50,
)


class LeasePlay:
    """Do each step on a real lease and on a model of it, and compare."""

    def __init__(self, scripts: Scripts) -> None:
        keys = Keys(scripts.transport.settings.namespace)
        session = uuid.uuid4().hex
        self.scripts = scripts
        self.leases, self.records = Leases(scripts, keep_ms=HOUR), Records(scripts)
        self.lease, self.task = keys.lease(session, "t"), keys.task(session, "t")
        self.owner: str | None = None
        self.epoch, self.live = 0, False
        self.claims: list[HeldLease] = []
        self.happened: list[str] = []

    async def do(self, name: str, owner: str | None, place: int) -> None:
        what, _, briefly = name.partition(" ")
        duration_ms = 1 if briefly else HOUR
        if what == "acquire":
            await self.acquire(owner, duration_ms)
        elif self.claims:
            held = self.claims[max(0, len(self.claims) - 1 - place)]
            await getattr(self, what)(held, duration_ms)
        if briefly:
            await clock_passes(self.scripts, await clock_ms(self.scripts) + 1)

    def is_current(self, held: HeldLease) -> bool:
        return (held.owner, held.epoch) == (self.owner, self.epoch)

    async def acquire(self, owner: str | None, duration_ms: int) -> None:
        held = await self.leases.acquire(self.lease, duration_ms=duration_ms, owner=owner)
        if self.live and self.owner != owner:
            assert held is None
            self.happened.append("held by another")
            return
        assert held is not None
        again = owner is not None and self.owner == owner
        assert held.epoch == self.epoch if again else held.epoch > self.epoch
        self.owner, self.epoch, self.live = held.owner, held.epoch, duration_ms == HOUR
        self.happened.append("acquired again" if again else "acquired")
        self.claims.append(held)

    async def renew(self, held: HeldLease, duration_ms: int) -> None:
        lost = await outcome(self.leases.renew(held, duration_ms=duration_ms), LeaseLost)
        if self.is_current(held):
            assert lost is None
            self.live = duration_ms == HOUR
            self.happened.append("renewed")
        else:
            self.check_lost(held, lost, "renewal")

    async def write(self, held: HeldLease, _: int) -> None:
        call = self.records.save(self.task, {}, ttl_ms=HOUR, fence=held.fence)
        saved = await outcome(call, LeaseLost)
        # A lease given back is its last owner's until somebody takes it.
        if held.epoch == self.epoch:
            assert isinstance(saved, int)
            self.happened.append("written")
        else:
            self.check_lost(held, saved, "write")

    async def release(self, held: HeldLease, _: int) -> None:
        await self.leases.release(held)
        if self.is_current(held):
            self.owner, self.live = None, False
            self.happened.append("released")

    def check_lost(self, held: HeldLease, lost: object, what: str) -> None:
        assert isinstance(lost, LeaseLost)
        assert (lost.epoch, lost.current) == (held.epoch, self.epoch)
        self.happened.append(f"lost {what}")


async def play(scripts: Scripts, steps: list[tuple[str, str | None, int]]) -> list[str]:
    lease = LeasePlay(scripts)
    for step in steps:
        await lease.do(*step)
    return lease.happened


@pytest.mark.fuzz
def test_leases_are_what_the_model_says(settings: Settings) -> None:
    wanted = {"acquired", "acquired again", "held by another", "renewed", "written", "released"}
    explore(settings, STEPS, play, wanted=wanted | {"lost renewal", "lost write"})


async def test_of_4_processes_one_owns_at_a_time_and_no_stale_write_stands(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**shared, "does": "own", "times": 40}] * 4
    results = await run_processes("use_primitives", arguments)
    epochs = [epoch for result in results for epoch in result]
    assert all(result == sorted(result) for result in results)
    assert len(set(epochs)) == 160
    rows = await Log(scripts, keys.updates("s"), Bounds(0, HOUR)).read_all()
    written = [int(row.id.split(b"-")[0]) for row in rows]
    assert written == sorted(written)
    assert len(rows) > 160


async def test_a_kept_lease_is_renewed_until_it_is_taken_over(scripts: Scripts, keys: Keys) -> None:
    lease = keys.lease("s", "t")
    leases = Leases(scripts, keep_ms=HOUR)
    held = await leases.acquire(lease, duration_ms=1)
    assert held is not None
    lost: list[LeaseLost] = []

    async def expires() -> int:
        return int((await fields(scripts, lease))["expires"])

    with leases.keep(held, duration_ms=90, on_lost=lost.append):
        first = await expires()

        async def renewed() -> bool:
            return await expires() > first

        await eventually(renewed, "the lease is renewed")
        assert not lost
        later = held.epoch + 1
        await ask(scripts, "HSET", lease, "epoch", later, "owner", "other", "claim", "other")
        await eventually(lambda: lost, "the owner learns of it")
    assert (lost[0].epoch, lost[0].current) == (held.epoch, later)
    assert not lost[0].released
    before = await expires()
    await clock_passes(scripts, await clock_ms(scripts) + 60)
    assert await expires() == before


@asynccontextmanager
async def behind(settings: Settings, proxy: CommandProxy) -> AsyncGenerator[Leases]:
    """Give leases of a client behind a proxy."""
    url = type(settings.url)(proxy.url)
    transport = Transport(settings.model_copy(update={"url": url}))
    try:
        yield Leases(Scripts(transport), keep_ms=HOUR)
    finally:
        await transport.aclose()


async def test_a_lease_that_cannot_be_given_back_replaces_no_result(
    scripts: Scripts, settings: Settings, keys: Keys
) -> None:
    lease = keys.lease("s", "t")
    url = settings.url.get_secret_value()
    async with CommandProxy(url) as proxy, behind(settings, proxy) as leases:
        held = await leases.acquire(lease, duration_ms=HOUR)
        assert held is not None
        with proxy.answer("release_lease", OOM):
            await leases.give_back(held)
        assert (await fields(scripts, lease))["owner"] == held.owner.encode()
        with proxy.answer("release_lease", OOM), pytest.raises(StoreFull):
            await leases.release(held)
        await leases.give_back(held)
        assert (await fields(scripts, lease))["owner"] == b""


async def test_a_claim_that_is_cancelled_before_its_reply_holds_nothing(
    scripts: Scripts, settings: Settings, keys: Keys
) -> None:
    lease, url = keys.lease("s", "t"), settings.url.get_secret_value()
    async with CommandProxy(url) as proxy, behind(settings, proxy) as leases:
        claiming = asyncio.create_task(leases.acquire(lease, duration_ms=HOUR))

        async def cancel() -> None:
            claiming.cancel()

        with proxy.meanwhile("acquire_lease", cancel):
            await asyncio.wait({claiming})
            assert claiming.cancelled()

            async def is_free() -> bool:
                return not await leases.is_held(lease)

            await eventually(is_free, "what was granted is given back")
    assert (await fields(scripts, lease))["epoch"] != b"0"


async def test_a_lease_is_given_back_by_a_caller_that_is_cancelled_at_that(
    settings: Settings, keys: Keys
) -> None:
    """As anyio does it, at each wait of a scope that is cancelled."""
    lease, url = keys.lease("s", "t"), settings.url.get_secret_value()
    read, released = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        read.set()
        await released.wait()

    async with CommandProxy(url) as proxy, behind(settings, proxy) as leases:
        held = await leases.acquire(lease, duration_ms=HOUR)
        assert held is not None

        async def release() -> None:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await leases.give_back(held)

        with proxy.meanwhile("look_lease", hold):
            # What is sent behind it waits.
            reading = asyncio.create_task(leases.is_held(lease))
            await read.wait()
            releasing = asyncio.create_task(release())
            await asyncio.wait({releasing})
            assert releasing.cancelled()
            released.set()
            assert await reading
        assert not await leases.is_held(lease)


@pytest.mark.chaos
async def test_a_kept_lease_outlives_a_server_that_does_not_answer(
    scripts: Scripts, settings: Settings, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    lease = keys.lease("s", "t")
    async with Proxy(settings.url.get_secret_value()) as proxy:
        url = type(settings.url)(proxy.url)
        transport = Transport(settings.model_copy(update={"url": url, "call_timeout_s": 0.2}))
        leases = Leases(Scripts(transport), keep_ms=HOUR)
        try:
            held = await leases.acquire(lease, duration_ms=HOUR)
            assert held is not None
            lost: list[LeaseLost] = []
            with leases.keep(held, duration_ms=300, on_lost=lost.append):
                proxy.refuse()
                proxy.cut()
                await ask(scripts, "HSET", lease, "expires", 0)
                await eventually(
                    lambda: caplog.text.count("could not be renewed") > 1, "it tries again"
                )
                proxy.refuse(refusing=False)

                async def renewed() -> bool:
                    return (await fields(scripts, lease))["expires"] != b"0"

                await eventually(renewed, "the lease is renewed")
            assert not lost
        finally:
            await transport.aclose(drain_s=0)


async def test_a_lease_is_renewed_while_it_is_wanted(scripts: Scripts, keys: Keys) -> None:
    leases = Leases(scripts, keep_ms=HOUR)
    held = await leases.acquire(keys.lease("s", "limit"), duration_ms=150)
    assert held is not None
    lost: list[LeaseLost] = []
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(len(asked) < 2)
        return asked[-1]

    with leases.keep(held, duration_ms=150, on_lost=lost.append, wanted=wanted):

        async def expired() -> bool:
            return not await leases.is_held(held.key)

        await eventually(expired, "the lease runs out")
    assert not lost
    assert asked == [True, True, False]


class CountedLeases(Leases):
    """Leases of which the renewals are counted, and that of ``slow`` waits."""

    def __init__(self, scripts: Scripts, *, slow: str = "") -> None:
        super().__init__(scripts, keep_ms=HOUR)
        self.slow, self.go_on = slow, asyncio.Event()
        self.renewed: Counter[str] = Counter()

    async def renew(self, held: HeldLease, *, duration_ms: int) -> None:
        """Renew a lease, and count it."""
        self.renewed[held.key] += 1
        if held.key == self.slow:
            await self.go_on.wait()
        await super().renew(held, duration_ms=duration_ms)

    async def hold(self, *keys: str) -> list[HeldLease]:
        """Take leases for an hour."""
        held = [await self.acquire(key, duration_ms=HOUR) for key in keys]
        return [lease for lease in held if lease is not None]


async def test_leases_are_renewed_at_common_moments(scripts: Scripts, keys: Keys) -> None:
    leases = CountedLeases(scripts)
    held = await leases.hold(*(keys.lease("s", str(n)) for n in range(24)))
    lost: list[LeaseLost] = []
    with ExitStack() as kept:
        for lease in held:
            renewal = leases.keep(lease, duration_ms=300, on_lost=lost.append)
            kept.enter_context(renewal)
            timer = renewal._next
            assert isinstance(timer, SharedTimer)
            # Of which there are 30 in a lease, so that those of one moment leave in one write.
            moment = timer._moment._when_s / 0.01
            assert moment == pytest.approx(round(moment), rel=0, abs=1e-3)
            await clock_passes(scripts, await clock_ms(scripts) + 1)
        await eventually(
            lambda: all(leases.renewed[lease.key] > 5 for lease in held), "all are renewed"
        )
    assert (len(held), lost) == (24, [])


async def test_neither_a_slow_renewal_nor_one_that_fails_delays_another(
    scripts: Scripts, keys: Keys
) -> None:
    slow, failing, good = (keys.lease("s", name) for name in ("slow", "failing", "good"))
    leases = CountedLeases(scripts, slow=slow)
    held = await leases.hold(slow, failing, good)
    await ask(scripts, "DEL", failing)
    await ask(scripts, "SET", failing, "no lease", "PX", HOUR)
    lost: list[LeaseLost] = []
    with ExitStack() as kept:
        for lease in held:
            kept.enter_context(leases.keep(lease, duration_ms=90, on_lost=lost.append))
        await eventually(lambda: leases.renewed[good] > 3, "the good one is renewed")
        # One that fails is tried again sooner.
        assert leases.renewed[failing] > leases.renewed[good]
        assert leases.renewed[slow] == 1
        leases.go_on.set()
        await eventually(lambda: leases.renewed[slow] > 1, "the slow one goes on")
    assert not lost


async def test_a_renewal_that_is_stopped_before_or_while_it_is_sent_reports_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    leases = CountedLeases(scripts, slow=keys.lease("s", "slow"))
    (held,) = await leases.hold(leases.slow)
    lost: list[LeaseLost] = []
    renewals = [leases.keep(held, duration_ms=90, on_lost=lost.append) for _ in range(2)]
    await eventually(lambda: leases.renewed[held.key] == 2, "both renew")
    for renewal in renewals:
        renewal.stop()
        renewal.stop()
    await leases.release(held)
    leases.go_on.set()
    await renewals[0].renew()
    assert not lost
    (other,) = await leases.hold(keys.lease("s", "other"))
    with leases.keep(other, duration_ms=HOUR, on_lost=lost.append) as renewal:
        await leases.release(other)
        await renewal.renew()
        await renewal.renew()
        assert [error.released for error in lost] == [True]


def test_a_renewal_can_be_stopped_when_its_loop_has_ended(settings: Settings) -> None:
    lost: list[LeaseLost] = []

    async def begin() -> Renewal:
        transport = Transport(settings)
        leases = CountedLeases(Scripts(transport))
        (held,) = await leases.hold(Keys(settings.namespace).lease("s", "ended"))
        await transport.aclose()
        return leases.keep(held, duration_ms=HOUR, on_lost=lost.append)

    asyncio.run(begin()).stop()
    assert not lost
