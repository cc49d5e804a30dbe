"""What a header says in words is compared with the body. The loader binds the names by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable

import pytest

from redis_state.errors import ConfigError
from redis_state.scripts.header import parse
from redis_state.scripts.loader import lua_folder

MAX_SCRIPT_LINES = 60
MAX_PART_LINES = 20

_INCLUDE = re.compile(r"^-- @include (\w+)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_KEY = re.compile(
    r"-- KEYS +\S+ +(?! |(?:long: )?(?:string|hash|list|set|zset|stream|pub/sub)(?:e?s)?\b).*"
)
_REPLY = re.compile(r"-- {3,}\{ *'([A-Z][A-Z_]*)'.*\}")
_STRING_OR_COMMENT = re.compile(
    r"""('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|--\[\[.*?\]\]|--[^\n]*""", re.DOTALL
)
_INPUT_WORD = re.compile(r"\b(KEYS|ARGV)\b")
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_RETURNED_WORD = re.compile(r"\breturn\s*(?:keep_reply\()?\{\s*['\"]([A-Z][A-Z_]*)['\"]")
_TABLE_WORD = re.compile(r"\{\s*['\"]([A-Z][A-Z_]*)['\"]")
_RETURNED_NAME = re.compile(r"\breturn\s+(\w+)[ \t]*(?:$|;|\bend\b)", re.MULTILINE)
_REMOVING = re.compile(r"\bredis\.p?call\('(DEL|UNLINK|HDEL|ZREM\w*|LTRIM|XTRIM|SET|RENAME)'")
_REPEATED = re.compile(r"\b(once|repetition)\b")
_WALKING = re.compile(r"\bredis\s*\.\s*p?call\s*\(\s*['\"](KEYS|SCAN)['\"]", re.IGNORECASE)
_SECTIONS = ["sentence", "KEYS", "ARGV", "Returns", "Emits"]


def _texts(folder: Traversable) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _texts(entry)
        elif entry.name.endswith(".lua"):
            found[entry.name.removesuffix(".lua")] = entry.read_text(encoding="utf-8")
    return found


PARTS = _texts(lua_folder() / "lib")
SCRIPTS = {
    name: text
    for area in lua_folder().iterdir()
    if area.is_dir() and area.name != "lib"
    for name, text in _texts(area).items()
}


def test_each_script_does_what_its_header_says() -> None:
    assert SCRIPTS
    found = {name: list(_script_problems(name, text, PARTS)) for name, text in SCRIPTS.items()}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_each_part_is_small_and_takes_no_inputs() -> None:
    found = {name: list(_part_problems(name, text)) for name, text in PARTS.items()}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_each_script_that_removes_remembers_its_call_or_says_why_a_repetition_is_harmless() -> None:
    silent = [
        name
        for name, text in SCRIPTS.items()
        if _REMOVING.search(text)
        and "\n-- @once\n" not in text
        and not _REPEATED.search(text.partition("\n-- KEYS")[0])
    ]
    assert silent == []


def _script_problems(name: str, text: str, parts: Mapping[str, str]) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"the name is not verb_noun in snake_case: {name}"
    try:
        header, _ = parse(name, text)
    except ConfigError as error:
        yield str(error)
        return
    head, body = _split(text)
    code, replies = _code(body), list[str]()
    yield from _form_problems(head, replies)
    if not replies:
        yield "no reply is declared under Returns"
    if (count := len(_lines(code))) > MAX_SCRIPT_LINES:
        yield f"{count} lines of code, {MAX_SCRIPT_LINES} are allowed"
    for found in _INPUT_WORD.finditer(code):
        yield f"the body mentions {found.group(1)}"
    whole = _with_parts(text, parts)
    functions = set(_FUNCTION.findall(whole))
    for given in (*header.keys, *header.arguments):
        table = given.name.partition(".")[0]
        if not re.search(rf"(?<![\w.])({re.escape(given.name)}\b|{table}\b(?!\.))", code):
            yield f"{given.name} is declared and not used"
        if table in functions:
            yield f"{given.name} hides the function of an included part"
    yield from _reply_problems(replies, _code(whole))
    yield from _walking_problems(code)


def _part_problems(name: str, text: str) -> Iterator[str]:
    code = _code(text)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"the name is not snake_case: {name}"
    if (count := len(_lines(code))) > MAX_PART_LINES:
        yield f"{count} lines of code, {MAX_PART_LINES} are allowed"
    if found := _INPUT_WORD.search(code):
        yield f"a part takes its inputs as parameters, not from {found.group(1)}"
    yield from _walking_problems(code)


