"""Where two JSON documents differ, place by place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

# When something happened, not what. Only where a state has dates of its own: what a tool was given
# or has written may have the same names.
_AT = r"(\[\d+\]|\.\d+)"
_STEP = rf"state\.execution\.(currentStep|stepExecutions{_AT}\.step)"
_DATES = re.compile(
    "|".join(
        (
            r"state\.(createdAt|updatedAt)",
            r"state\.execution\.(startedAt|completedAt|currentStepStartedAt)",
            rf"state\.execution\.stepExecutions{_AT}\.(startedAt|completedAt|endedAt|duration)",
            rf"{_STEP}\.toolExecutions{_AT}\.(startedAt|completedAt|endedAt)",
            rf"{_STEP}\.inferenceResponse\.(createdAt|updatedAt)",
            rf"{_STEP}\.(inputMessages|outputMessages){_AT}\.createdAt",
            rf"state\.context\.messageStore\.sections{_AT}\.messages{_AT}\.createdAt",
        )
    )
)
_COMPARED = ("definition", "state")
_SHOWN = 60


class _Nothing:
    """Stands where one side has nothing at all, not even null."""


NOTHING = _Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two documents differ, and what stands there in each."""

    place: str
    one: Any
    other: Any

    def to_dict(self) -> dict[str, Any]:
        """Write it. A side without a value there has no key."""
        sides = {"one": self.one, "other": self.other}
        return {"place": self.place} | {
            name: value for name, value in sides.items() if value is not NOTHING
        }

    def __str__(self) -> str:
        # Keys are foreign text: they do not steer the terminal.
        place = "".join(char if char.isprintable() else "\ufffd" for char in self.place)
        return f"{place}: {_short(self.one)} -> {_short(self.other)}"


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, dates: bool
) -> Iterator[Difference]:
    """Compare the definitions and states of two sessions in their wire form."""
    for name in _COMPARED:
        yield from _compare(name, one.get(name, NOTHING), other.get(name, NOTHING), dates=dates)


def _compare(place: str, one: Any, other: Any, *, dates: bool) -> Iterator[Difference]:
    inside = _inside(one, other)
    if inside is None:
        if type(one) is not type(other) or one != other:
            yield Difference(place, one, other)
        return
    for name, ones, others in inside:
        if dates or not _DATES.fullmatch(place + name):
            yield from _compare(place + name, ones, others, dates=dates)


def _inside(one: Any, other: Any) -> list[tuple[str, Any, Any]] | None:
    """Pair what two documents hold, by place; None if they cannot be paired."""
    if isinstance(one, dict) and isinstance(other, dict):
        ones, others = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        names = {**ones, **others}
        return [(f".{n}", ones.get(n, NOTHING), others.get(n, NOTHING)) for n in names]
    if isinstance(one, list) and isinstance(other, list):
        items = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        pairs = zip_longest(*items, fillvalue=NOTHING)
        return [(f"[{at}]", *pair) for at, pair in enumerate(pairs)]
    return None


def _short(value: Any) -> str:
    if value is NOTHING:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
