"""Every family of keys is a session's, a user's, or named with the reason why it is nobody's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

import pytest

from redis_state.erasure import key_owners
from redis_state.erasure.walking import owner_of_memory
from redis_state.memory.keys import MemoryKey
from redis_state.transport.key_text import escape
from redis_state.transport.keys import Keys

TABLES: dict[str, Mapping[str, object]] = {
    "SESSION": key_owners.SESSION,
    "SESSION_ELSEWHERE": key_owners.SESSION_ELSEWHERE,
    "USER": key_owners.USER,
    "OTHERS": key_owners.OTHERS,
}


def test_every_family_is_in_one_table() -> None:
    methods = {
        name
        for part in Keys.__bases__
        for name, method in vars(part).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    listed = [name for table in TABLES.values() for name in table]
    assert len(listed) == len(set(listed))
    assert methods - set(listed) == set(), "whose are they? see redis_state/erasure/key_owners.py"
    assert set(listed) - methods == set()


def test_the_kinds_are_those_of_the_keys() -> None:
    keys = Keys("ns")
    samples = {
        "session_id": "S",
        "router_session_id": "S",
        "session_or_trace": "S",
        "token": "S.x",
        "beside": "ns:v1:{S}:x",
        "thread_id": "S",
    }
    for name, (kind, _) in key_owners.SESSION.items():
        method = getattr(keys, name)
        given = [samples.get(each, "x") for each in inspect.signature(method).parameters]
        made = method(*given)
        text = made if isinstance(made, str) else made.rows
        assert re.fullmatch(rf"ns:v1:{{S}}:{kind}(:.*)?", text), name


@pytest.mark.parametrize("part", ["a", "a:b", "100%", "%3A", "ü", " x"])
def test_a_memory_names_its_owner(part: str) -> None:
    key = MemoryKey("t" + part, "u" + part, "s" + part)
    assert owner_of_memory(escape("key", key.composite())) == key
    assert owner_of_memory(escape("key", "x" * 200)) is None
    plain = owner_of_memory(escape("key", "session"))
    assert plain is not None
    assert plain.session_id == "session"
    entry = owner_of_memory(escape("key", "kv:v1:t:u:s:task:7:space:name"))
    assert entry == MemoryKey("t", "u", "s")