def _walking_problems(code: str) -> Iterator[str]:
    for found in _WALKING.finditer(code):
        yield f"calls {found.group(1).upper()}"


def _split(text: str) -> tuple[list[str], str]:
    """Cut the leading block of comments off, without the marks at its end."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    head = [line for line in lines[:end] if not line.startswith("-- @")]
    return head, "\n".join(lines[end:])


def _form_problems(head: list[str], replies: list[str]) -> Iterator[str]:
    """Yield what is wrong with the form, and list the replies."""
    section, sentence = "sentence", list[str]()
    for line in head:
        starts = re.match(r"-- (KEYS|ARGV|Returns|Emits)\b", line)
        if starts is not None:
            if _SECTIONS.index(starts.group(1)) < _SECTIONS.index(section):
                yield f"{starts.group(1)} stands after {section}"
            section = starts.group(1)
            if _KEY.fullmatch(line):
                yield f"does not begin with the type of the key: {line}"
        elif section == "sentence":
            sentence.append(line)
        elif section == "Returns" and (reply := _REPLY.match(line)):
            replies.append(reply.group(1))
        elif not line.startswith("--   "):
            yield f"neither a declaration nor an indented continuation: {line}"
    if not re.match(r"-- [A-Z].*", "".join(sentence)):
        yield "the header does not begin with a sentence"
    if not "".join(sentence).rstrip().endswith("."):
        yield "the sentence of the header has no full stop"


def _with_parts(text: str, parts: Mapping[str, str]) -> str:
    return _INCLUDE.sub(lambda found: _with_parts(parts[found.group(1)], parts), text)


def _code(text: str) -> str:
    """Remove the comments; strings stay."""
    return _STRING_OR_COMMENT.sub(lambda found: found.group(1) or "", text)


def _lines(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if line.strip()]


def _reply_problems(replies: list[str], code: str) -> Iterator[str]:
    returned = set(_RETURNED_WORD.findall(code))
    for name in set(_RETURNED_NAME.findall(code)):
        returned |= set(re.findall(rf"\b{name}\s*=\s*\{{\s*['\"]([A-Z][A-Z_]*)['\"]", code))
    for word in sorted(returned - set(replies)):
        yield f"{word} is returned and not declared"
    for word in sorted(set(replies) - set(_TABLE_WORD.findall(code))):
        yield f"{word} is declared and not returned"


GOOD = """\
-- Renew a lease that is still held.
-- KEYS lease     hash: owner, epoch
-- ARGV owner     worker id
-- ARGV ttl_ms    int: milliseconds
-- ARGV fields..  names and values
--   in pairs
-- Returns
--   {'OK', epoch}
--   {'LOST'}  when another owner holds it
-- Emits nothing
-- @include held_by
-- @lasting

if not held_by(lease, owner) then return {'LOST'} end
for i = 1, #fields, 2 do redis.call('HSET', lease, fields[i], fields[i + 1]) end
redis.call('PEXPIRE', lease, ttl_ms)
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
        ("-- ARGV ttl_ms    int: milliseconds", "-- ARGV ttl_ms", "name  meaning"),
        ("-- Returns\n--   {'OK', epoch}\n", "-- Returns\n", "OK is returned and not declared"),
        ("--   {'LOST'}", "--   {'TAKEN'}", "TAKEN is declared and not returned"),
        ("lease, ttl_ms)", "lease, 5000)", "ttl_ms is declared and not used"),
        ("held_by(lease, owner)", "held_by(KEYS[1], owner)", "the body mentions KEYS"),
        ("ARGV owner ", "ARGV held_by ", "held_by hides the function"),
        ("-- Emits nothing\n", "-- Emits nothing\n-- Returns\n", "Returns stands after Emits"),
        ("--   in pairs", "-- in pairs", "neither a declaration nor"),
        ("return reply", "redis.call('SCAN', 0)\nreturn reply", "calls SCAN"),
        ("return reply", "ttl_ms = 1\n" * 60 + "return reply", "are allowed"),
    ],
)
def test_checker_finds_what_breaks_the_rules(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = list(_script_problems("renew_lease", GOOD.replace(old, new), HELD_BY))
    assert any(problem in one for one in found), found


def test_checker_finds_inputs_in_parts() -> None:
    found = list(_part_problems("first", "return ARGV[1]\n"))
    assert found == ["a part takes its inputs as parameters, not from ARGV"]
