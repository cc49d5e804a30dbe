"""Sessions of the OpenAI Agents SDK over TLS on links that die, and when history goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("agents", reason="needs the openai-agents extra")
pytest.importorskip("arq", reason="needs the worker extra")

from agents import Runner, TResponseInputItem

from redis_state import RedisStateStore, Settings
from redis_state.errors import LeaseLost
from redis_state.integrations.openai_agents import RedisStateSession
from tests.support.agents.openai_agents import QUIET, agent_of, scripted
from tests.support.payloads import KEYS
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy, certificate, tls_server_context

CALLERS, ITEMS = 40, 6


def said(text: str) -> Any:
    """Make an item."""
    return {"role": "user", "content": text}


async def contents(session: RedisStateSession) -> list[Any]:
    """Return what stands in a session."""
    found: Any = await session.get_items()
    return [item["content"] for item in found]


async def talk(store: RedisStateStore, number: int) -> None:
    """Add items one by one, and take every second one away."""
    session = RedisStateSession(f"s {number} {{}}*:%\u00e9", store=store)
    async with session:
        for item in range(ITEMS):
            await session.add_items([said(f"{number}/{item} {'x' * 2_000}")])
            if item % 2:
                taken: Any = await session.pop_item()
                assert taken["content"].startswith(f"{number}/{item} ")
    left = [each.split(" ")[0] for each in await contents(session)]
    assert left == [f"{number}/{item}" for item in range(0, ITEMS, 2)]


async def change(store: RedisStateStore, number: int) -> None:
    """Change a session in one step each: take away and add, replace all, clear; each twice."""
    session = RedisStateSession(f"c {number} {{}}*:%\u00e9", store=store)

    def items(name: str, count: int) -> list[Any]:
        return [said(f"{number}/{name}{item} {'x' * 200}") for item in range(count)]

    async def left() -> list[str]:
        return [each.split(" ")[0].partition("/")[2] for each in await contents(session)]

    for _ in range(2):
        # More than one step has.
        await session.change_once("a", items=items("a", 70))
    assert await left() == [f"a{item}" for item in range(70)]
    for _ in range(2):
        await session.change_once("b", items=items("b", 2), pops=69)
    assert await left() == ["a0", "b0", "b1"]
    assert await session._atomic_replace_items(items("c", 1))
    assert await left() == ["c0"]
    for _ in range(2):
        await session.change_once("d", items=items("d", 1), clears=True)
    await session.change_once("b", items=items("b", 2), pops=69)
    assert await left() == ["d0"]
    await session.clear_session()
    assert await left() == []


@pytest.mark.parametrize("do", [talk, change])
async def test_40_callers_have_their_own_items_though_their_links_die(
    settings: Settings, tmp_path: Path, do: Callable[[RedisStateStore, int], Awaitable[None]]
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        proxy.dribble(700)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        # Three dead links may come one after the other, each found by its own deadline.
        changed: dict[str, Any] = {"url": SecretStr(url), "payload_keys": SecretStr(KEYS[0])}
        changed["call_timeout_s"] = 20.0
        async with RedisStateStore(settings.model_copy(update=changed)) as store:
            # Before it is connected, calls have the shorter deadline of connecting.
            assert await store.load_memory_state("first") is None
            callers = [asyncio.ensure_future(do(store, n)) for n in range(CALLERS)]
            cut = 0
            while cut < 3 and not all(each.done() for each in callers):
                await asyncio.wait(callers, timeout=0.1)
                cut += proxy.half_open()
            await asyncio.gather(*callers)
        assert cut


async def test_a_run_has_its_result_though_its_claim_cannot_be_given_back(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:

        class Parted(RedisStateSession):
            """The link dies after what the model wrote was added."""

            async def add_items(self, items: list[TResponseInputItem]) -> None:
                await super().add_items(items)
                if items[-1].get("role") == "assistant":
                    proxy.refuse()
                    proxy.cut()

        changed: dict[str, Any] = {"url": SecretStr(proxy.url), "call_timeout_s": 1.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as store:
            parted = Parted("s", store=store, lease_s=0.5)
            agent = agent_of(scripted("done"))
            result = await Runner.run(agent, "go", session=parted, run_config=QUIET)
            assert result.final_output == "done"
            assert proxy.refused
    async with RedisStateStore(settings) as store:
        # The claim runs out.
        session = RedisStateSession("s", store=store)
        await session.add_items([said("next")])
        assert [item.get("role") for item in await session.get_items()] == [
            "user",
            "assistant",
            "user",
        ]


async def test_a_claim_of_a_lost_history_writes_nothing_and_the_next_run_goes_on() -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:
        session = RedisStateSession("s", store=store)
        await session.add_items([said("kept")])
        await server.mark()
        async with session:
            await session.add_items([said("lost")])
            await server.go_back()
            # The claim was made after the mark: the server does not know it.
            with pytest.raises(LeaseLost):
                await session.add_items([said("late")])
        assert await contents(session) == ["kept"]
        async with session:
            await session.add_items([said("new")])
        assert await contents(session) == ["kept", "new"]


async def test_changes_that_a_restored_backup_has_are_known_and_lost_ones_are_made_again() -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:
        session = RedisStateSession("s", store=store)
        await session.change_once("kept", items=[said("a"), said("b")])
        await server.mark()
        await session.change_once("lost", items=[said("c")], pops=1)
        await session.change_once("cleared", items=[said("d")], clears=True)
        assert await contents(session) == ["d"]
        await server.go_back()
        assert await contents(session) == ["a", "b"]
        # Who is not sure repeats all that it did, under the same names.
        for _ in range(2):
            await session.change_once("kept", items=[said("a"), said("b")])
            await session.change_once("lost", items=[said("c")], pops=1)
        assert await contents(session) == ["a", "c"]
        await session.change_once("cleared", items=[said("d")], clears=True)
        assert await contents(session) == ["d"]
        await server.go_back()
        await session.clear_session()
        await session.add_items([said("new")])
        assert await contents(session) == ["new"]
