"""The resolver of Lua includes, on folders of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

from redis_state.errors import ConfigError
from redis_state.scripts import SCRIPTS
from redis_state.scripts.loader import Library, lua_folder
from redis_state.transport.wire.script import Input, Script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.lua").write_text(text)


def load(folder: Path, name: str = "main") -> Script:
    return Library(folder).load(name)


def test_part_stands_where_it_is_included(folder: Path) -> None:
    write(folder, {"main": "a\n-- @include part\nb\n", "lib/part": "p\n\n"})
    assert load(folder).text == "a\np\nb\n"


def test_nested_parts_come_before_their_users_and_only_once(folder: Path) -> None:
    write(
        folder,
        {
            "main": "-- @include upper\n-- @include lower\n-- @include upper\nmain\n",
            "lib/upper": "-- @include lower\nupper\n",
            "lib/lower": "lower\n",
        },
    )
    assert load(folder).text.split() == ["lower", "upper", "main"]


def test_blank_lines_and_spaces_after_an_include_do_no_harm(folder: Path) -> None:
    write(folder, {"main": "-- @include part \t\n\nb\n", "lib/part": "p\n"})
    assert load(folder).text == "p\n\nb\n"


def test_script_may_include_a_part_of_its_own_name(folder: Path) -> None:
    write(folder, {"same": "-- @include same\nmain\n", "lib/same": "part\n"})
    assert load(folder, "same").text == "part\nmain\n"


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"lib/a": "-- @include a\n"}, "lib/a -> lib/a"),
        ({"lib/a": "-- @include b\n", "lib/b": "-- @include a\n"}, "lib/a -> lib/b -> lib/a"),
    ],
)
def test_circle_is_refused_and_shown(folder: Path, files: dict[str, str], circle: str) -> None:
    write(folder, {"main": "-- @include a\n", **files})
    with pytest.raises(ConfigError, match=f"circle: main -> {circle}$"):
        load(folder)


def test_missing_part_is_named_with_who_wants_it(folder: Path) -> None:
    write(folder, {"main": "-- @include a\n", "lib/a": "-- @include gone\n"})
    with pytest.raises(ConfigError, match=r"gone\.lua is missing: lib/a includes it"):
        load(folder)


def test_missing_script_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.lua is missing$"):
        load(folder, "gone")


@pytest.mark.parametrize(
    "line",
    [
        "--@include part",
        "-- @include part.lua",
        "  -- @include part",
        "-- @include a b",
        "--@each",
        "-- @each call",
    ],
)
def test_include_that_would_be_overlooked_is_refused(folder: Path, line: str) -> None:
    write(folder, {"main": f"a\n{line}\nb\n", "lib/part": "p\n"})
    with pytest.raises(ConfigError, match=re.escape(repr(line))):
        load(folder)


def test_digest_is_the_one_the_server_computes(folder: Path) -> None:
    write(folder, {"main": "return 'ä'\n"})
    script = load(folder)
    assert script.name == "main"
    assert script.digest == hashlib.sha1("return 'ä'\n".encode()).hexdigest()  # noqa: S324


def test_every_script_of_the_package_resolves() -> None:
    assert SCRIPTS
    assert not [name for name, script in SCRIPTS.items() if re.search(r"-- @\w", script.text)]


def test_files_are_read_at_once_and_a_script_is_made_once(folder: Path) -> None:
    write(folder, {"main": "-- @include part\n", "lib/part": "p\n", "other": "o\n"})
    library = Library(folder)
    write(folder, {"main": "new\n", "lib/part": "new\n"})
    assert library["main"].text == "p\n"
    assert library["main"] is library.get("main")
    assert list(library) == ["main", "other"]
    assert len(library) == 2
    assert "part" not in library
    with pytest.raises(KeyError):
        library["part"]


def test_scripts_inside_the_package_come_before_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "redis_state"
    beside, inside = tmp_path / "lua", package / "lua"
    package.mkdir()

    def files(_: str) -> Path:
        return package

    monkeypatch.setattr(resources, "files", files)
    with pytest.raises(ConfigError, match="without lua/"):
        lua_folder()
    (beside / "lib").mkdir(parents=True)
    (beside / "b.lua").touch()
    assert Library(lua_folder()).names() == ["b"]
    inside.mkdir()
    (inside / "a.lua").touch()
    assert Library(lua_folder()).names() == ["a"]


def test_names_are_found_in_any_folder_and_are_unique(folder: Path) -> None:
    for area in ("log", "task", "lib/clock"):
        (folder / area).mkdir()
    files = {"log/append": "-- @include now\na\n", "task/main": "m\n", "lib/clock/now": "n\n"}
    write(folder, files)
    (folder / "log" / "notes.txt").touch()
    assert Library(folder).names() == ["append", "main"]
    assert load(folder, "append").text == "n\na\n"
    write(folder, {"task/append": "other\n"})
    with pytest.raises(ConfigError, match=r"two Lua files have the name append: .*log.*task"):
        Library(folder)


PARTS = {"lib/part": "p\n", "lib/each": "e\n", "lib/once": "o\n", "lib/counted": "c\n"}


def preamble(folder: Path, header: str) -> list[str]:
    """Return what the loader puts between the header of a script and its body."""
    write(folder, {"main": f"-- Does.\n{header}\nbody\n", **PARTS})
    text = load(folder).text
    return [line for line in text.partition("\nbody\n")[0].splitlines() if line[:2] != "--"]


def test_a_script_knows_what_the_keys_of_a_call_hold(folder: Path) -> None:
    header = (
        "-- KEYS a  hash: its fields\n"
        "-- KEYS b  stream of rows\n"
        "-- KEYS c  string: or a hash, list or zset\n"
        "-- KEYS d  zset; another key without one\n"
        "-- KEYS e..  long: hashes: records\n"
    )
    preamble(folder, header)
    script = load(folder)
    held = {"1": "hash", "2": "stream", "4": "zset", "5": "hash", "6": "hash"}
    assert script.types_of(["1", "2", "3", "4", "5", "6"]) == held
    # The first key stands for one that this call does not have.
    assert script.types_of(["1", "2", "3", "1"]) == {"1": "hash", "2": "stream"}


def test_the_reply_of_a_call_that_runs_once_stands_behind_its_first_key(folder: Path) -> None:
    preamble(folder, "-- @once\n-- KEYS a  zset: of it\n-- KEYS b  hash: of it\n")
    held = {"1": "zset", "call": "string", "2": "hash"}
    assert load(folder).types_of(["1", "call", "2"]) == held


def test_inputs_get_their_names_and_kinds(folder: Path) -> None:
    header = "-- KEYS a  hash: b\n--   and more\n-- ARGV b  int: of it\n-- ARGV c  flag: it is\n"
    assert preamble(folder, header) == [
        "local a, b, c = KEYS[1], tonumber(ARGV[1]), ARGV[2] == '1'"
    ]
    script = load(folder)
    assert script.keys == (Input("a", type="hash"),)
    assert script.arguments == (Input("b", "int"), Input("c", "flag"))
    assert preamble(folder, "") == []


def test_names_with_a_dot_make_a_table(folder: Path) -> None:
    header = "-- KEYS a.b  hash: c\n-- KEYS d  hash: e\n-- ARGV a.f  int: g\n-- ARGV a.h..  i\n"
    assert preamble(folder, header) == [
        "local d = KEYS[2]",
        "local a = { b = KEYS[1], f = tonumber(ARGV[1]) }",
        "a.h = { unpack(ARGV, 2) }",
    ]


def test_a_list_is_what_follows_and_another_before_it_is_counted(folder: Path) -> None:
    header = (
        "-- KEYS a..  hashes: b\n-- ARGV c  d\n-- ARGV e..  f\n-- ARGV g..  h\n-- ARGV i..  j\n"
    )
    assert preamble(folder, header) == [
        "c",
        "local c = ARGV[1]",
        "local a = { unpack(KEYS, 1) }",
        "local e, behind_e = counted(ARGV, 2)",
        "local g, behind_g = counted(ARGV, behind_e)",
        "local i = { unpack(ARGV, behind_g) }",
    ]


def test_a_long_list_is_not_copied(folder: Path) -> None:
    header = "-- KEYS a  hash: b\n-- KEYS c..  long: lists\n-- ARGV d  e\n-- ARGV f..  long: g\n"
    assert preamble(folder, header) == [
        "local a, d = KEYS[1], ARGV[1]",
        "local c, c_from = KEYS, 2",
        "local f, f_from = ARGV, 2",
    ]


def test_what_runs_once_is_given_where_its_reply_is_kept(folder: Path) -> None:
    header = "-- KEYS a  hash: b\n-- KEYS c  hash: d\n-- ARGV e  f\n-- @once\n-- @idempotent\n"
    assert preamble(folder, header) == [
        "o",
        "local a, c, e = KEYS[1], KEYS[3], ARGV[2]",
        "local done, keep_reply = once(KEYS[2], ARGV[1])",
        "if done then return done end",
    ]
    script = load(folder)
    assert (script.once, script.idempotent, script.each, script.lasting) == (
        True,
        True,
        False,
        False,
    )


def test_the_body_is_run_for_each_call(folder: Path) -> None:
    keys = "-- KEYS a  hash: b\n-- KEYS c  hash: d\n"
    text = (
        f"-- Does.\n{keys}-- @include part\n-- @each\n-- @lasting\n-- @reading\n\nreturn {{ a }}\n"
    )
    write(folder, {"main": text, **PARTS})
    script = load(folder)
    assert (script.each, script.once, script.lasting, script.reading) == (True, False, True, True)
    assert script.text.splitlines()[3:] == [
        "p",
        "e",
        "local function body(KEYS, ARGV)",
        "local a, c = KEYS[1], KEYS[2]",
        "",
        "return { a }",
        "end",
        "return each(body, KEYS, ARGV, 2)",
    ]
    write(folder, {"main": text.replace("-- @each", "-- @each\n-- @once")})
    assert load(folder).text.endswith("return each(body, KEYS, ARGV, 3)\n")


KEY = "-- KEYS a  hash: b\n"


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("-- KEYS[1] a  hash: b\n", r"write '-- KEYS name  meaning', not '-- KEYS\[1\] a"),
        ("-- KEYS a\n", "write '-- KEYS name  meaning'"),
        ("-- ARGV A  b\n", "write '-- KEYS name  meaning'"),
        ("-- ARGV a.b.c  d\n", "write '-- KEYS name  meaning'"),
        (f"{KEY}-- ARGV a  b\n", "'a' is declared twice"),
        (f"{KEY}-- ARGV a.b  c\n", "'a' is declared twice"),
        ("-- ARGV a..  b\n-- ARGV c  d\n", "a list stands behind all that is none"),
        ("-- KEYS a..  hashes: b\n-- KEYS c..  hashes: d\n", "a list that is counted"),
        ("-- ARGV a.b..  c\n-- ARGV d..  e\n", "a list that is counted"),
        ("-- ARGV a..  int: b\n", "'a' cannot be int"),
        ("-- ARGV a  long: b\n", "'a' cannot be long"),
        ("-- KEYS a  flag: b\n", "'a' cannot be flag"),
        ("-- ARGV a..  long: b\n-- ARGV c..  d\n", "'a' cannot be long"),
        ("-- @each\n", "fixed number of keys"),
        (f"{KEY}-- KEYS c..  lists: d\n-- @each\n", "fixed number of keys"),
        (f"{KEY}-- @each\n-- @each\n", "'-- @each' stands there twice"),
        ("-- KEYS a..  hashes: b\n-- @once\n", "'-- @once' needs a first key"),
        (f"{KEY}-- @idempotent\n", "'-- @idempotent' belongs to '-- @once'"),
    ],
)
def test_header_that_cannot_be_bound_is_refused(folder: Path, header: str, problem: str) -> None:
    write(folder, {"main": f"{header}\nreturn 1\n", **PARTS})
    with pytest.raises(ConfigError, match=f"^main: .*{problem}"):
        load(folder)


def test_part_has_no_properties(folder: Path) -> None:
    write(folder, {"main": "-- @include part\n", "lib/part": "-- @each\n"})
    with pytest.raises(ConfigError, match=r"lib/part: write .*'-- @each' or another property"):
        load(folder)
