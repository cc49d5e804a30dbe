"""The Durable Streams protocol over HTTP: rights, headers, waiting, events, and who leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.gateway import (
    AccessScope,
    ApiKeys,
    Gateway,
    GatewayLimits,
    create_gateway,
    make_api_key,
)
from redis_state.gateway.auth import files
from redis_state.gateway.durable_streams import feeds, frames
from redis_state.gateway.durable_streams.frames import event_lines
from redis_state.testing import eventually
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.event_streams import PATIENCE_S
from tests.support.http.gateway import BASE, caller, code_of, stranger, tokens
from tests.support.scripts.replies import ask

TEXT = {"content-type": "text/plain"}
ALL = ("read:*", "write:*")


@pytest.fixture
async def app(store: RedisStateStore) -> AsyncIterator[Gateway]:
    """Serve a gateway without a pool."""
    made = create_gateway(
        store, auth=tokens, limits=GatewayLimits(max_append_bytes=1_000, long_poll_s=0.5)
    )
    yield made
    await made.aclose()


def at(path: str) -> str:
    return f"/v1/stream/{path}"


async def make(http: httpx.AsyncClient, path: str, data: str = "", **headers: str) -> str:
    given = TEXT | {name.replace("_", "-"): value for name, value in headers.items()}
    made = await http.put(at(path), content=data, headers=given)
    assert made.status_code == 201, made.text
    return made.headers["stream-next-offset"]


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read": ("GET", {}),
    "long-poll": ("GET", {"params": {"offset": "now", "live": "long-poll"}}),
    "events": ("GET", {"params": {"offset": "now", "live": "sse"}}),
    "look": ("HEAD", {}),
    "create": ("PUT", {"headers": TEXT}),
    "append": ("POST", {"headers": TEXT, "content": "x"}),
    "close": ("POST", {"headers": {"stream-closed": "true"}}),
    "delete": ("DELETE", {}),
}
READS = {"read", "long-poll", "events", "look"}


@pytest.mark.parametrize(
    ("scopes", "rights"),
    [
        ([], ""),
        (["read:stream:team/other", "write:stream:tea/*", "read:session:team/a"], ""),
        (["admin:session:team/a", "steer:*", "submit:*", "resolve:*"], ""),
        (["read:stream:team/a/*", "write:stream:team/a/*"], ""),
        (["read:stream:team/a"], "r"),
        (["read:stream:team/*"], "r"),
        (["write:stream:team/*"], "w"),
        (["admin:stream:team/a"], "rw"),
        (["admin:*"], "rw"),
    ],
)
async def test_who_may_what_with_a_stream(app: Gateway, scopes: list[str], rights: str) -> None:
    async with caller(app, "owner", *ALL) as owner, caller(app, "eve", *scopes) as eve:
        await make(owner, "team/a", "secret", stream_closed="true")
        before = (await owner.head(at("team/a"))).headers
        for name, (method, given) in CALLS.items():
            needed = "r" if name in READS else "w"
            if needed in rights:
                continue
            known = await eve.request(method, at("team/a"), **given)
            unknown = await eve.request(method, at("team/none"), **given)
            assert known.status_code == (404 if needed == "r" else 403), name
            assert "secret" not in known.text
            # Nobody can tell a stream that is there from one that is not.
            assert (unknown.status_code, unknown.text) == (known.status_code, known.text)
        after = (await owner.head(at("team/a"))).headers
        assert after["stream-next-offset"] == before["stream-next-offset"]
        for name, (method, given) in CALLS.items():
            if ("r" if name in READS else "w") not in rights:
                continue
            allowed = await eve.request(method, at("team/a"), **given)
            assert allowed.status_code not in (401, 403, 404), name


async def test_what_a_writer_calls_a_page_is_an_inert_one_of_no_origin(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        page = {"content-type": "text/html"}
        await http.put(at("page"), content="<script>alert(1)</script>", headers=page)
        read = await http.get(at("page"))
    assert read.headers["content-type"] == "text/html"
    rules = read.headers["content-security-policy"].split("; ")
    assert "sandbox" in rules
    assert "default-src 'none'" in rules


async def test_a_fork_needs_the_right_to_read_its_origin(app: Gateway) -> None:
    async with (
        caller(app, "owner", *ALL) as owner,
        caller(app, "eve", "write:stream:eve/*", "read:stream:eve/*") as eve,
    ):
        await make(owner, "secret", "of the owner")
        for origin in ("/v1/stream/secret", "/v1/stream/none", "/v1/stream/eve%2F..%2Fsecret"):
            made = await eve.put(at("eve/f"), headers=TEXT | {"stream-forked-from": origin})
            assert made.status_code in (400, 404), origin
        assert (await eve.get(at("eve/f"))).status_code == 404


async def test_without_credentials_there_is_no_stream(app: Gateway) -> None:
    async with stranger(app) as http:
        for name, (method, given) in CALLS.items():
            assert (await http.request(method, at("a"), **given)).status_code == 401, name


@pytest.mark.parametrize(
    "path", ["", "a//b", "a/%2E./b", "%2E%2E/a", "a%2F..%2Fb", "a%00", "a%0Ab", "*", "x" * 1_001]
)
async def test_paths_that_hide_something_are_none(app: Gateway, path: str) -> None:
    async with caller(app, "ann", *ALL) as http:
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            url = httpx.URL(BASE).copy_with(raw_path=at(path).encode())
            answer = await http.request(method, url, headers=TEXT)
            assert answer.status_code in (400, 404, 405), (method, path)


async def test_the_protocols_own_paths_are_not_served(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        answer = await http.put(at("__ds/subscriptions/s"), json={})
        assert (answer.status_code, code_of(answer)) == (501, "not_implemented")


def test_a_scope_over_a_stream_is_a_path() -> None:
    for text in ("read:stream:a", "write:stream:a/b/*", "admin:stream:*a/*"):
        assert str(AccessScope.read(text)) == text
    for text in ("read:stream:", "read:stream:/*", "read:stream:*/*", "read:stream:a/../b"):
        with pytest.raises(InvalidField):
            AccessScope.read(text)


async def test_a_stream_mounted_elsewhere_names_and_forks_itself(store: RedisStateStore) -> None:
    from starlette.applications import Starlette  # noqa: PLC0415

    inner = create_gateway(store, auth=tokens)
    outer = Starlette()
    outer.mount("/agents", inner)
    async with caller(outer, "ann", *ALL) as http:
        made = await http.put("/agents/v1/stream/a/b", content="x", headers=TEXT)
        assert made.headers["location"] == f"{BASE}/agents/v1/stream/a/b"
        forked = await http.put(
            "/agents/v1/stream/f", headers={"stream-forked-from": "/agents/v1/stream/a/b"}
        )
        assert forked.status_code == 201
        assert (await http.get("/agents/v1/stream/f")).text == "x"
    await inner.aclose()


async def test_a_body_that_is_too_large_is_refused(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        await make(http, "s")
        for size, status in ((1_000, 204), (1_001, 413)):
            answer = await http.post(at("s"), content="x" * size, headers=TEXT)
            assert answer.status_code == status
        assert len((await http.get(at("s"))).content) == 1_000


async def test_a_trimmed_offset_is_gone_and_says_where_to_read_on(store: RedisStateStore) -> None:
    bounded = store.settings.model_copy(update={"max_rows_per_stream": 2})
    async with RedisStateStore(bounded) as small:
        app = create_gateway(small, auth=tokens)
        async with caller(app, "ann", *ALL) as http:
            begun = await make(http, "s", "1")
            for data in "2345":
                await http.post(at("s"), content=data, headers=TEXT)
            for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
                gone = await http.get(at("s"), params={"offset": begun} | live)
                assert gone.status_code == 410, live
            error = gone.json()["error"]
            assert (error["reason"], error["missed"]) == ("trimmed", 2)
            rest = await http.get(at("s"), params={"offset": error["resume_after"]})
            assert rest.text == "45"
        await app.aclose()


async def test_a_long_poll_ends_by_rows_by_the_end_and_by_time(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        offset = await make(http, "s", "1")
        waits = {"offset": offset, "live": "long-poll"}
        late = await http.get(at("s"), params=waits)
        assert (late.status_code, late.headers["stream-next-offset"]) == (204, offset)
        polls = [asyncio.create_task(http.get(at("s"), params=waits)) for _ in range(5)]
        await eventually(lambda: _waiting(app) == 5, "five clients wait")
        await http.post(at("s"), content="2", headers=TEXT)
        found = await asyncio.gather(*polls)
        assert {(each.status_code, each.text) for each in found} == {(200, "2")}
        waits["offset"] = found[0].headers["stream-next-offset"]
        last = asyncio.create_task(http.get(at("s"), params=waits))
        await eventually(lambda: _waiting(app) == 1, "a client waits")
        await http.post(at("s"), headers={"stream-closed": "true"})
        ended = await last
        assert (ended.status_code, ended.headers["stream-closed"]) == (204, "true")
        assert "stream-cursor" not in ended.headers


async def test_who_waits_for_a_stream_that_is_deleted_learns_of_it(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        offset = await make(http, "s", "1")
        poll = asyncio.create_task(
            http.get(at("s"), params={"offset": offset, "live": "long-poll"})
        )
        await eventually(lambda: _waiting(app) == 1, "a client waits")
        await http.delete(at("s"))
        assert (await poll).status_code == 404


async def test_a_caller_has_so_many_streams_at_once(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(streams=2, long_poll_s=60))
    async with caller(app, "ann", *ALL) as http:
        # An offset: "now" would be that of a client that is counted already, and may come later.
        waits = {"offset": await make(http, "s"), "live": "long-poll"}
        polls = [asyncio.create_task(http.get(at("s"), params=waits)) for _ in range(2)]
        await eventually(lambda: _waiting(app) == 2, "two clients wait")
        refused = await http.get(at("s"), params=waits)
        assert (refused.status_code, code_of(refused)) == (429, "too_many_streams")
        await http.post(at("s"), content="x", headers=TEXT)
        assert [each.status_code for each in await asyncio.gather(*polls)] == [200, 200]
        assert _waiting(app) == 0
    await app.aclose()


async def test_waiting_clients_are_let_go_when_the_server_ends(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        offset = await make(http, "s")
        polls = [
            asyncio.create_task(http.get(at("s"), params={"offset": offset, "live": live}))
            for live in ("long-poll", "sse")
        ]
        await eventually(lambda: _waiting(app) == 2, "two clients wait")
        app.end_streams()
        poll, events = await asyncio.gather(*polls)
        assert (poll.status_code, poll.headers["stream-next-offset"]) == (204, offset)
        assert offset in events.text
        assert (await http.get(at("s"), params={"offset": offset, "live": "sse"})).is_error


async def test_events_end_after_their_time_and_go_on_from_their_offset(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(events_s=0.2))
    async with caller(app, "ann", *ALL) as http:
        await make(http, "s", "one")
        first = (await http.get(at("s"), params={"offset": "-1", "live": "sse"})).text
        assert first.count("event: data") == 1
        offset = json.loads(first.rpartition("data:")[2])["streamNextOffset"]
        await http.post(at("s"), content="two", headers=TEXT)
        again = (await http.get(at("s"), params={"offset": offset, "live": "sse"})).text
        assert ("data:one" in again, "data:two" in again) == (False, True)
    await app.aclose()


async def test_events_end_once_the_key_of_their_reader_was_removed(
    store: RedisStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    for module in (frames, feeds):
        monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    made = [make_api_key(name, ALL) for name in ("ann", "bob")]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document() for _, kept in made]))
    app = create_gateway(
        store, auth=ApiKeys.from_file(file), limits=GatewayLimits(events_s=3_600.0)
    )
    (ann, _), (bob, kept) = made
    async with (
        stranger(app, authorization=f"Bearer {ann}") as of_ann,
        stranger(app, authorization=f"Bearer {bob}") as of_bob,
    ):
        await make(of_ann, "s", "one")
        ask_for: dict[str, Any] = {"params": {"offset": "-1", "live": "sse"}}
        first = asyncio.create_task(of_ann.get(at("s"), **ask_for))
        other = asyncio.create_task(of_bob.get(at("s"), **ask_for))
        await eventually(lambda: _waiting(app) == 2, "two clients wait")
        file.write_text(json.dumps([kept.document()]))
        async with asyncio.timeout(PATIENCE_S):
            assert "data:one" in (await first).text
        assert (await of_ann.get(at("s"))).status_code == 401
        assert not other.done()
        app.end_streams()
        await other
    await app.aclose()


async def test_a_kept_answer_is_good_until_rows_or_the_end_come(app: Gateway) -> None:
    async with caller(app, "ann", *ALL) as http:
        await make(http, "s", "1")

        async def again(tag: str) -> httpx.Response:
            return await http.get(at("s"), headers={"if-none-match": tag})

        tags = [(await http.get(at("s"))).headers["etag"]]
        assert (await again(f'"x", W/{tags[0]}')).status_code == 304
        for change in ({"content": "2", "headers": TEXT}, {"headers": {"stream-closed": "TRUE"}}):
            await http.post(at("s"), **cast("Any", change))
            found = await again(tags[-1])
            assert found.status_code == 200
            tags.append(found.headers["etag"])
        await http.delete(at("s"))
        await make(http, "s", "1")
        # Another stream of that path has other rows.
        assert (await again(tags[0])).status_code == 200
        assert len(set(tags)) == 3


async def test_a_page_of_another_origin_may_use_streams_if_it_is_allowed(
    store: RedisStateStore,
) -> None:
    page = "https://app.example.com"
    app = create_gateway(store, auth=tokens, cors=[page])
    async with caller(app, "ann", *ALL) as http:
        asked = {
            "origin": page,
            "access-control-request-method": "PUT",
            "access-control-request-headers": "stream-ttl,producer-id,if-none-match",
        }
        assert (await http.options(at("s"), headers=asked)).status_code == 200
        made = await http.put(at("s"), headers=TEXT | {"origin": page})
        assert made.status_code == 201
        assert "stream-next-offset" in made.headers["access-control-expose-headers"].lower()
        other = await http.put(at("t"), headers=TEXT | {"origin": "https://evil.example.com"})
        assert other.status_code == 403
    await app.aclose()


class Reader:
    """One client of a stream's events, over a socket."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def event(self) -> tuple[str, str] | None:
        """Return the name and the data of the next event; None at the end."""
        name, data = "", list[str]()
        async for line in self._lines:
            kind, _, rest = line.partition(":")
            if kind == "event":
                name = rest.strip()
            elif kind == "data":
                data.append(rest.removeprefix(" "))
            elif not line and data:
                return name, "\n".join(data)
        return None


