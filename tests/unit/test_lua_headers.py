"""The header of every Lua script is a contract; this compares it with the body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAX_SCRIPT_LINES = 60
MAX_PART_LINES = 20

_CHECKOUT = Path(__file__).parents[2] / "lua"
_INCLUDE = re.compile(r"^[ \t]*-- @include (\w+)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_INPUT = re.compile(r"-- (KEYS|ARGV)\[(\d+)(\.\.)?\] +([a-z][a-z0-9_]*) +(\S.*)")
_KEY_TYPE = re.compile(r"(string|hash|list|set|zset|stream|pub/sub)(e?s)?\b")
_REPLY = re.compile(r"-- {3,}\{ *'([A-Z][A-Z_]*)'.*\}")
_STRING_OR_COMMENT = re.compile(
    r"""('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|--\[\[.*?\]\]|--[^\n]*""", re.DOTALL
)
_FIXED_INDEX = re.compile(r"\b(KEYS|ARGV)\s*\[\s*(\d+)\s*\]")
_NAMING = re.compile(r"local (?!function\b)|\w+\.\w+(, *\w+\.\w+)* *=[^=]")
_INPUT_WORD = re.compile(r"\b(KEYS|ARGV)\b")
_RETURNED_WORD = re.compile(r"\breturn\s*\{\s*['\"]([A-Z][A-Z_]*)['\"]")
_TABLE_WORD = re.compile(r"\{\s*['\"]([A-Z][A-Z_]*)['\"]")
_RETURNED_NAME = re.compile(r"\breturn\s+(\w+)[ \t]*(?:$|;|\bend\b)", re.MULTILINE)
_REMOVING = re.compile(r"\bredis\.p?call\('(DEL|UNLINK|HDEL|ZREM\w*|LTRIM|XTRIM|SET|RENAME)'")
_REPEATED = re.compile(r"\b(once|repetition)\b")
_WALKING = re.compile(r"\bredis\s*\.\s*p?call\s*\(\s*['\"](KEYS|SCAN)['\"]", re.IGNORECASE)


@dataclass
class _Header:
    """What a header declares, and what is wrong with its form."""

    sentence: list[str] = field(default_factory=list[str])
    fixed: dict[str, list[int]] = field(default_factory=lambda: {"KEYS": [], "ARGV": []})
    tails: dict[str, int] = field(default_factory=dict[str, int])
    replies: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])


def _folder() -> Traversable:
    return _CHECKOUT if _CHECKOUT.is_dir() else resources.files("redis_state") / "lua"


def _texts(folder: Traversable) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".lua")), key=lambda f: f.name)
    return {f.name.removesuffix(".lua"): f.read_text(encoding="utf-8") for f in files}


SCRIPTS = _texts(_folder())
PARTS = _texts(_folder() / "lib")


def test_there_are_scripts() -> None:
    assert SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_does_what_its_header_says(name: str) -> None:
    assert list(_script_problems(name, SCRIPTS[name], PARTS)) == []


@pytest.mark.parametrize("name", [name for name in SCRIPTS if _REMOVING.search(SCRIPTS[name])])
def test_script_that_removes_remembers_its_call_or_says_why_a_repetition_is_harmless(
    name: str,
) -> None:
    sentence = SCRIPTS[name].split("\n-- KEYS")[0]
    remembers = "-- @include call_noted\n" in SCRIPTS[name]
    assert remembers or _REPEATED.search(sentence), sentence


@pytest.mark.parametrize("name", PARTS)
def test_part_is_small_and_takes_no_inputs(name: str) -> None:
    assert list(_part_problems(name, PARTS[name], PARTS)) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_has_a_method_of_its_name(name: str) -> None:
    scripts = import_module("redis_state.scripts")
    assert callable(getattr(scripts.Scripts, name, None)), f"Scripts has no method {name}"


def _script_problems(name: str, text: str, parts: Mapping[str, str]) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"the name is not verb_noun in snake_case: {name}"
    head, body = _split(text)
    header = _parse(head)
    yield from header.problems
    whole, missing = _with_parts(body, parts)
    yield from missing
    code = _code(body)
    if (count := len(_lines(code))) > MAX_SCRIPT_LINES:
        yield f"{count} lines of code, {MAX_SCRIPT_LINES} are allowed"
    yield from _input_problems(header, code)
    yield from _block_problems(header, code)
    yield from _reply_problems(header, _code(whole))
    for found in _WALKING.finditer(code):
        yield f"calls {found.group(1).upper()}"


