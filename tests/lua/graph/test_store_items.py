from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import graph_listing
from tests.support.scripts.replies import HOUR, ask, lives, no, ok


async def test_an_item_is_put_read_and_refreshed(scripts: Scripts, keys: Keys) -> None:
    item = keys.graph_item("n", "k")
    assert await scripts.read_store_item(item, refresh=True) == no(ReplyCode.MISSING)
    assert await scripts.put_store_item(item, value=b"1", ttl_ms=HOUR) == ok()
    first = await scripts.read_store_item(item, refresh=False)
    assert first.facts[0] == b"1"
    assert first.facts[1] == first.facts[2]
    await ask(scripts, "PEXPIRE", item, 5000)
    await scripts.read_store_item(item, refresh=False)
    assert (await lives(scripts, item))[0] <= 5000
    await scripts.read_store_item(item, refresh=True)
    assert HOUR - 60_000 < (await lives(scripts, item))[0] <= HOUR
    await scripts.put_store_item(item, value=b"2", ttl_ms=2 * HOUR)
    again = await scripts.read_store_item(item, refresh=False)
    assert (again.facts[0], again.facts[1], again.facts[3]) == (b"2", first.facts[1], b"7200000")


async def test_namespaces_of_items_are_listed_once(scripts: Scripts, keys: Keys) -> None:
    listing = graph_listing(keys)
    for entry in (b"a\0\0x", b"a\0\0y", b"a\0\0\0", b"a\0b\0\0x", b"ab\0\0x", b"a\0\x01\0\0x"):
        await scripts.enter_listing(listing, entry=entry, ttl_ms=HOUR)
    first = await scripts.list_store_namespaces(listing, start=b"-", size=2, most=9)
    assert first == ok(0, b"a", b"a\0\x01")
    rest = await scripts.list_store_namespaces(listing, start=b"[a\0\x01\0\1", size=9, most=9)
    assert rest == ok(0, b"a\0b", b"ab")
    # What has expired is taken out before.
    for entry in (b"ab\0\0x", b"a\0b\0\0x", b"a\0\0x"):
        await ask(scripts, "ZADD", listing.expiries, 1, entry)
    assert await scripts.list_store_namespaces(listing, start=b"-", size=9, most=2) == ok(2)
    left = await scripts.list_store_namespaces(listing, start=b"-", size=9, most=2)
    assert left == ok(1, b"a", b"a\0\x01")