async def test_events_come_as_they_are_appended_to_clients_that_read_and_pass_those_that_do_not(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(max_append_bytes=1 << 20))
    headers = {"authorization": f"Bearer {tokens.mint('ann', ALL)}"}
    async with (
        serving_asgi(app, stop=app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers
        ) as http,
    ):
        offset = await make(http, "s")
        query = {"offset": offset, "live": "sse"}
        async with (
            http.stream("GET", at("s"), params=query),  # reads nothing
            http.stream("GET", at("s"), params=query) as response,
        ):
            reader = Reader(response)
            assert response.headers["content-type"] == "text/event-stream"
            _, control = await reader.event() or ("", "")
            assert json.loads(control)["upToDate"] is True
            rows = [f" row {n}\n" + "x" * 200_000 for n in range(8)]
            for row in rows:
                await http.post(at("s"), content=row, headers=TEXT)
            await http.post(at("s"), headers={"stream-closed": "true"})
            found, ended = "", False
            async with asyncio.timeout(60):
                while (event := await reader.event()) is not None:
                    if event[0] == "data":
                        found += event[1]
                    else:
                        ended = json.loads(event[1]).get("streamClosed", False)
            assert found == "".join(rows)
            assert ended
        await eventually(lambda: _waiting(app) == 0, "both clients have left")
    await app.aclose()


