"""Attributes as people write them: NAME=VALUE, for commands and for queries alike."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state.errors import InvalidField
from redis_state.models.attributes import read_attributes

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("acme", "acme"),
        ("7", 7),
        ("true", True),
        ('"7"', "7"),
        ("a=b", "a=b"),
        ("", ""),
        ("null", "null"),
        ("1.5", "1.5"),
        ("[1]", "[1]"),
        (DEEP, DEEP),
    ],
    ids=lambda given: repr(given)[:12],
)
def test_a_value_is_text_unless_json_makes_it_a_number_or_a_bool(written: str, value: Any) -> None:
    found = read_attributes("attribute", [f"name={written}"])["name"]
    assert (type(found), found) == (type(value), value)


def test_the_last_value_of_a_name_counts() -> None:
    assert read_attributes("attribute", ["a=1", "b=2", "a=3"]) == {"a": 3, "b": 2}


def test_one_without_a_sign_of_equality_names_what_it_was_given_as() -> None:
    with pytest.raises(InvalidField, match="--attribute"):
        read_attributes("--attribute", ["tenant"])
