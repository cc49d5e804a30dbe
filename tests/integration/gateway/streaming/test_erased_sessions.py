"""What a hub has in its memory of a session that is cleared or erased, and what its clients get."""

from __future__ import annotations

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.gateway.streaming.hub import Hub
from redis_state.models import StateUpdate, UpdateType
from redis_state.primitives.log import follower as log_follower
from redis_state.scripts import LogLimits
from redis_state.testing import eventually
from tests.support.http.event_streams import Event, Events
from tests.support.samples import changed
from tests.support.servers.sets.nodes import ask_each

SESSION = "s {1}%\n"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look at a log without a reason."""
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 600)


async def save(store: RedisStateStore, *numbers: int) -> None:
    for n in numbers:
        await store.save_update(
            StateUpdate(
                session_id=SESSION,
                task_id="t",
                update_id=f"u{n}",
                update_type=UpdateType.PROGRESS,
                content={"n": n},
            )
        )


def shown(events: list[Event]) -> list[object]:
    """Name the gaps, and number the rows."""
    return [
        event.data["reason"] if event.name == "resync" else event.content["n"] for event in events
    ]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("cut", [False, True])
async def test_rows_of_a_cleared_session_are_in_no_memory(
    store: RedisStateStore, *, cut: bool
) -> None:
    async with Hub(store) as hub, Events(hub.frames(SESSION, after="$")) as client:
        await client.opened()
        await save(store, 1, 2, 3)
        seen = await client.take(3)
        if cut:
            # The message that they are gone may be lost.
            await ask_each(store.transport, "CLIENT", "KILL", "TYPE", "pubsub")
        await store.clear_session(SESSION)
        await eventually(lambda: hub.held == 0, "the hub keeps no row")
        async with Events(hub.frames(SESSION, after=seen[0].cursor)) as late:
            assert shown(await late.take(1)) == ["trimmed"]
            await save(store, 4)
            assert shown(await late.take(1)) == [4]
        # Who has seen all misses nothing.
        assert shown(await client.take(1)) == [4]


async def test_rows_that_went_without_a_message_are_kept_until_the_next_look(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_CHECK_AGAIN_S", 0.05)
    keys, scripts = store.updates.keys(SESSION), store.base.scripts
    async with Hub(store) as hub, Events(hub.frames(SESSION, after="$")) as client:
        await client.opened()
        for rows in ([1, 2], [3, 4]):
            await save(store, *rows)
            assert shown(await client.take(2)) == rows
            # As processes of earlier versions clear.
            await scripts.change_log(
                keys,
                LogLimits(0, 60_000, announce=False),
                changes=keys.spare,
                name=f"before {rows}",
                most=2,
                clears=True,
                rows_in=[],
            )
            await eventually(lambda: hub.held == 0, "the hub keeps no row")


@pytest.mark.usefixtures("patient")
@pytest.mark.role("admin")
async def test_an_erased_session_is_served_by_no_gateway_and_all_clients_learn_it(
    store: RedisStateStore, settings: Settings
) -> None:
    async with (
        changed(settings) as elsewhere,
        Hub(store) as one,
        Hub(elsewhere) as other,
        Events(one.frames(SESSION, after="$")) as client,
        Events(other.frames(SESSION, after="$")) as distant,
    ):
        await client.opened()
        await distant.opened()
        await save(store, 1, 2, 3)
        seen = await client.take(3)
        assert shown(await distant.take(3)) == [1, 2, 3]
        await store.forget(SESSION)
        for hub, each in ((one, client), (other, distant)):
            gap = (await each.take(1))[0]
            assert (gap.name, gap.data["reason"], gap.data["missed"]) == ("resync", "ahead", None)
            assert hub.held == 0
            async with Events(hub.frames(SESSION, after=seen[0].cursor)) as late:
                assert shown(await late.take(1)) == ["ahead"]
        # As many as before, so that the numbers lead past the old cursors.
        await save(store, 5, 6, 7, 8)
        for hub, each in ((one, client), (other, distant)):
            assert shown(await each.take(4)) == [5, 6, 7, 8]
            async with Events(hub.frames(SESSION, after=seen[0].cursor)) as late:
                assert shown(await late.take(5)) == ["foreign", 5, 6, 7, 8]