async def test_a_client_that_leaves_a_long_poll_is_counted_out(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(long_poll_s=60))
    headers = {"authorization": f"Bearer {tokens.mint('ann', ALL)}"}
    async with serving_asgi(app, stop=app.end_streams) as port:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(verify=PLAIN, base_url=base, headers=headers) as http:
            await make(http, "s")
            poll = asyncio.create_task(
                http.get(at("s"), params={"offset": "now", "live": "long-poll"})
            )
            await eventually(lambda: _waiting(app) == 1, "a client waits")
            poll.cancel()
            await eventually(lambda: _waiting(app) == 0, "the client is counted out")
    await app.aclose()


@pytest.mark.parametrize(
    ("data", "written"),
    [
        (b"one", b"data:one\n"),
        (b"a\nb\r\nc\rd", b"data:a\ndata:b\ndata:c\ndata:d\n"),
        (b" a", b"data:  a\n"),
        (b"a\n\nevent: control\n\n", b"data:a\ndata:\ndata:event: control\ndata:\ndata:\n"),
        (b"", b"data:\n"),
    ],
)
def test_no_data_ends_its_event(data: bytes, written: bytes) -> None:
    assert event_lines("data", data) == b"event: data\n" + written + b"\n"


def _waiting(app: Gateway) -> int:
    return app._usage.streams


