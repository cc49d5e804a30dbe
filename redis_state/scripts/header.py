"""The header of a Lua script: what it declares, and the statements that give it names.

A header has a line for each key and each argument, in their order, and one for each property:

    -- KEYS record    hash: version, write and the fields given
    -- KEYS log.rows  stream: the field ``rows`` of the Lua table ``log``
    -- ARGV ttl_ms    int: a number
    -- ARGV release   flag: true for a call that gives 1
    -- ARGV fields..  a list: whatever follows. Another may stand before it, which is then counted
    -- ARGV rows..    long: a list of any length, which stands in ``rows`` from ``rows_from`` on
    -- @lasting

The first word behind a key, such as a hash, is its type. It may be of any if "or" follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from redis_state.errors import ConfigError
from redis_state.transport.wire.script import Input

_PROPERTY = re.compile(r"^-- @(each|once|idempotent|lasting|reading)[ \t]*\n", re.MULTILINE)
_DECLARATION = re.compile(r"^-- (?:KEYS|ARGV)\b.*$", re.MULTILINE)
_INPUT = re.compile(
    r"-- (KEYS|ARGV) +([a-z]\w*(?:\.[a-z]\w*)?)(\.\.)? +(?:(int|flag|long):(?= ))?[^\n]*\S[^\n]*"
)
_TYPE = re.compile(
    r"-- KEYS +\S+ +(?:long: )?(hash|list|set|stream|string|zset)(?:e?s)?\b(?!: or )"
)
_WRITTEN = {"": "{}", "int": "tonumber({})", "flag": "{} == '1'"}
# Behind how many of its own a script that runs once is given the key of its reply, and how long
# that is kept: its first key decides on the slot.
_OWN_BEFORE = {"KEYS": 1, "ARGV": 0}


@dataclass
class Header:
    """What a header declares."""

    properties: set[str] = field(default_factory=set[str])
    keys: list[Input] = field(default_factory=list[Input])
    arguments: list[Input] = field(default_factory=list[Input])

    def preamble(self) -> Iterator[str]:
        """List the statements that name the inputs, and answer a call that comes again."""
        tables: dict[str, list[str]] = {}
        plain: list[tuple[str, str]] = []
        for given, place in (*self._placed("KEYS"), *self._placed("ARGV")):
            if given.is_list:
                continue
            value = _WRITTEN[given.kind].format(place)
            table, dot, item = given.name.partition(".")
            if dot:
                tables.setdefault(table, []).append(f"{item} = {value}")
            else:
                plain.append((given.name, value))
        if plain:
            names, values = zip(*plain, strict=True)
            yield f"local {', '.join(names)} = {', '.join(values)}"
        for table, items in tables.items():
            yield f"local {table} = {{ {', '.join(items)} }}"
        yield from self._lists("KEYS")
        yield from self._lists("ARGV")
        if "once" in self.properties:
            yield "local done, keep_reply = once(KEYS[2], ARGV[1])"
            yield "if done then return done end"

    def parts(self) -> list[str]:
        """List the parts that the statements need."""
        is_counted = sum(given.is_list for given in self.arguments) > 1
        needed = {
            "each": "each" in self.properties,
            "once": "once" in self.properties,
            "counted": is_counted,
        }
        return [part for part, is_needed in needed.items() if is_needed]

    def _inputs(self, kind: str) -> list[Input]:
        return self.keys if kind == "KEYS" else self.arguments

    def _placed(self, kind: str) -> list[tuple[Input, str]]:
        """List inputs, each with its place as Lua reads it."""
        before = _OWN_BEFORE[kind] if "once" in self.properties else len(self._inputs(kind))
        return [
            (given, f"{kind}[{number + (number > before)}]")
            for number, given in enumerate(self._inputs(kind), start=1)
        ]

    def _lists(self, kind: str) -> Iterator[str]:
        lists = [(given, place) for given, place in self._placed(kind) if given.is_list]
        at = lists[0][1].removeprefix(f"{kind}[").removesuffix("]") if lists else ""
        for given, _ in lists[:-1]:
            yield f"local {given.name}, behind_{given.name} = counted({kind}, {at})"
            at = f"behind_{given.name}"
        for given, _ in lists[-1:]:
            name = given.name if "." in given.name else f"local {given.name}"
            # Lua's stack has room for some thousand results of unpack.
            copied = f"{name} = {{ unpack({kind}, {at}) }}"
            yield f"{name}, {given.name}_from = {kind}, {at}" if given.kind == "long" else copied


def parse(script: str, text: str) -> tuple[Header, str]:
    """Read a script's header, and return it with the text without the properties.

    Errors: ConfigError.
    """
    header = Header()
    for name in _PROPERTY.findall(text):
        if name in header.properties:
            raise ConfigError(f"{script}: '-- @{name}' stands there twice")
        header.properties.add(name)
    for line in _DECLARATION.findall(text):
        declared = _INPUT.fullmatch(line)
        if declared is None:
            raise ConfigError(f"{script}: write '-- KEYS name  meaning', not {line!r}")
        kind, name, dots, written = declared.groups()
        inputs = header.keys if kind == "KEYS" else header.arguments
        held = _TYPE.match(line)
        inputs.append(Input(name, written or "", bool(dots), held.group(1) if held else ""))
    for problem in (*_problems(header), *_kind_problems(header)):
        raise ConfigError(f"{script}: {problem}")
    return header, _PROPERTY.sub("", text)


def _problems(header: Header) -> Iterator[str]:
    names = [given.name for given in (*header.keys, *header.arguments)]
    tables = {name.partition(".")[0] for name in names if "." in name}
    for name in names:
        if names.count(name) > 1 or name in tables:
            yield f"{name!r} is declared twice"
    for inputs in (header.keys, header.arguments):
        if inputs != sorted(inputs, key=lambda given: given.is_list):
            yield "a list stands behind all that is none"
    lists_of_keys = [given for given in header.keys if given.is_list]
    lists = [given for given in header.arguments if given.is_list]
    if len(lists_of_keys) > 1 or any("." in given.name for given in lists[:-1]):
        yield "a list that is counted is of arguments, and in no table"
    if "each" in header.properties and (lists_of_keys or not header.keys):
        yield "'-- @each' needs a fixed number of keys"
    if "once" in header.properties and len(header.keys) == len(lists_of_keys):
        yield "'-- @once' needs a first key"
    if "idempotent" in header.properties and "once" not in header.properties:
        yield "'-- @idempotent' belongs to '-- @once'"


def _kind_problems(header: Header) -> Iterator[str]:
    counted = [given for given in header.arguments if given.is_list][:-1]
    for given in (*header.keys, *header.arguments):
        may_be_long = given.is_list and "." not in given.name and given not in counted
        may_be_one = not given.is_list and given not in header.keys
        fits = may_be_long if given.kind == "long" else may_be_one
        if given.kind and not fits:
            yield f"{given.name!r} cannot be {given.kind}"