def _part_problems(name: str, text: str, parts: Mapping[str, str]) -> Iterator[str]:
    code = _code(text)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"the name is not snake_case: {name}"
    if (count := len(_lines(code))) > MAX_PART_LINES:
        yield f"{count} lines of code, {MAX_PART_LINES} are allowed"
    if found := _INPUT_WORD.search(code):
        yield f"a part takes its inputs as parameters, not from {found.group(1)}"
    for walking in _WALKING.finditer(code):
        yield f"calls {walking.group(1).upper()}"
    yield from _with_parts(text, parts, path=(name,))[1]


def _split(text: str) -> tuple[list[str], str]:
    """Cut the leading block of comments off; an include already belongs to the body."""
    lines = text.splitlines()
    end = 0
    while end < len(lines) and lines[end].startswith("--") and not _INCLUDE.match(lines[end]):
        end += 1
    return lines[:end], "\n".join(lines[end:])


def _parse(head: list[str]) -> _Header:
    header = _Header()
    section = "sentence"
    order = ["sentence", "KEYS", "ARGV", "Returns", "Emits"]
    for line in head:
        starts = re.match(r"-- (KEYS|ARGV|Returns|Emits)\b", line)
        if starts is None:
            _continue(header, section, line)
            continue
        if order.index(starts.group(1)) < order.index(section):
            header.problems.append(f"{starts.group(1)} stands after {section}")
        section = starts.group(1)
        if section in header.fixed:
            _declare(header, section, line)
    if not header.sentence or not re.match(r"-- [A-Z].*", header.sentence[0]):
        header.problems.append("the header does not begin with a sentence")
    elif not header.sentence[-1].rstrip().endswith("."):
        header.problems.append("the sentence of the header has no full stop")
    if not header.replies:
        header.problems.append("no reply is declared under Returns")
    return header


def _continue(header: _Header, section: str, line: str) -> None:
    if section == "sentence":
        header.sentence.append(line)
    elif section == "Returns" and (reply := _REPLY.match(line)):
        header.replies.append(reply.group(1))
    elif not line.startswith("--   "):
        header.problems.append(f"neither a declaration nor an indented continuation: {line}")


def _declare(header: _Header, kind: str, line: str) -> None:
    declared = _INPUT.fullmatch(line.rstrip())
    if declared is None:
        header.problems.append(f"not of the form '-- {kind}[n] name  meaning': {line}")
        return
    index, tail, description = int(declared.group(2)), declared.group(3), declared.group(5)
    if kind == "KEYS" and not _KEY_TYPE.match(description):
        header.problems.append(f"does not begin with the type of the key: {description}")
    expected = len(header.fixed[kind]) + 1
    if kind in header.tails:
        header.problems.append(f"{kind}[{index}] stands after the tail of {kind}")
    elif index != expected:
        header.problems.append(f"{kind}[{index}] stands where {kind}[{expected}] is due")
    elif tail:
        header.tails[kind] = index
    else:
        header.fixed[kind].append(index)


def _with_parts(
    text: str, parts: Mapping[str, str], path: tuple[str, ...] = ()
) -> tuple[str, list[str]]:
    """Put the included parts in, and say which are missing or go in a circle."""
    problems: list[str] = []

    def part(found: re.Match[str]) -> str:
        name = found.group(1)
        if name in path:
            problems.append("includes go in a circle: " + " -> ".join([*path, name]))
        elif name not in parts:
            problems.append(f"includes {name}, which lua/lib does not have")
        else:
            whole, missing = _with_parts(parts[name], parts, (*path, name))
            problems.extend(missing)
            return whole
        return ""

    return _INCLUDE.sub(part, text), problems


def _code(text: str) -> str:
    """Remove the comments; strings stay."""
    return _STRING_OR_COMMENT.sub(lambda found: found.group(1) or "", text)


def _lines(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if line.strip()]


def _input_problems(header: _Header, code: str) -> Iterator[str]:
    used: dict[str, set[int]] = {"KEYS": set(), "ARGV": set()}
    for found in _FIXED_INDEX.finditer(code):
        used[found.group(1)].add(int(found.group(2)))
    computed = {found.group(1) for found in _INPUT_WORD.finditer(_FIXED_INDEX.sub("", code))}
    for kind, declared in header.fixed.items():
        tail = header.tails.get(kind)
        for index in sorted(set(declared) - used[kind]):
            yield f"{kind}[{index}] is declared and not used"
        for index in sorted(used[kind] - set(declared)):
            if tail is None or index < tail:
                yield f"{kind}[{index}] is used and not declared"
        if tail is None and kind in computed:
            yield f"{kind} is used with a computed index and no tail is declared"
        if tail is not None and kind not in computed and not any(i >= tail for i in used[kind]):
            yield f"{kind}[{tail}..] is declared and not used"