async def test_a_caller_keeps_so_many_streams_in_all_gateways_together(
    store: RedisStateStore,
) -> None:
    apps = [create_gateway(store, auth=tokens, limits=GatewayLimits(kept_streams=5)) for _ in "ab"]
    async with (
        caller(apps[0], "ann", *ALL) as one,
        caller(apps[1], "ann", *ALL) as other,
        caller(apps[1], "bob", *ALL) as bob,
    ):

        async def create(number: int) -> httpx.Response:
            http = (one, other)[number % 2]
            return await http.put(at(str(number % 20)), headers=TEXT)

        # Each of twenty paths is asked for twice, all at once.
        answers = await asyncio.gather(*map(create, range(40)))
        assert {each.status_code for each in answers} == {200, 201, 403}
        made = [number for number, each in enumerate(answers) if each.status_code == 201]
        assert len(made) == 5
        refused = next(each for each in answers if each.status_code == 403)
        assert (code_of(refused), refused.json()["error"]["limit"]) == ("too_many_kept_streams", 5)
        # What is there is found, by a caller without room too.
        assert (await create(made[0])).status_code == 200
        assert (await bob.put(at("bob's"), headers=TEXT)).status_code == 201
        assert (await one.put(at("more"), headers=TEXT)).status_code == 403
        assert (await other.delete(at(str(made[0] % 20)))).status_code == 204
        assert (await one.put(at("more"), headers=TEXT)).status_code == 201
        assert (await one.put(at("even-more"), headers=TEXT)).status_code == 403
    for each in apps:
        await each.aclose()


async def test_room_of_streams_comes_back_when_they_end_and_not_while_they_are_used(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(kept_streams=2))
    async with caller(app, "ann", *ALL) as http:
        for wrong in ({"stream-ttl": "9999999999"}, {"stream-expires-at": "2999-01-01T00:00:00Z"}):
            assert (await http.put(at("wrong"), headers=TEXT | wrong)).status_code == 400
        await make(http, "short", stream_ttl="1")
        await make(http, "used", stream_ttl="1")
        # As uses do, which begin a lifetime again.
        await ask(store.base.scripts, "PEXPIRE", store.base.keys.stream("used").info, 60_000)

        async def there_is_room() -> bool:
            return (await http.put(at("next"), headers=TEXT)).status_code == 201

        assert not await there_is_room()
        await eventually(there_is_room, "the stream that has ended to be counted no more")
        assert (await http.head(at("used"))).status_code == 200
        assert (await http.put(at("last"), headers=TEXT)).status_code == 403
        left = await store.transport.commands.pttl(store.base.keys.streams_of("ann"))
        assert 0 < left <= store.settings.longest_stream_ttl.total_seconds() * 1000
    await app.aclose()
