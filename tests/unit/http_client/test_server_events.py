"""Server-sent events, read as the specification says, from chunks of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("httpx", reason="needs the http extra")

from redis_state.http_client.requests import server_events
from redis_state.http_client.requests.server_events import EventReader, ServerEvent

TEXT = (
    b"\xef\xbb\xbfretry: 200\n\n:\n\nid: 1-5\nevent: PROGRESS\ndata: {}\n\n"
    b"data\ndata: b\r\n\r\nid: 2-6\r\rid:\x00\nother: x\nretry: soon\ndata:  c\n\n"
    b"event: resync\ndata: {}\n\nid: 9-9\ndata: cut"
)
FOUND = [
    ServerEvent("PROGRESS", b"{}", "1-5"),
    ServerEvent("message", b"\nb", "1-5"),
    ServerEvent("message", b" c", "2-6"),
    ServerEvent("resync", b"{}", "2-6"),
]


@given(st.lists(st.integers(0, len(TEXT)), max_size=12).map(sorted))
def test_chunks_of_any_size_give_the_same_events(cuts: list[int]) -> None:
    reader, found = EventReader(), list[ServerEvent]()
    for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True):
        found += reader.feed(TEXT[start:end])
    assert found == FOUND
    # An event that was cut leaves the cursor at the one before.
    assert (reader.cursor, reader.retry_ms) == ("2-6", 200)


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "_LONGEST_BYTES", 100)
    reader = EventReader("7-7")
    assert reader.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(ValueError, match="no end"):
        reader.feed(b"x" * 20)
    assert reader.cursor == "7-7"


def test_lines_of_an_event_without_end_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_events, "_LONGEST_BYTES", 100)
    reader = EventReader()
    # Each event has its own size.
    assert len([event for _ in range(30) for event in reader.feed(b"data: 12345678\n\n")]) == 30
    with pytest.raises(ValueError, match="no end"):
        reader.feed(b"data\n" * 101)
    reader = EventReader()
    assert reader.feed(b"data\n" * 100) == []


def test_a_long_event_that_comes_in_many_chunks_is_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    line_end = server_events._LINE_END

    class Counting:
        def split(self, text: bytes) -> list[bytes]:
            searched.append(len(text))
            return line_end.split(text)

    monkeypatch.setattr(server_events, "_LINE_END", Counting())
    reader = EventReader()
    chunks = [b"data: ", *[b"x" * 1_000] * 1_000, b"\r", b"\n\r\n"]
    found = [event for chunk in chunks for event in reader.feed(chunk)]
    assert found == [ServerEvent("message", b"x" * 1_000_000, None)]
    assert sum(searched) <= 1_000_100
