from __future__ import annotations

import re

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from redis_state.errors import InvalidField
from redis_state.transport.key_text import entry_id, escape
from redis_state.transport.keys import WATCH_SHARDS, Keys, binding_member, token_digest

# Any text at all, and the texts that are likeliest to be mistaken for one another.
NASTY = st.sampled_from(
    [
        "",
        "%",
        "%~",
        "-",
        "=",
        "%25",
        "%~" + "0" * 64,
        "{",
        "}",
        "{}",
        "a{b}c",
        "*",
        "?",
        "[a]",
        "\x00",
        "\n",
        " ",
        ":",
        "a:b",
        "\\",
        "\ud800",
        "\udfff",
        "é",
        "e\u0301",
        "x" * 64,
        "x" * 65,
        "x" * 120,
        "x" * 121,
        "x" * 10_240,
        "x" * 10_239 + "y",
        "\u20ac" * 3_500,
    ]
)
TEXT = NASTY | st.text(st.characters(exclude_categories=()), max_size=200)
PART = re.compile(r"(%~[0-9a-f]{64}|%|[A-Za-z0-9_.~%-]{1,120})")


def text_of(data: bytes) -> str:
    return data.decode("latin-1")


@given(TEXT, TEXT)
def test_two_texts_never_make_one_name(one: str, other: str) -> None:
    same = one == other
    event("the same" if same else "two texts")
    assert (escape("id", one) == escape("id", other)) == same
    assert (entry_id("id", one) == entry_id("id", other)) == same
    assert (token_digest(one) == token_digest(other)) == same


@given(st.lists(TEXT, min_size=2, max_size=40, unique=True))
def test_many_texts_make_as_many_names(texts: list[str]) -> None:
    assert len({escape("id", text) for text in texts}) == len(texts)
    assert len({entry_id("id", text) for text in texts}) == len(texts)


@given(st.none() | TEXT, TEXT, st.none() | TEXT, TEXT)
def test_two_bindings_never_make_one_member(
    context: str | None, task: str, other_context: str | None, other_task: str
) -> None:
    same = (context, task) == (other_context, other_task)
    members = binding_member(context, task), binding_member(other_context, other_task)
    assert (members[0] == members[1]) == same
    assert binding_member(None, task) != binding_member("", task)
    assert binding_member("a", task) != binding_member(task, "a") or task == "a"


@given(TEXT)
def test_a_name_is_short_and_plain(text: str) -> None:
    assert PART.fullmatch(escape("id", text))
    # A name is a name's own name only if nothing had to be escaped.
    assert escape("id", escape("id", text)) != escape("id", text) or escape("id", text) == text
    assert 1 <= len(entry_id("id", text)) <= 66


@given(TEXT, TEXT, TEXT)
def test_all_keys_of_a_session_share_its_slot(session: str, task: str, token: str) -> None:
    keys = Keys("ns")
    found = [
        keys.task(session, task),
        keys.tasks(session),
        keys.journal(session, task),
        keys.lease(session, task),
        keys.trajectory(session, task),
        keys.traces(session),
        keys.unreadable(session),
    ]
    for log in (keys.updates(session), keys.steering(session)):
        found += [log.rows, log.ids, log.channel]
    of_token = keys.session_token(f"{escape('session_id', session)}.{token.replace('.', '')}")
    assert of_token is not None
    found.append(of_token)
    tag = "{" + escape("id", session) + "}"
    for key in found:
        assert key.startswith(f"ns:v1:{tag}:")
        assert (key.count("{"), key.count("}")) == (1, 1)
        assert key.isascii()
        assert key.isprintable()
        assert not set(key) & set("*?[] \\")
    assert len(set(found)) == len(found)


@given(TEXT, TEXT)
def test_two_scopes_never_share_a_key(one: str, other: str) -> None:
    keys = Keys()

    def names(scope: str) -> set[str]:
        logs = [keys.events(scope), keys.planner_events(scope), keys.updates(scope)]
        bound = binding_member(None, "t")
        plain = {keys.memory(scope), keys.pause(scope), keys.bindings(scope)}
        return plain | {keys.binding(scope, bound)} | {log.rows for log in logs}

    assert len(names(one)) == 7
    assert bool(names(one) & names(other)) == (one == other)


@pytest.mark.parametrize("name", ["", *"{}*?[]:\\ \t\x7f\ud800\u00a0", "a b", "{a", "a:"])
def test_a_namespace_that_could_break_out_is_refused(name: str) -> None:
    with pytest.raises(InvalidField, match="namespace"):
        Keys(name)


@pytest.mark.parametrize("name", ["rs", "my-app_2.prod", "tüv"])
def test_a_plain_namespace_is_taken(name: str) -> None:
    assert Keys(name).tasks("s") == f"{name}:v1:{{s}}:tasks"


@pytest.mark.parametrize("token", ["", "nodot", ".x", "a b.x", "{s}.x", "s*.x", "x" * 131 + ".x"])
def test_what_no_worker_made_is_no_session_token(token: str) -> None:
    assert Keys().session_token(token) is None


@pytest.mark.parametrize("value", [None, 1, b"x"])
def test_what_is_not_text_is_named(value: object) -> None:
    for name in (escape, entry_id):
        with pytest.raises(InvalidField, match="trace_id"):
            name("trace_id", value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidField, match="token"):
        Keys().session_token(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_shards_have_slots_of_their_own() -> None:
    assert len({Keys().watch(shard) for shard in range(WATCH_SHARDS)}) == WATCH_SHARDS


def test_no_id_names_a_slot_of_the_store() -> None:
    keys = Keys()
    own = [
        *(keys.open_pauses(), keys.dead_tasks(), keys.schedules(), keys.workers(), keys.jobs()),
        *(keys.watch(3), keys.task_index(3).index, keys.agent_sessions(7), keys.graph_threads(0)),
        *(keys.events_watch(3), keys.a2a_watch(15)),
    ]
    for key in own:
        tag = key.partition("{")[2].partition("}")[0]
        assert tag.startswith("/"), key
        for name in (tag, tag[1:], "/" + tag):
            assert not {keys.tasks(name), keys.events(name).rows, keys.lease(name, "t")} & set(own)
            assert keys.tasks(name).partition("}")[0] != key.partition("}")[0]