def _block_problems(header: _Header, code: str) -> Iterator[str]:
    """Only the naming at the top has an index; a declared tail may be walked anywhere.

    To name is to set a local, or a field of one, without asking the server.
    """
    statement = ""
    in_block = True
    for line in _lines(code):
        # A local may run over several lines: it goes on while a bracket or a comma is open.
        goes_on = in_block and (_open(statement) or statement.rstrip().endswith((",", "=")))
        statement = f"{statement} {line}" if goes_on else line
        in_block = in_block and (goes_on or bool(_NAMING.match(line))) and "redis." not in line
        if in_block:
            continue
        for found in _FIXED_INDEX.finditer(line):
            yield f"{found.group(1)}[{found.group(2)}] appears after the first locals: {line}"
        for found in _INPUT_WORD.finditer(_FIXED_INDEX.sub("", line)):
            if found.group(1) not in header.tails:
                yield f"{found.group(1)} appears after the first locals: {line}"


def _open(statement: str) -> bool:
    return sum(map(statement.count, "({[")) > sum(map(statement.count, ")}]"))


def _reply_problems(header: _Header, code: str) -> Iterator[str]:
    returned = set(_RETURNED_WORD.findall(code))
    for name in set(_RETURNED_NAME.findall(code)):
        returned |= set(re.findall(rf"\b{name}\s*=\s*\{{\s*['\"]([A-Z][A-Z_]*)['\"]", code))
    for word in sorted(returned - set(header.replies)):
        yield f"{word} is returned and not declared"
    for word in sorted(set(header.replies) - set(_TABLE_WORD.findall(code))):
        yield f"{word} is declared and not returned"


GOOD = """\
-- Renew a lease that is still held.
-- KEYS[1] lease  hash: owner, epoch
-- ARGV[1] owner   worker id
-- ARGV[2] ttl_ms  milliseconds
-- ARGV[3..] fields  names and values
--   in pairs
-- Returns
--   {'OK', epoch}
--   {'LOST'}  when another owner holds it
-- Emits nothing
local lease = KEYS[1]
local owner, ttl_ms = ARGV[1],
  tonumber(ARGV[2])
local terms = { owner = owner }
terms.ttl_ms, terms.first = ttl_ms, ARGV[3]

-- @include held_by
if not held_by(lease, owner) then return {'LOST'} end
for i = 3, #ARGV, 2 do redis.call('HSET', lease, ARGV[i], ARGV[i + 1]) end
local reply = {'OK', redis.call('HGET', lease, 'epoch')} -- not {'STALE'}
return reply
"""
HELD_BY = {"held_by": "local function held_by(key, owner)\n  return true\nend\n"}


def test_checker_accepts_a_script_that_keeps_the_rules() -> None:
    assert list(_script_problems("renew_lease", GOOD, HELD_BY)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("-- Renew a lease that is still held.\n", "", "does not begin with a sentence"),
        ("still held.", "still held", "no full stop"),
        ("hash: owner, epoch", "the lease", "the type of the key"),
        ("-- ARGV[2] ttl_ms  milliseconds", "-- ARGV[2] ttl_ms", "not of the form"),
        ("-- ARGV[2]", "-- ARGV[4]", "is due"),
        ("-- ARGV[3..] fields  names and values\n--   in pairs\n", "", "no tail is declared"),
        ("-- KEYS[1] lease  hash: owner, epoch\n", "", "KEYS[1] is used and not declared"),
        ("-- Returns\n--   {'OK', epoch}\n", "-- Returns\n", "OK is returned and not declared"),
        ("--   {'LOST'}", "--   {'TAKEN'}", "TAKEN is declared and not returned"),
        ("  tonumber(ARGV[2])", "  5000", "ARGV[2] is declared and not used"),
        ("held_by(lease, owner)", "held_by(KEYS[1], owner)", "after the first locals"),
        ("local terms", "redis.call('GET', KEYS[1])\nlocal terms", "after the first locals"),
        ("= { owner = owner }", "= redis.call('GET', KEYS[1])", "after the first locals"),
        ("-- @include held_by", "-- @include held_bye", "does not have"),
        ("return reply", "redis.call('SCAN', 0)\nreturn reply", "calls SCAN"),
        ("return reply", "ttl_ms = 1\n" * 60 + "return reply", "are allowed"),
    ],
)
def test_checker_finds_what_breaks_the_rules(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = list(_script_problems("renew_lease", GOOD.replace(old, new), HELD_BY))
    assert any(problem in one for one in found), found


def test_checker_finds_inputs_and_circles_in_parts() -> None:
    parts = {"first": "-- @include second\n", "second": "-- @include first\nreturn ARGV[1]\n"}
    assert "circle" in " ".join(_part_problems("first", parts["first"], parts))
    assert "not from ARGV" in " ".join(_part_problems("second", parts["second"], parts))
