"""However a text comes in pieces, no row of it ends within a token of its session."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from hypothesis import example, given
from hypothesis import strategies as st

from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.transport.keys import token_scopes
from redis_state.worker.tasks.messaging.whole_tokens import WholeTokens
from redis_state.worker.tasks.waitpoints.pause_model import token_of

SESSIONS = ["s", "order-7", "a/b", "", "é" * 50]
PARTS = ["token", "quoted", "word", ".", " ", "scope"]


def _text(session_id: str, parts: list[str]) -> str:
    token = token_of(session_id, "a secret", "pause:x#1")
    scope = token_scopes(session_id)
    written = {
        "token": token,
        "quoted": scope[-1] + token[len(scope[0]) :],
        "half": token_of(session_id, "another", "pause:x#1")[: len(scope[0]) + 9],
        "scope": scope[0],
    }
    return "".join(written.get(part, part) for part in parts)


def _rows(session_id: str, pieces: list[str]) -> list[str]:
    """Publish each piece as soon as it is there, as a writer does that flushes."""
    tokens, waiting = WholeTokens(session_id), ""
    rows: list[str] = []
    for piece in pieces:
        row, waiting = tokens.divide(waiting + piece, is_last=False)
        rows.append(row)
        assert len(waiting) <= 32 or row
        while row:
            row, waiting = tokens.divide(waiting, is_last=False)
            rows.append(row)
    while waiting:
        row, waiting = tokens.divide(waiting, is_last=True)
        assert row
        rows.append(row)
    return rows


@given(
    session_id=st.sampled_from(SESSIONS),
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5),
    is_cut=st.booleans(),
    sizes=st.lists(st.integers(1, 45), min_size=1, max_size=8),
)
@example(session_id="s", parts=["token", "word"], is_cut=True, sizes=[1])
@example(session_id="a/b", parts=["quoted", "token", "word"], is_cut=False, sizes=[3])
def test_a_token_stands_in_one_row_and_nothing_is_lost(
    *, session_id: str, parts: list[str], is_cut: bool, sizes: list[int]
) -> None:
    # The last one may be the begin of another.
    text, pieces = _text(session_id, [*parts, *["half"] * is_cut]), list[str]()
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    rows = _rows(session_id, pieces)
    assert "".join(rows) == text
    shown: Any = "".join(cut_tokens(session_id, rows))
    secret = token_of(session_id, "a secret", "pause:x#1").rpartition(".")[2]
    assert not [at for at in range(24) if secret[at : at + 8] in shown]
    assert shown.count("[token]") == parts.count("token") + parts.count("quoted")
