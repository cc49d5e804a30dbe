"""One call of every script of graphs, listings and their items."""

from __future__ import annotations

from tests.support.script_calls.names import SESSION, Call
from tests.support.scripts.graphs import GRAPH_ROW, drop_checkpoints
from tests.support.scripts.keys import (
    adk_keys,
    graph_keys,
    graph_listing,
)
from tests.support.scripts.replies import HOUR

CALLS: dict[str, Call] = {
    "put_checkpoint": lambda s, k: s.put_checkpoint(
        graph_keys(k, SESSION),
        mark=None,
        listed=False,
        place=b"%:1",
        parent=b"",
        row=GRAPH_ROW,
        ttl_ms=HOUR,
        values=[b"%:i1 c", b"v"],
    ),
    "put_graph_writes": lambda s, k: s.put_graph_writes(
        graph_keys(k, SESSION),
        mark=None,
        listed=False,
        place=b"%:1",
        task="t",
        ttl_ms=HOUR,
        writes=[b"0", b"c", b"v"],
    ),
    "read_checkpoints": lambda s, k: s.read_checkpoints(
        graph_keys(k, SESSION), most_bytes=100, places=[b"%:", b"%:1"]
    ),
    "read_bases": lambda s, k: s.read_bases(
        graph_keys(k, SESSION), most_bytes=100, names=[b"%:i1 c"]
    ),
    "page_checkpoints": lambda s, k: s.page_checkpoints(
        graph_keys(k, SESSION), high=b"(%;", low=b"[%:", size=10, most_bytes=100
    ),
    "walk_deltas": lambda s, k: s.walk_deltas(
        graph_keys(k, SESSION), place=b"%:1", most=10, channels=[b"c", b"c"]
    ),
    "list_checkpoints": lambda s, k: s.list_checkpoints(
        graph_keys(k, SESSION), high=b"(%;", low=b"[%:", size=10
    ),
    "list_graph_namespaces": lambda s, k: s.list_graph_namespaces(
        graph_keys(k, SESSION), after=b"", size=10
    ),
    "watch_graph_puts": lambda s, k: s.watch_graph_puts(
        graph_keys(k, SESSION), watch="w", ttl_ms=HOUR
    ),
    "drop_checkpoints": lambda s, k: drop_checkpoints(s, k, b"%:1", thread=SESSION),
    "delete_graph_thread": lambda s, k: s.delete_graph_thread(graph_keys(k, SESSION), mark=None),
    "enter_listing": lambda s, k: s.enter_listing(graph_listing(k), entry=b"t", ttl_ms=HOUR),
    "renew_listing": lambda s, k: s.renew_listing(graph_listing(k), entry=b"t", ttl_ms=HOUR),
    "read_listing": lambda s, k: s.read_listing(graph_listing(k), start=b"-", size=10),
    "leave_listing": lambda s, k: s.leave_listing(graph_listing(k), entry=b"t", stamp=b""),
    "unlist_missing": lambda s, k: s.unlist_missing(graph_listing(k), entry=b"t", stamp=b""),
    "list_store_namespaces": lambda s, k: s.list_store_namespaces(
        graph_listing(k), start=b"-", size=10, most=10
    ),
    "save_listed": lambda s, k: s.save_listed(
        k.llama_handler(SESSION),
        {"document": b"d"},
        indexes=[k.llama_handlers(), k.llama_running(), k.llama_handlers_of(SESSION)],
        write="w",
        ttl_ms=HOUR,
        member=SESSION,
        listed=2,
    ),
    "drop_listed": lambda s, k: s.drop_listed(
        k.llama_handler(SESSION), indexes=[k.llama_handlers()], member=SESSION
    ),
    "write_adk_session": lambda s, k: s.write_adk_session(
        adk_keys(k, SESSION),
        expected=0,
        write="w",
        updated="1.0",
        ttl_ms=HOUR,
        max_rows=10,
        row_id=b"",
        row=b"",
        of_session=(b"s:\xed\xa0\x80", b"1"),
        of_user=(b"s:a", b"1"),
        of_app=(),
    ),
    "delete_adk_session": lambda s, k: s.delete_adk_session(adk_keys(k, SESSION)),
    "put_store_item": lambda s, k: s.put_store_item(
        k.graph_item("n", SESSION), value=b"{}", ttl_ms=HOUR
    ),
    "read_store_item": lambda s, k: s.read_store_item(k.graph_item("n", SESSION), refresh=True),
}
