"""The resolver of Lua includes, on folders of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

from redis_state.errors import ConfigError
from redis_state.scripts import loader as lua
from redis_state.scripts.loader import load_script, script_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.lua").write_text(text)


def test_part_stands_where_it_is_included(folder: Path) -> None:
    write(folder, {"main": "a\n-- @include part\nb\n", "lib/part": "p\n\n"})
    assert load_script("main", folder).text == "a\np\nb\n"


def test_nested_parts_come_before_their_users_and_only_once(folder: Path) -> None:
    write(
        folder,
        {
            "main": "-- @include upper\n-- @include lower\n-- @include upper\nmain\n",
            "lib/upper": "-- @include lower\nupper\n",
            "lib/lower": "lower\n",
        },
    )
    assert load_script("main", folder).text.split() == ["lower", "upper", "main"]


def test_blank_lines_and_spaces_after_an_include_do_no_harm(folder: Path) -> None:
    write(folder, {"main": "-- @include part \t\n\nb\n", "lib/part": "p\n"})
    assert load_script("main", folder).text == "p\n\nb\n"


def test_script_may_include_a_part_of_its_own_name(folder: Path) -> None:
    write(folder, {"same": "-- @include same\nmain\n", "lib/same": "part\n"})
    assert load_script("same", folder).text == "part\nmain\n"


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
        load_script("main", folder)


def test_missing_part_is_named_with_who_wants_it(folder: Path) -> None:
    write(folder, {"main": "-- @include a\n", "lib/a": "-- @include gone\n"})
    with pytest.raises(ConfigError, match=r"gone\.lua is missing: lib/a includes it"):
        load_script("main", folder)


def test_missing_script_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.lua is missing$"):
        load_script("gone", folder)


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
        load_script("main", folder)


def test_digest_is_the_one_the_server_computes(folder: Path) -> None:
    write(folder, {"main": "return 'ä'\n"})
    script = load_script("main", folder)
    assert script.name == "main"
    assert script.digest == hashlib.sha1("return 'ä'\n".encode()).hexdigest()  # noqa: S324


def test_every_script_of_the_package_resolves() -> None:
    names = script_names()
    assert names
    assert names == sorted(names)
    for name in names:
        assert not re.search("@(include|each)", load_script(name).text)


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
        lua.script_names()
    (beside / "lib").mkdir(parents=True)
    (beside / "b.lua").touch()
    assert lua.script_names() == ["b"]
    inside.mkdir()
    (inside / "a.lua").touch()
    assert lua.script_names() == ["a"]


def test_what_follows_the_mark_is_run_for_each_call(folder: Path) -> None:
    write(
        folder,
        {
            "main": "-- Does.\n-- KEYS[1] a    hash: b\n-- KEYS[2] c    hash: d\n"
            "-- @include part\n-- @each\nlocal a, c = KEYS[1], KEYS[2]\nreturn { a }\n",
            "lib/part": "p\n",
            "lib/each": "e\n",
        },
    )
    script = load_script("main", folder)
    assert script.each
    assert script.text.splitlines()[3:] == [
        "p",
        "e",
        "local function body(KEYS, ARGV)",
        "local a, c = KEYS[1], KEYS[2]",
        "return { a }",
        "end",
        "return each(body, KEYS, ARGV, 2)",
    ]
    write(folder, {"main": "-- Does.\nreturn 1\n"})
    assert not load_script("main", folder).each


@pytest.mark.parametrize("keys", ["", "-- KEYS[1] a  hash: b\n-- KEYS[2..] c  list: d\n"])
def test_each_call_needs_a_fixed_number_of_keys(folder: Path, keys: str) -> None:
    write(folder, {"main": f"{keys}-- @each\nreturn 1\n", "lib/each": "e\n"})
    with pytest.raises(ConfigError, match=r"main: .*fixed number of keys"):
        load_script("main", folder)


def test_each_call_is_marked_once_and_in_a_script_only(folder: Path) -> None:
    key = "-- KEYS[1] a  hash: b\n"
    write(folder, {"main": f"{key}-- @each\n-- @each\nreturn 1\n", "lib/each": "e\n"})
    with pytest.raises(ConfigError, match=r"main: .*twice"):
        load_script("main", folder)
    write(folder, {"main": "-- @include part\n", "lib/part": "-- @each\n"})
    with pytest.raises(ConfigError, match=r"lib/part: write .*'-- @each' or '-- @idempotent' in a"):
        load_script("main", folder)
